# frozen_string_literal: true

require_relative "configured_database"

module Pgbus
  module Native
    # The line in a Rails application's log that says at boot whether presence is native and why, for which pgbus, on
    # which database. It holds no user name, no password and no URL, and it stops no boot.
    #
    # @api private
    class BootLine
      # A URL whose one "@" ends its user and password. In any other one a password that is not escaped may be taken
      # for a host, a port or a database.
      SAFE_URL = %r{\A[^@]*\z|\A[\w+.-]+://[^@/?#]*@[^@]*\z}

      # libpq takes such a database's name for a whole connection string.
      CONNECTION_STRING = %r{=|://}

      private_constant :SAFE_URL, :CONNECTION_STRING

      # @param application [Rails::Application]
      def initialize(application)
        @application = application
      end

      # @param logger [Logger, nil]
      # @return [void]
      def log(logger)
        logger&.public_send(Native.status == :other_version ? :warn : :info, to_s)
      end

      # @return [String]
      def to_s
        "[pgbus_native] #{state}; #{database}"
      end

      private

      def state
        case Native.status
        when :installed then "native: pgbus_native #{VERSION} #{whose}, route #{Native.configuration.route}"
        when :off then "not native: PGBUS_NATIVE=0 leaves #{pgbus} as it is"
        when :other_version then "not native: pgbus_native #{VERSION} follows pgbus 0.18 and leaves #{pgbus} as it is"
        end
      end

      def whose
        forced = " (PGBUS_NATIVE=force)" if ENV["PGBUS_NATIVE"] == "force"
        defined?(Pgbus::VERSION) ? "for #{pgbus}#{forced}" : "without pgbus"
      end

      def pgbus
        defined?(Pgbus::VERSION) ? "pgbus #{Pgbus::VERSION}" : "pgbus"
      end

      def database
        return "no ActiveRecord in this application" unless defined?(::ActiveRecord::Railtie)

        config = ConfiguredDatabase.for(@application)
        name = "database #{config.name.inspect}"
        place = [config.adapter, *place(config)].compact.join(", ")
        [place.empty? ? name : "#{name}: #{place}", *served(config)].join(", ")
      rescue StandardError => e
        # Its message may quote a URL with the password.
        "the database's settings cannot be read (#{e.class})"
      end

      # What the settings leave open is libpq's to decide, and is not said.
      def place(config)
        return ["in a URL with characters that should be escaped"] if misread?(config)

        host, hostaddr, port, name = config.configuration_hash.values_at(:host, :hostaddr, :port, :database)
        name = "in a connection string" if CONNECTION_STRING.match?(name.to_s)
        { "host" => host || hostaddr, "port" => port, "database" => name }.compact.map { |pair| pair.join(" ") }
      end

      def misread?(config)
        config.respond_to?(:url) && !SAFE_URL.match?(config.url.to_s)
      end

      def served(config)
        return unless Native.enabled? && !config.adapter.to_s.start_with?("postg")

        "not PostgreSQL's adapter, so on ActiveRecord's connection"
      end
    end
  end
end
