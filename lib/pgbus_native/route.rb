# frozen_string_literal: true

require_relative "active_record_route"
require_relative "search_path_watch"

module Pgbus
  module Native
    # Which connection runs a call: a native one, or ActiveRecord's where the outcome would otherwise differ.
    # Deciding it leases no connection.
    module Route
      class << self
        # Runs a statement on the route that the call belongs to.
        #
        # @param statement [Statement]
        # @param params [Array<String, Array<String>, nil>]
        # @param details [Hash, nil] takes how it was run, see {Events}
        # @return [Array<Hash>, Array<String>, Integer] see {Database#run}
        # @raise [PG::Error, ActiveRecord::ActiveRecordError, Pgbus::ConfigurationError]
        def run(statement, params, details = nil)
          current.run(statement, params, details)
        rescue PG::UndefinedTable, PG::UndefinedColumn => e
          raise e, "#{e.message}#{advice(e)}"
        end

        # @return [Database, ActiveRecordRoute] what answers `run(statement, params)`
        # @raise [Pgbus::ConfigurationError] without ActiveRecord
        def current
          pool = connection_class.connection_pool
          (Databases.for(pool) if native?(pool)) || ActiveRecordRoute.new(pool)
        end

        # The database of statements that belong to no caller, on threads that have no transaction.
        #
        # @return [Database, nil] nil if they are to run on ActiveRecord's connection
        def background_database
          pool = connection_class.connection_pool
          Databases.for(pool)&.database unless Native.route == :active_record || pinned?(pool)
        rescue Pgbus::ConfigurationError, ActiveRecord::ConnectionNotEstablished
          nil
        end

        # The class whose connections lead to the presence table.
        #
        # @return [Class] Pgbus::BusRecord if pgbus has a database of its own, else ActiveRecord::Base
        # @raise [Pgbus::ConfigurationError] without ActiveRecord
        def connection_class
          unless defined?(::ActiveRecord::Base)
            raise Pgbus::ConfigurationError,
                  "Pgbus::Streams::Presence requires ActiveRecord: add activerecord to the Gemfile and connect it"
          end

          Pgbus.configuration.connects_to ? Pgbus::BusRecord : ::ActiveRecord::Base
        end

        private

        def native?(pool)
          case Native.route
          when :auto then !bound?(pool)
          when :native then true
          else false
          end
        end

        # Whether the caller's ActiveRecord session holds something that a native one does not have: a
        # transaction, or a search path set at run time.
        def bound?(pool)
          return true if pinned?(pool)

          connection = pool.active_connection?
          return false unless connection

          connection.transaction_open? || begun?(connection) || SearchPathWatch.changed?(connection)
        end

        # What Rails does for transactional tests: every thread is to see the test's transaction.
        def pinned?(pool)
          pool.instance_variable_get(:@pinned_connection)
        end

        # ActiveRecord counts the transactions that it began itself; the connection knows of a bare BEGIN.
        def begun?(connection)
          # ActiveRecord's own reader would mark the connection as tampered with.
          raw = connection.instance_variable_get(:@raw_connection)
          raw.is_a?(PG::Connection) && !raw.finished? && raw.transaction_status != PG::PQTRANS_IDLE
        end

        def advice(error)
          case error
          when PG::UndefinedTable
            "HINT:  Presence needs its table: run `rails generate pgbus:add_presence` and `rails db:migrate`, and " \
            "see that its schema is in the search path.\n"
          when PG::UndefinedColumn
            "HINT:  Calls with connection_id: need the table's seat columns: run " \
            "`rails generate pgbus:add_presence_seats` and `rails db:migrate`.\n"
          end
        end
      end
    end
  end
end
