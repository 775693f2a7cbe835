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

      # The adapter's writer, which keeps what it has set.
      def schema_search_path=(path)
        super
        @pgbus_native_search_path_set = false
      end

      private

      def configure_connection
        super
        @pgbus_native_search_path_set = false
      end

      # Every statement passes here.
      def log(sql, *, **)
        @pgbus_native_search_path_set = true if sets_search_path?(sql)
        super
      end

      def sets_search_path?(sql)
        (sql.include?("search_path") || sql.include?("SEARCH_PATH")) && !sql.match?(/\A\s*SHOW\b/i)
      end
    end
  end
end

ActiveSupport.on_load(:active_record_postgresqladapter) { prepend Pgbus::Native::SearchPathWatch }
