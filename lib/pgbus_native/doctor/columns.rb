# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # The table and its columns.
      class Columns < Check
        NAME = "table"

        MEMBERS = %w[stream_name member_id metadata joined_at last_seen_at].freeze
        SEATS = %w[connection_id seat state].freeze
        TIMES = %w[joined_at last_seen_at].freeze
        private_constant :MEMBERS, :TIMES

        private

        def examine
          return unless app.postgresql?
          return no_table unless app.table

          table
          seats
        end

        def no_table
          error("there is no pgbus_presence_members in the search path (#{app.connection.schema_search_path})",
                "run `rails generate pgbus:add_presence` and `rails db:migrate`, or add its schema to " \
                "`schema_search_path:` of database.yml")
        end

        def table
          missing = MEMBERS - columns.keys
          return missing(missing, "pgbus:add_presence") if missing.any?

          wrong = TIMES.reject { |name| columns[name].start_with?("timestamp") }
          return ok("#{app.table.name}#{", partitioned" if app.table.partitioned}, times are #{types}") if wrong.empty?

          error("#{wrong.join(" and ")} of #{app.table.name}: #{columns.values_at(*wrong).join(" and ")}",
                "make the type timestamp or timestamptz")
        end

        def seats
          missing = SEATS - columns.keys
          return ok(SEATS.join(", "), name: "seats") if missing.empty?
          return missing(missing, "pgbus:add_presence_seats", name: "seats") if missing != SEATS

          warning("the table has no seat columns: members can join, connections cannot",
                  "run `rails generate pgbus:add_presence_seats` and `rails db:migrate`", name: "seats")
        end

        def missing(names, generator, **name)
          error("#{app.table.name} lacks #{names.join(", ")}",
                "see which migration was left half-way; `rails generate #{generator}` has the columns", **name)
        end

        def columns
          app.table.columns
        end

        def types
          columns.values_at(*TIMES).uniq.join(" and ")
        end
      end
    end
  end
end
