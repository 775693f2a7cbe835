# frozen_string_literal: true

require_relative "check"
require_relative "discretion"

module Pgbus
  module Native
    class Doctor
      # Which connection a call would run on, here and now, and why.
      class ChosenRoute < Check
        NAME = "route"

        private

        def examine
          return unless app.postgresql?
          return ruby unless Native.enabled?
          return asked_for if Native.route == :active_record
          return unable unless app.native

          Native.route == :native ? comparing : automatic
        rescue ::ActiveRecord::ConnectionNotEstablished => e
          disconnected(e)
        end

        def ruby
          note("ActiveRecord's connection, by pgbus's own code", "see the line about the extension")
        end

        def unable
          warning("active_record: the native client cannot serve this database: #{app.obstacle}",
                  "calls work, and would be faster on a native connection: change that setting if you can")
        end

        # ActiveRecord has its connection, so the server is there.
        def disconnected(error)
          error("native, and there is no native connection to be had: #{Discretion.message(error)}",
                "leave room for #{Native.configuration.pool_size} connections more of each process (`pool_size`) in " \
                "the server's max_connections and the role's CONNECTION LIMIT")
        end

        def asked_for
          note("active_record, since `route` is set to it", "set `route` to :auto for native calls")
        end

        def comparing
          note("native, in transactions too, since `route` is set to it", "set `route` to :auto after the comparison")
        end

        def automatic
          return ok("native: nothing is in the way") unless Route.current.is_a?(ActiveRecordRoute)

          note("active_record here: the caller has a transaction open, the pool is pinned for a transactional test, " \
               "or the search path was changed at run time", "ask outside of that to see what other calls do")
        end
      end
    end
  end
end
