# frozen_string_literal: true

require "pg"

module Pgbus
  module Native
    # What a native session needs so that it equals the one that ActiveRecord's PostgreSQL adapter opens for
    # the same database configuration.
    class ConnectionSettings
      # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
      # @param default_timezone [Symbol] `:utc` or `:local`
      def initialize(db_config, default_timezone)
        @config = db_config.configuration_hash
        @default_timezone = default_timezone
      end

      # Connection keywords as libpq resolves them from the configuration, its environment variables, the
      # service file and the password file. Its own resolution is used: a connection is begun and closed
      # before anything is said on it.
      #
      # @return [Hash{String => String}]
      # @raise [ActiveRecord::ConnectionNotEstablished] if libpq cannot make sense of the settings
      def keywords
        connection = PG::Connection.connect_start(parameters)
        begin
          resolved = connection.conninfo_hash.compact
          resolved[:host] ||= connection.host
          resolved[:port] ||= connection.port
          resolved[:password] ||= connection.pass unless connection.pass.to_s.empty?
          resolved.to_h { |keyword, value| [keyword.to_s, value.to_s] }
        ensure
          connection.finish
        end
      rescue PG::Error => e
        raise ActiveRecord::ConnectionNotEstablished, e.message
      end

      # What ActiveRecord tells a new session, in its order.
      #
      # @return [Array<Array>] `[name, :literal, value]`, `[name, :list, sql]` or `[name, :default, nil]`
      def session
        settings = [["client_min_messages", :literal, (@config[:min_messages] || "warning").to_s]]
        search_path = @config[:schema_search_path] || @config[:schema_order]
        settings << ["search_path", :list, search_path] if search_path
        settings << %w[standard_conforming_strings on].insert(1, :literal)
        settings << %w[intervalstyle iso_8601].insert(1, :literal)
        variables.each do |name, value|
          settings << (default?(value) ? [name, :default, nil] : [name, :literal, value.to_s])
        end
        settings << time_zone unless variables["timezone"]
        settings
      end

      # @return [Boolean] whether named prepared statements may be used
      def prepared_statements?
        value = @config.fetch(:prepared_statements, true)
        !(value == false || value.to_s == "false")
      end

      private

      # As the adapter passes them on: its own names translated, what libpq does not know left out.
      def parameters
        parameters = @config.compact
        parameters[:user] = parameters.delete(:username) if parameters[:username]
        parameters[:dbname] = parameters.delete(:database) if parameters[:database]
        parameters.slice(*PG::Connection.conndefaults_hash.keys)
      end

      def variables
        (@config[:variables] || {}).transform_keys(&:to_s).compact
      end

      def default?(value)
        [":default", :default].include?(value)
      end

      def time_zone
        @default_timezone == :utc ? ["timezone", :literal, "UTC"] : ["timezone", :default, nil]
      end
    end
  end
end
