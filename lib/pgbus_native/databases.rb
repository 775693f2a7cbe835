# frozen_string_literal: true

require_relative "connection_settings"
require_relative "pool_watch"

module Pgbus
  module Native
    # The native databases of this process, one for each ActiveRecord database configuration and
    # `default_timezone` in use.
    module Databases
      @lock = Mutex.new
      # By database configuration, then by time zone; a configuration that ActiveRecord drops takes its native
      # connections with it.
      @databases = ObjectSpace::WeakKeyMap.new
      @unsupported = ObjectSpace::WeakKeyMap.new

      class << self
        # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool]
        # @return [Database, nil] nil if the native client cannot serve it; that is warned of once
        # @raise [ActiveRecord::ConnectionNotEstablished] if the settings lead nowhere
        def for(pool)
          db_config = pool.db_config
          time_zone = ActiveRecord.default_timezone
          databases = @databases[db_config]
          if databases&.key?(time_zone)
            databases[time_zone]
          else
            @lock.synchronize { find_or_make(db_config, time_zone) }
          end
        end

        # Closes the unused connections of a database; the next call connects again.
        #
        # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @return [void]
        def disconnect(db_config)
          @databases[db_config]&.each_value { |database| database&.close_idle }
        end

        # @return [Hash{Symbol => Integer}] the sums of {Database#stats}
        def stats
          all.map(&:stats).reduce({}) do |sums, stats|
            sums.merge(stats) { |_, sum, figure| sum + figure }
          end
        end

        private

        def find_or_make(db_config, time_zone)
          # A Hash is replaced, not changed: readers hold no lock.
          databases = @databases[db_config] || {}
          return databases[time_zone] if databases.key?(time_zone)

          database = make(db_config, time_zone)
          @databases[db_config] = databases.merge(time_zone => database)
          database
        end

        def make(db_config, time_zone)
          unless db_config.adapter.start_with?("postg")
            raise UnsupportedError, "the adapter is #{db_config.adapter}, not a PostgreSQL one"
          end

          settings = ConnectionSettings.new(db_config, time_zone)
          configuration = Native.configuration
          Database.new(settings.keywords, settings.session, {
                         prepared_statements: settings.prepared_statements?,
                         pool_size: configuration.pool_size,
                         checkout_timeout: configuration.checkout_timeout.to_f,
                         gvl_grace: configuration.gvl_grace.to_f,
                         local_times: time_zone == :local
                       })
        rescue UnsupportedError => e
          warn_once(db_config, e)
          nil
        end

        def warn_once(db_config, error)
          return if @unsupported.key?(db_config)

          @unsupported[db_config] = true
          Pgbus.logger&.warn("[pgbus_native] database #{db_config.name.inspect} is served on ActiveRecord's " \
                             "connection: #{error.message}")
        end

        def all
          # WeakKeyMap does not enumerate; pools name the configurations in use.
          return [] unless defined?(ActiveRecord::Base)

          ActiveRecord::Base.connection_handler.connection_pool_list(:all).flat_map do |pool|
            (@databases[pool.db_config] || {}).values.compact
          end.uniq
        end
      end
    end
  end
end
