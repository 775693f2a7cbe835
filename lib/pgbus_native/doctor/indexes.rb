# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # The indexes that the statements stand on. Without its unique index no join works.
      class Indexes < TableCheck
        NAME = "indexes"

        # An index of the table; `columns` joined by commas, `condition` nil if it holds all rows.
        Index = Data.define(:name, :unique, :valid, :columns, :condition)

        # One that is wanted. `conditions` are those that do.
        Wanted = Data.define(:name, :kind, :columns, :conditions) do
          def met_by?(index)
            index.unique && index.columns == columns && conditions.include?(index.condition)
          end

          def statement(table)
            where = " WHERE #{conditions.first}" if conditions.first
            "CREATE UNIQUE INDEX #{"CONCURRENTLY " unless table.partitioned}#{name} ON #{table.name} " \
              "(#{columns.tr(",", " ").split.join(", ")})#{where}"
          end
        end

        MEMBER = "stream_name,member_id"
        SEAT = "stream_name,connection_id"
        SWEEP = "stream_name,last_seen_at"
        WANTED_BEFORE_SEATS = [Wanted.new("idx_pgbus_presence_members_pk", "members", MEMBER, [nil])].freeze
        WANTED = [
          Wanted.new("idx_pgbus_presence_members_pk", "members", MEMBER, ["connection_id IS NULL"]),
          # One over all rows serves seats as well: a null differs from every other.
          Wanted.new("idx_pgbus_presence_members_seat", "seats", SEAT, ["connection_id IS NOT NULL", nil])
        ].freeze
        private_constant :Index, :Wanted, :MEMBER, :SEAT, :SWEEP, :WANTED_BEFORE_SEATS, :WANTED

        private

        def examine
          wanted.each { |one| look_for(one) }
          one_seat_only if app.table.seats?
          sweep
          indexes.reject { |index| index.valid || wanted.any? { |one| one.met_by?(index) } }
                 .each { |index| useless(index) }
        end

        def wanted
          app.table.seats? ? WANTED : WANTED_BEFORE_SEATS
        end

        def look_for(wanted)
          found = indexes.select { |index| wanted.met_by?(index) }
          valid = found.find(&:valid)
          if valid
            ok("#{valid.name} for #{wanted.kind}", name: "index")
          elsif found.any?
            error("#{found.first.name} for #{wanted.kind} is invalid, so no #{wanted.kind} can join",
                  "remove rows that occur twice and run: #{rebuild(found.first)}", name: "index")
          else
            error("no unique index for #{wanted.kind} on (#{wanted.columns}), so no #{wanted.kind} can join",
                  "run: #{wanted.statement(app.table)}", name: "index")
          end
        end

        # The one of the table without seats, left behind.
        def one_seat_only
          indexes.select { |index| index.unique && index.columns == MEMBER && index.condition.nil? }.each do |index|
            error("#{index.name} allows a member one row in each stream, so no second tab can join",
                  "run: DROP INDEX #{index.name}", name: "index")
          end
        end

        def sweep
          found = indexes.find { |index| index.valid && index.columns == SWEEP }
          return ok("#{found.name} for sweeps", name: "index") if found

          note("none on (#{SWEEP}): heartbeats cost less, a sweep reads all rows of its stream",
               "nothing, if this is the tuning migration's doing (docs/tuning.md); else create it", name: "index")
        end

        def useless(index)
          warning("#{index.name} is invalid: it costs every write and serves no read",
                  "run: #{rebuild(index)}, or drop it", name: "index")
        end

        def rebuild(index)
          "REINDEX INDEX #{"CONCURRENTLY " unless app.table.partitioned}#{index.name}"
        end

        def indexes
          @indexes ||= app.rows(<<~SQL).map { |row| Index.new(**row.transform_keys(&:to_sym)) }
            SELECT i.indexrelid::regclass::text AS name, i.indisunique AS unique,
                   i.indisvalid AND i.indisready AS valid,
                   btrim(pg_get_expr(i.indpred, i.indrelid), '()') AS condition,
                   (SELECT string_agg(coalesce(a.attname, '(expression)'), ',' ORDER BY k.place)
                    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                    WHERE k.place <= i.indnkeyatts) AS columns
            FROM pg_index i WHERE i.indrelid = #{app.table.oid} ORDER BY 1
          SQL
        end
      end
    end
  end
end
