# frozen_string_literal: true

require "active_support"
require "active_support/lazy_load_hooks"

module Pgbus
  module Native
    # Notices on an ActiveRecord connection that its schema search path has been changed at run time, as apps
    # with a schema for each tenant do. Prepended to the PostgreSQL adapter, since the server tells nobody.
    module SearchPathWatch
      # Whether the session may look into other schemas than the database configuration says.
      #
      # @param connection [ActiveRecord::ConnectionAdapters::PostgreSQLAdapter]
      # @return [Boolean]
      def self.changed?(connection)
        return true if connection.instance_variable_get(:@pgbus_native_search_path_set)

        current = connection.instance_variable_get(:@schema_search_path)
        return false unless current

        config = connection.pool.db_config.configuration_hash
        current != (config[:schema_search_path] || config[:schema_order])
      end

      # The adapter's reader: with nothing configured it asks the server and keeps the answer, which changes
      # nothing about the session.
      def schema_search_path
        known = @schema_search_path
        return known if known

        path = super
        @schema_search_path = nil unless @config[:schema_search_path] || @config[:schema_order]
        path
      end

      # The adapter's writer keeps what it has set, so that {SearchPathWatch.changed?} can compare it. Not every
      # call sends a statement, and what is set in a transaction may be rolled back.
      def schema_search_path=(path)
        known = @pgbus_native_search_path_set
        @pgbus_native_search_path_set = false
        super
        @pgbus_native_search_path_set = @pgbus_native_search_path_set ? transaction_open? : known
      end

      private

      # What SQL can change the path with.
      CHANGES = /search_path|\bset\s+(?:session\s+|local\s+)?schema\b|\b(?:reset|discard)\s+all\b/i
      READS = /\A\s*show\b/i
      private_constant :CHANGES, :READS

      def configure_connection
        super
        @pgbus_native_search_path_set = false
      end

      # Every statement passes here. The connection may be made inside, and be set up anew.
      def log(sql, *, **)
        super
      ensure
        @pgbus_native_search_path_set = true if sql.match?(CHANGES) && !sql.match?(READS)
      end
    end
  end
end

ActiveSupport.on_load(:active_record_postgresqladapter) { prepend Pgbus::Native::SearchPathWatch }
