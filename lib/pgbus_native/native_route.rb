# frozen_string_literal: true

require_relative "outage_log"

module Pgbus
  module Native
    # Runs statements on a native connection; on ActiveRecord's if it turns out, in connecting, that the native
    # client cannot do what this server wants.
    class NativeRoute
      # @return [Database]
      attr_reader :database

      # @param database [Database]
      # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool] ActiveRecord's for the same database
      # @param time_zone [Symbol] the `default_timezone` that the database was made for
      # @param edition [Integer] of {Databases}' knowledge
      def initialize(database, pool, time_zone, edition)
        @database = database
        @pool = pool
        @time_zone = time_zone
        @edition = edition
      end

      # @param time_zone [Symbol]
      # @param edition [Integer]
      # @return [Boolean] whether this is still the way to the pool's database
      def fits?(time_zone, edition)
        @edition == edition && @time_zone == time_zone
      end

      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>]
      # @param details [Hash, nil] takes `:route`, `:batch_size` and `:retries`
      # @return [Array<Hash>, Array<String>, Integer] see {Database#run}
      # @raise [PG::Error, ActiveRecord::ActiveRecordError]
      def run(statement, params, details = nil)
        return @database.run(statement, params) unless details

        details[:route] = :native
        @database.run_with_details(statement, params, details)
      rescue UnsupportedError => e
        Databases.give_up(@pool.db_config, e)
        ActiveRecordRoute.new(@pool).run(statement, params, details)
      rescue ActiveRecord::ConnectionNotEstablished
        raise unless Databases.outdated?(@pool.db_config, @database)

        # Nothing was sent, or what has the same outcome when it is sent again.
        (Databases.for(@pool) || ActiveRecordRoute.new(@pool)).run(statement, params, details)
      ensure
        OutageLog.write(@pool.db_config.name, @database.news) if @database.news?
      end
    end
  end
end
