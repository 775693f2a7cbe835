# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # By way of which database a streamer hears what other processes broadcast. LISTEN needs a session of its own, so
      # a pooler that lends its sessions by transaction has to be passed by: pgbus has `streams_database_url`, or
      # `streams_host` and `streams_port`, for that.
      module Listening
        # @param config [Object] pgbus's configuration
        # @return [Database, nil] nil if the native client is not to be used, or cannot be
        # @raise [ActiveRecord::ConnectionNotEstablished, UnsupportedError] if the settings for it lead nowhere
        def self.database(config)
          usual = Route.background_database
          return unless usual

          settings = direct(config)
          settings ? make(settings) : usual
        end

        def self.direct(config)
          url, host, port = %i[streams_database_url streams_host streams_port].map do |name|
            config.public_send(name) if config.respond_to?(name)
          end
          return ActiveRecord::DatabaseConfigurations::UrlConfig.new(*names, url, {}) if url
          return unless host || port

          usual = Route.connection_class.connection_pool.db_config.configuration_hash
          ActiveRecord::DatabaseConfigurations::HashConfig.new(*names, usual.merge({ host:, port: }.compact))
        end

        def self.names
          [Route.connection_class.connection_pool.db_config.env_name, "pgbus_streams"]
        end

        def self.make(db_config)
          settings = ConnectionSettings.new(db_config, ActiveRecord.default_timezone)
          Database.new(settings.keywords, settings.session,
                       { prepared_statements: false, pool_size: 1, checkout_timeout: 5.0, gvl_grace: 0.0,
                         local_times: false })
        end

        private_class_method :direct, :names, :make
      end
    end
  end
end
