# frozen_string_literal: true

require_relative "connection_settings"
require_relative "native_route"
require_relative "pool_watch"
require_relative "totals"

module Pgbus
  module Native
    # The native databases of this process, one for each ActiveRecord database configuration and
    # `default_timezone` in use.
    module Databases
      # Seconds after which the native client tries again what it could not do: certificates and a server's rules
      # change.
      SECOND_TRY = 60

      # What is known for one configuration and time zone. `database` is nil while ActiveRecord serves it, which
      # is `until` a time of {now}; `keywords` are those that `database` was made with.
      Entry = Struct.new(:database, :keywords, :until) do
        def current?
          database || Databases.now < self.until
        end
      end
      private_constant :Entry

      @lock = Mutex.new
      # By database configuration, then by time zone; a configuration that ActiveRecord drops takes its native
      # connections with it.
      @entries = ObjectSpace::WeakKeyMap.new
      @warned = ObjectSpace::WeakKeyMap.new
      @totals = Totals.new
      # How often something has changed: routes of an earlier edition are looked up again.
      @edition = 0

      class << self
        # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool]
        # @return [NativeRoute, nil] nil if the native client cannot serve it; that is warned of once
        # @raise [ActiveRecord::ConnectionNotEstablished] if the settings lead nowhere
        def for(pool)
          time_zone = ActiveRecord.default_timezone
          route = pool.pgbus_native_route
          return route if route&.fits?(time_zone, @edition)

          edition = @edition
          entry = @lock.synchronize { find_or_make(pool.db_config, time_zone) }
          return unless entry.database

          pool.pgbus_native_route = NativeRoute.new(entry.database, pool, time_zone, edition)
        end

        # Leaves a database to ActiveRecord, for {SECOND_TRY} seconds.
        #
        # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @param error [UnsupportedError] why; warned of once
        # @return [void]
        def give_up(db_config, error)
          @lock.synchronize do
            @totals.counters
            keep(db_config, ActiveRecord.default_timezone, unsupported(db_config, error))
          end
        end

        # Whether the settings lead elsewhere than when the database was made: the environment, the service file or
        # the password file has changed, which ActiveRecord reads for each connection. If so, {.for} makes another.
        #
        # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @param database [Database]
        # @return [Boolean]
        def outdated?(db_config, database)
          @lock.synchronize do
            time_zone, entry = @entries[db_config]&.find { |_, known| known.database.equal?(database) }
            # Another thread may have found out first.
            return true unless entry
            return false if keywords(db_config, time_zone) == entry.keywords

            @totals.counters
            @entries[db_config] = @entries[db_config].except(time_zone)
            @edition += 1
            true
          end
        end

        # Closes the unused connections of a database; the next call connects again.
        #
        # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @return [void]
        def disconnect(db_config)
          # ActiveRecord may be about to drop the configuration.
          @totals.counters
          @entries[db_config]&.each_value { |entry| entry.database&.close_idle }
        end

        # @return [Hash{Symbol => Integer}] the sums of {Database#stats}: what is now, of the databases in use; what is
        #   counted, of those dropped since, too
        def stats
          sums = all.map(&:stats).reduce({}) do |sum, stats|
            sum.merge(stats) { |_, one, other| one + other }
          end
          sums.merge(@totals.counters)
        end

        # @return [Float] seconds of a clock that is never set
        # @api private
        def now
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        end

        private

        def find_or_make(db_config, time_zone)
          entry = @entries[db_config]&.fetch(time_zone, nil)
          return entry if entry&.current?

          keep(db_config, time_zone, make(db_config, time_zone))
        end

        def keep(db_config, time_zone, entry)
          # A Hash is replaced, not changed: readers hold no lock.
          @entries[db_config] = { **(@entries[db_config] || {}), time_zone => entry }
          @edition += 1
          entry
        end

        def make(db_config, time_zone)
          unless db_config.adapter.start_with?("postg")
            raise UnsupportedError, "the adapter is #{db_config.adapter}, not a PostgreSQL one"
          end

          settings = ConnectionSettings.new(db_config, time_zone)
          keywords = settings.keywords
          database = Database.new(keywords, settings.session, options(settings, time_zone))
          Entry.new(@totals.follow(database), keywords)
        rescue UnsupportedError => e
          unsupported(db_config, e)
        end

        # As they are now; nil if the native client cannot serve them any more.
        def keywords(db_config, time_zone)
          ConnectionSettings.new(db_config, time_zone).keywords
        rescue UnsupportedError
          nil
        end

        def options(settings, time_zone)
          configuration = Native.configuration
          {
            prepared_statements: settings.prepared_statements?,
            pool_size: configuration.pool_size,
            checkout_timeout: configuration.checkout_timeout.to_f,
            gvl_grace: configuration.gvl_grace.to_f,
            local_times: time_zone == :local
          }
        end

        def unsupported(db_config, error)
          unless @warned.key?(db_config)
            @warned[db_config] = true
            Pgbus.logger&.warn("[pgbus_native] database #{db_config.name.inspect} is served on ActiveRecord's " \
                               "connection: #{error.message}")
          end
          Entry.new(nil, nil, now + SECOND_TRY)
        end

        def all
          # WeakKeyMap does not enumerate; pools name the configurations in use.
          return [] unless defined?(ActiveRecord::Base)

          ActiveRecord::Base.connection_handler.connection_pool_list(:all).flat_map do |pool|
            (@entries[pool.db_config] || {}).values.filter_map(&:database)
          end.uniq
        end
      end
    end
  end
end
