# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # Whether statements are prepared under a name, and whether a pooler stands between, which may not like it.
      class PreparedStatements < Check
        NAME = "prepared statements"

        private

        def examine
          return unless app.postgresql?

          if !Native.enabled?
            ok("pgbus's own code prepares none")
          elsif app.settings.prepared_statements?
            app.pooled? ? named_behind_pooler : ok("used")
          elsif app.pooled?
            ok("not used, which suits the pooler in between")
          else
            note("not used: prepared_statements is false",
                 "take that out of database.yml, unless there is a PgBouncer in transaction mode on the way")
          end
        end

        def named_behind_pooler
          note("used, with a pooler in between",
               "in transaction mode set `prepared_statements: false` in database.yml, or max_prepared_statements in " \
               "PgBouncer 1.21 or newer")
        end
      end
    end
  end
end
