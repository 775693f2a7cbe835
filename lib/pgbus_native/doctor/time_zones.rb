# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # Whether both routes mean the same instant by a time without an offset, which is what a `timestamp` column holds,
      # and whether records have the right one.
      class TimeZones < TableCheck
        NAME = "time zone"

        # The first instant that PostgreSQL knows. A session accepts the local time at which it was in its zone, and
        # none before. So one can tell a native session's zone without writing a row. Zones kept to the sun then: no
        # two differ nowadays and had the same offset in those days.
        FIRST = Time.utc(-4713, 11, 24)
        # Seconds by which clocks may differ.
        TOLERABLE = 60
        private_constant :FIRST, :TOLERABLE

        private

        def examine
          session = app.rows(<<~SQL).first
            SELECT current_setting('TimeZone') AS zone,
                   extract(timezone FROM '4713-01-01 00:00:00+00 BC'::timestamptz)::int AS first_offset
          SQL
          compare(session) if app.native
          records(session["zone"])
        end

        def compare(session)
          zone, offset = session.values_at("zone", "first_offset")
          if native_accepts?(offset) && !native_accepts?(offset - 1)
            ok("#{zone} on both routes")
          else
            error("ActiveRecord's session is in #{zone}, a native one is not",
                  "set the time zone in `variables:` of database.yml, where both see it, not by SET on one connection")
          end
        end

        # @param offset [Integer] seconds of a session's zone east of UTC, at the beginning of time
        def native_accepts?(offset)
          statement = app.table.seats? ? Statements::SWEEP : Statements::SWEEP_BEFORE_SEATS
          time = FIRST + offset
          # Year -4713 is 4714 BC. Of this stream there are no rows.
          app.native.run(statement, [app.stream, "#{1 - time.year}#{time.strftime("-%m-%d %H:%M:%S")} BC"])
          true
        rescue PG::DatetimeFieldOverflow
          false
        rescue PG::InsufficientPrivilege, PG::ReadOnlySqlTransaction
          true # Those come after the time was read; other lines are about them.
        end

        # A time of now as the table would hold it and as records have it.
        def records(zone)
          type = app.table.columns.fetch("last_seen_at")
          result = app.raw.exec("SELECT now()::#{type}, extract(epoch FROM now())::float8")
          off = result.getvalue(0, 0) - Time.at(Float(result.getvalue(0, 1)))
          return ok("records have the instant that was written", name: "times") if off.abs < TOLERABLE

          error("records are #{(off / 3600).round(2)} h off: #{type} is written in #{zone} and read as local time",
                "let the server's time zone be this process's, or set default_timezone to :utc", name: "times")
        end
      end
    end
  end
end
