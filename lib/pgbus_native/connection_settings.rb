# frozen_string_literal: true

require "pg"

module Pgbus
  module Native
    # What a native session needs so that it equals the one that ActiveRecord's PostgreSQL adapter opens for
    # the same database configuration.
    class ConnectionSettings
      # Where libpq looks for these, below the home directory, if it is not told. They need not exist.
      FILES = {
        sslcert: "postgresql.crt", sslkey: "postgresql.key", sslrootcert: "root.crt", sslcrl: "root.crl"
      }.freeze

      # Variables whose values libpq makes the session's defaults.
      SESSION_VARIABLES = { "PGDATESTYLE" => "datestyle", "PGTZ" => "timezone", "PGGEQO" => "geqo" }.freeze

      # Where a pg gem that brings its own libpq looks for a socket, since that libpq does not know the system's place.
      SOCKET_FOLDERS = "/var/run/postgresql,/run/postgresql,/tmp"

      private_constant :FILES, :SESSION_VARIABLES, :SOCKET_FOLDERS

      # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
      # @param default_timezone [Symbol] `:utc` or `:local`
      def initialize(db_config, default_timezone)
        @config = db_config.configuration_hash
        @default_timezone = default_timezone
      end

      # Connection keywords as libpq resolves them from the configuration, its environment variables, the
      # service file and the password file.
      #
      # @return [Hash{String => String}] `host`, `hostaddr` and `port` are lists if there are several hosts;
      #   `passwords` has a line for each host
      # @raise [ActiveRecord::ConnectionNotEstablished] if libpq cannot make sense of the settings
      # @raise [UnsupportedError] if the session is to have another encoding than UTF-8
      def keywords
        resolved = resolve(parameters, &:conninfo_hash).compact
        check_encoding(@config[:encoding] || resolved[:client_encoding])
        utf8({ **files, **resolved, **hosts(resolved), channel_binding: channel_binding })
      rescue PG::Error => e
        raise ActiveRecord::ConnectionNotEstablished, e.message
      end

      # What ActiveRecord tells a new session, in its order.
      #
      # @return [Array<Array>] `[name, :literal, value]`, `[name, :list, sql]` or `[name, :default, nil]`
      def session
        settings = environment.map { |name, value| [name, :literal, value] }
        settings << ["client_min_messages", :literal, (@config[:min_messages] || "warning").to_s]
        search_path = @config[:schema_search_path] || @config[:schema_order]
        settings << ["search_path", :list, search_path] if search_path
        settings << ["standard_conforming_strings", :literal, "on"]
        settings << ["intervalstyle", :literal, "iso_8601"]
        variables.each { |name, value| settings << variable(name, value) }
        settings << time_zone unless variables["timezone"]
        settings
      end

      # @return [Boolean] whether named prepared statements may be used
      def prepared_statements?
        value = @config.fetch(:prepared_statements, true)
        !(value == false || value.to_s == "false")
      end

      private

      # As the adapter and the pg gem pass them on: the adapter's own names translated, what libpq does not know
      # left out.
      def parameters
        @parameters ||= begin
          parameters = @config.compact
          parameters[:user] = parameters.delete(:username) if parameters[:username]
          parameters[:dbname] = parameters.delete(:database) if parameters[:database]
          parameters = parameters.slice(*defaults.keys)
          parameters = defaults.compact.merge(parameters) if defaults_given?
          parameters[:host] = SOCKET_FOLDERS if socket_folders?(defaults.compact.merge(parameters))
          parameters
        end
      end

      def defaults
        @defaults ||= PG::Connection.conndefaults_hash
      end

      # Older pg gems pass libpq's defaults on as if they had been given, so that they come before a service's values.
      def defaults_given?
        !PG::Connection.singleton_class.const_defined?(:RESOLUTION_KEYS)
      end

      def socket_folders?(parameters)
        defined?(PG::BUNDLED_LIBPQ_WITH_UNIXSOCKET) && PG::BUNDLED_LIBPQ_WITH_UNIXSOCKET &&
          parameters.values_at(:host, :hostaddr).all? { |value| value.to_s.empty? }
      end

      # Has libpq resolve the parameters, and gives what the block reads from the result. A value that it does
      # not know stops libpq after it has read its files, before it looks up a host or opens a socket.
      def resolve(parameters, stop: :channel_binding)
        connection = begin
          PG::Connection.connect_start(parameters.merge(stop => "none, only resolve"))
        rescue PG::ConnectionBad => e
          raise unless e.message.include?(stop.to_s)

          e.connection
        end
        yield connection
      ensure
        connection&.finish
      end

      def channel_binding
        resolve(parameters, stop: :sslmode, &:conninfo_hash)[:channel_binding]
      end

      # The password file may have another password for each host, and libpq tells only the first one's.
      def hosts(resolved)
        names, addresses, ports = resolved.values_at(:host, :hostaddr, :port).map { |list| list.to_s.split(",", -1) }
        servers = Array.new([names.size, addresses.size, 1].max) do |index|
          host = { host: names[index], hostaddr: addresses[index], port: ports[index] || ports.first }
          resolve(parameters.merge(host)) { |connection| server(host, connection) }
        end
        names, addresses, ports, passwords = servers.transpose
        { host: names.join(","), hostaddr: addresses.join(","), port: ports.join(","), passwords: passwords.join("\n") }
      end

      def server(host, connection)
        # A default host is none to libpq's parameters.
        name = host[:host].to_s.empty? && host[:hostaddr].to_s.empty? ? connection.host : host[:host]
        [name, host[:hostaddr], connection.port, connection.pass]
      end

      def files
        home = Dir.home
        FILES.transform_values { |name| File.join(home, ".postgresql", name) }
      rescue ArgumentError
        {} # No home directory.
      end

      def check_encoding(encoding)
        return if encoding.nil? || %w[utf8 unicode].include?(encoding.to_s.downcase.delete("^a-z0-9"))

        raise UnsupportedError, "the client encoding is #{encoding}, and the native client speaks UTF-8"
      end

      # libpq's answers are bytes.
      def utf8(keywords)
        keywords.compact.to_h do |keyword, value|
          value = value.to_s.dup.force_encoding(Encoding::UTF_8)
          raise UnsupportedError, "#{keyword} is not in UTF-8" unless value.valid_encoding?

          [keyword.to_s, value]
        end
      end

      def variables
        (@config[:variables] || {}).transform_keys(&:to_s).compact
      end

      def variable(name, value)
        return default(name) if [":default", :default].include?(value)

        [name, :literal, value.is_a?(BigDecimal) ? value.to_s("F") : value.to_s]
      end

      def time_zone
        @default_timezone == :utc ? ["timezone", :literal, "UTC"] : default("timezone")
      end

      # A native session learns the environment's values only after it has begun, so they are not its defaults.
      def default(name)
        value = environment[name.downcase]
        value ? [name, :literal, value] : [name, :default, nil]
      end

      def environment
        SESSION_VARIABLES.each_with_object({}) do |(variable, name), values|
          value = ENV.fetch(variable, nil)
          values[name] = value unless value.nil? || value.casecmp?("default")
        end
      end
    end
  end
end
