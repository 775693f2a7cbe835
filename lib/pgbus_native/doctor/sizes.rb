# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # How much room the table and its indexes take, and how much their rows would need if they were written anew: the
      # rest is bloat. An estimate, by the planner's statistics.
      class Sizes < TableCheck
        NAME = "table size"

        # Bloat below this many bytes is not worth a line.
        WORTH_MENTIONING = 4 * 1024 * 1024
        # A table under heartbeats is several times as large as its rows between two vacuums.
        TOLERABLE = 4
        # Bytes of each row in the table: header and pointer; in an index, with its alignment.
        ROW = 28
        ENTRY = 16

        Relation = Data.define(:name, :index, :rows, :bytes, :fillfactor, :width) do
          # Bytes that its rows need; nil if nobody has counted them.
          def needed
            return if rows.negative? || (width.nil? && rows.positive?)

            (rows * (width.to_f + (index ? ENTRY : ROW)) * 100 / fillfactor).ceil
          end
        end
        private_constant :ROW, :ENTRY, :Relation

        private

        def examine
          indexes, tables = relations.partition(&:index)
          sizes(NAME, tables, "VACUUM (FULL) #{app.table.name}, which locks it meanwhile, or pg_repack")
          sizes("index size", indexes, "REINDEX TABLE CONCURRENTLY #{app.table.name}")
        end

        def sizes(name, relations, remedy)
          bytes = relations.sum(&:bytes)
          uncounted, counted = relations.partition { |relation| relation.needed.nil? }
          bloated = counted.select { |relation| bloated?(relation) }
          if bloated.any?
            warning("#{list(bloated)}; all in all #{size(bytes)}",
                    "see that autovacuum keeps up (dead rows, below), then run: #{remedy}", name:, bytes:)
          elsif uncounted.sum(&:bytes) > WORTH_MENTIONING
            note("#{size(bytes)}, whether it is bloat is not known", "run: ANALYZE #{app.table.name}", name:, bytes:)
          else
            ok(size(bytes), name:, bytes:)
          end
        end

        def bloated?(relation)
          relation.bytes > relation.needed * TOLERABLE && relation.bytes - relation.needed > WORTH_MENTIONING
        end

        def list(relations)
          relations.map { |one| "#{one.name} takes #{size(one.bytes)}, its #{one.rows} rows need #{size(one.needed)}" }
                   .join("; ")
        end

        def size(bytes)
          bytes < 1024 * 1024 ? "#{(bytes / 1024.0).ceil} kB" : "#{(bytes / 1024.0 / 1024).round(1)} MB"
        end

        # A partitioned table has its rows in its partitions.
        def relations
          app.rows(<<~SQL).map { |row| Relation.new(**row.transform_keys(&:to_sym)) }
            WITH tables AS (
              SELECT oid FROM pg_class WHERE oid = #{app.table.oid} AND relkind = 'r'
              UNION SELECT relid::oid FROM pg_partition_tree(#{app.table.oid}::regclass) WHERE isleaf),
            relations AS (
              SELECT oid, oid AS owner, NULL::int2[] AS keys FROM tables
              UNION ALL SELECT indexrelid, indrelid, indkey::int2[] FROM pg_index JOIN tables ON indrelid = oid)
            SELECT c.oid::regclass::text AS name, keys IS NOT NULL AS index, c.reltuples::float8::bigint AS rows,
                   pg_relation_size(c.oid) AS bytes,
                   coalesce((SELECT option_value::int FROM pg_options_to_table(c.reloptions)
                             WHERE option_name = 'fillfactor'),
                            CASE WHEN keys IS NULL THEN 100 ELSE 90 END) AS fillfactor,
                   (SELECT sum((1 - s.null_frac) * s.avg_width) FROM pg_stats s
                    JOIN pg_attribute a ON a.attrelid = owner AND a.attname = s.attname
                    WHERE s.schemaname = n.nspname AND s.tablename = t.relname AND NOT s.inherited
                      AND (keys IS NULL OR a.attnum = ANY (keys)))::float8 AS width
            FROM relations JOIN pg_class c USING (oid) JOIN pg_class t ON t.oid = owner
            JOIN pg_namespace n ON n.oid = t.relnamespace
            ORDER BY c.oid
          SQL
        end
      end
    end
  end
end
