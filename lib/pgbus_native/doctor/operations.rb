# frozen_string_literal: true

require_relative "check"
require_relative "discretion"

module Pgbus
  module Native
    class Doctor
      # Every operation of Presence once, timed, on a stream that nobody uses, in a transaction that is rolled back.
      # Hence on the active_record route: a native connection would commit.
      class Operations < TableCheck
        NAME = "operations"

        # Seconds until the server ends a statement, on rows or a table that somebody has locked, say.
        PATIENCE = 1
        # Seconds. No seat is as old as that, except the one that is made to be.
        TTL = 30 * 365 * 24 * 60 * 60
        METADATA = { "of" => "doctor" }.freeze
        Stream = Struct.new(:name)
        private_constant :PATIENCE, :TTL, :METADATA, :Stream

        private

        def examine
          return unless presence_class

          ok("on the active_record route, and rolled back: no row stays, nothing is reported")
          Native.with_route(:active_record) { rolled_back { operate } }
        end

        # Presence that reports no change.
        def presence_class
          return @presence_class if defined?(@presence_class)

          @presence_class = copy
        end

        # Not an heir: pgbus's own class keeps things in variables, which only a copy has as well.
        def copy
          return skip("this pgbus has another Presence") if Native.status == :other_version
          return skip("Pgbus::Streams::Presence is not loaded") unless loaded?

          Streams::Presence.dup.tap { |copy| copy.define_singleton_method(:report_change) { |*| nil } }
        end

        def loaded?
          Pgbus.const_defined?(:Streams) && Pgbus::Streams.const_defined?(:Presence)
        end

        def skip(why)
          note("not tried: #{why}", "see the line about the extension")
          nil
        end

        def rolled_back
          app.connection.transaction(requires_new: true) do
            app.connection.execute("SET LOCAL statement_timeout = '#{PATIENCE}s'")
            yield
            raise ::ActiveRecord::Rollback
          end
        end

        def operate
          prepare { presence.seats? } # asks once
          members
          seats if app.table.seats?
        end

        def members
          # Without it the others have nothing to find.
          return unless try("join") { presence.join(member_id: "1", metadata: METADATA)&.fetch("id") == "1" }

          try("touch") { presence.touch(member_id: "1") }
          try("members") { presence.members.map { |record| record["id"] } == ["1"] }
          try("count") { presence.count == 1 }
          try("leave") { presence.leave(member_id: "1")&.fetch("id") == "1" }
          sweep
        end

        def sweep
          prepare { presence.join(member_id: "2") }
          # Two days, so that no time zone makes it a time gone by.
          try("sweep!") { presence.sweep!(older_than: Time.now + (2 * 24 * 60 * 60)) == 1 }
        end

        def seats
          return unless try("join (seat)") do
            seat_of(presence.join(member_id: "1", connection_id: "c1", seat: "s")) == "s"
          end

          try("touch (seats)") { presence.touch(connection_id: %w[c1 c2]) == ["c1"] }
          try("set_state") { presence.set_state(connection_id: "c1", state: METADATA)&.fetch("state") == METADATA }
          try("leave (seat)") { seat_of(presence.leave(connection_id: "c1")) == "s" }
          prepare { join_long_ago }
          try("expire_seats!") do
            presence_class.expire_seats!(ttl_for: ->(_) { TTL }, min_ttl: TTL).map { |record| record["id"] } == ["3"]
          end
        end

        def seat_of(record)
          record&.fetch("seat")
        end

        def join_long_ago
          presence.join(member_id: "3", connection_id: "c3")
          app.connection.execute(<<~SQL)
            UPDATE #{app.table.name} SET last_seen_at = now() - interval '40 years'
            WHERE stream_name = #{app.connection.quote(app.stream)}
          SQL
        end

        def presence
          @presence ||= presence_class.new(Stream.new(app.stream))
        end

        # A failed operation must not fail the next one, as it would in one transaction. Gives whether it was right.
        def try(name)
          right = nil
          taken = app.connection.transaction(requires_new: true) do
            app.raw # ActiveRecord begins a transaction when it is first needed, which is not to be timed.
            seconds { right = yield }
          end
          right ? ok("#{milliseconds(taken)} ms", name:, milliseconds: milliseconds(taken)) : answers_otherwise(name)
          right
        rescue StandardError => e
          error(Discretion.message(e), advice(e), name:)
          false
        end

        def answers_otherwise(name)
          error("answers otherwise than it should", "see whether a trigger, a rule or a row-level security policy on " \
                                                    "#{app.table.name} is in the way", name:)
        end

        # What the next operation needs. Where it fails, that one says so.
        def prepare(&)
          app.connection.transaction(requires_new: true, &)
        rescue StandardError
          nil
        end

        def advice(error)
          case error
          when PG::InsufficientPrivilege
            "run: GRANT SELECT, INSERT, UPDATE, DELETE ON #{app.table.name} TO the app's role"
          when PG::ReadOnlySqlTransaction
            "connect to the primary, as a session that may write"
          when PG::QueryCanceled
            "somebody holds a lock on the table, or it is overloaded: see pg_stat_activity"
          else
            "see the lines about the table and its indexes"
          end
        end
      end
    end
  end
end
