# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # Old versions of rows, which heartbeats leave behind, and whether autovacuum comes to remove them.
      class DeadRows < TableCheck
        NAME = "dead rows"

        # As many are nothing to speak of.
        WORTH_MENTIONING = 10_000
        # For each living row. Between two visits of autovacuum, a minute apart, a row is touched several times.
        TOLERABLE = 10

        private

        def examine
          found = look_up
          autovacuum(found)
          dead, live, vacuumed = found.values_at("dead", "live", "vacuumed")
          message = "#{dead} of #{dead + live} rows, last vacuumed #{vacuumed || "never"}"
          return ok(message, dead:, live:) unless dead > WORTH_MENTIONING && dead > live * TOLERABLE

          warning(message, "run: VACUUM #{app.table.name}; if they stay, end old transactions and replication slots " \
                           "(pg_stat_activity, pg_replication_slots); if they come back, see docs/tuning.md",
                  dead:, live:)
        end

        def autovacuum(found)
          return ok("on", name: "autovacuum") if found["server"] && found["table"]

          if found["server"]
            warning("off for this table", "run: ALTER TABLE #{app.table.name} RESET (autovacuum_enabled), on each " \
                                          "partition if there are", name: "autovacuum")
          else
            warning("off on this server", "set autovacuum and track_counts to on in postgresql.conf",
                    name: "autovacuum")
          end
        end

        def look_up
          app.rows(<<~SQL).first
            WITH tables AS (
              SELECT oid, reloptions FROM pg_class
              WHERE oid = #{app.table.oid} AND relkind = 'r'
                 OR oid IN (SELECT relid FROM pg_partition_tree(#{app.table.oid}::regclass) WHERE isleaf))
            SELECT current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on' AS server,
                   NOT EXISTS (SELECT FROM tables, pg_options_to_table(reloptions)
                               WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean) AS table,
                   coalesce(sum(n_dead_tup), 0)::bigint AS dead, coalesce(sum(n_live_tup), 0)::bigint AS live,
                   to_char(max(greatest(last_vacuum, last_autovacuum)) AT TIME ZONE 'UTC',
                           'YYYY-MM-DD HH24:MI "UTC"') AS vacuumed
            FROM tables LEFT JOIN pg_stat_all_tables ON relid = oid
          SQL
        end
      end
    end
  end
end
