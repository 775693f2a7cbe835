# frozen_string_literal: true

require_relative "active_record_route"

module Pgbus
  module Native
    # Which connection runs a call: a native one, or ActiveRecord's where the outcome would otherwise differ.
    # Deciding it leases no connection.
    module Route
      class << self
        # @return [Database, ActiveRecordRoute] what answers `run(statement, params)`
        # @raise [Pgbus::ConfigurationError] without ActiveRecord
        def current
          pool = connection_class.connection_pool
          return ActiveRecordRoute.new(pool) unless native?(pool)

          Databases.for(pool) || ActiveRecordRoute.new(pool)
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
          when :auto then !in_transaction?(pool)
          when :native then true
          else false
          end
        end

        # Whether the caller has a transaction open on this database. ActiveRecord counts the ones that it has
        # begun, also those it has not sent yet; the connection itself knows of a bare BEGIN.
        def in_transaction?(pool)
          return true if pool.instance_variable_get(:@pinned_connection)

          connection = pool.active_connection?
          return false unless connection
          return true if connection.transaction_open?

          # ActiveRecord's own reader would mark the connection as tampered with.
          raw = connection.instance_variable_get(:@raw_connection)
          raw.is_a?(PG::Connection) && !raw.finished? && raw.transaction_status != PG::PQTRANS_IDLE
        end
      end
    end
  end
end
