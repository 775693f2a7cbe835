# frozen_string_literal: true

module Pgbus
  module Native
    # Runs statements on a native connection; on ActiveRecord's if it turns out, in connecting, that the native
    # client cannot do what this server wants.
    class NativeRoute
      # @param database [Database]
      # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool] ActiveRecord's for the same database
      def initialize(database, pool)
        @database = database
        @pool = pool
      end

      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>]
      # @return [Array<Hash>, Array<String>, Integer] see {Database#run}
      # @raise [PG::Error, ActiveRecord::ActiveRecordError]
      def run(statement, params)
        @database.run(statement, params)
      rescue UnsupportedError => e
        Databases.give_up(@pool.db_config, e)
        ActiveRecordRoute.new(@pool).run(statement, params)
      rescue ActiveRecord::ConnectionNotEstablished
        raise unless Databases.outdated?(@pool.db_config, @database)

        # Nothing was sent, or what has the same outcome when it is sent again.
        (Databases.for(@pool) || ActiveRecordRoute.new(@pool)).run(statement, params)
      end
    end
  end
end
