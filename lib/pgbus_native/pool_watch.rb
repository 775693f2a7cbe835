# frozen_string_literal: true

require "active_support"
require "active_support/lazy_load_hooks"

module Pgbus
  module Native
    # Closes the native connections with ActiveRecord's, when a pool is told to disconnect: before a fork, before a
    # database is dropped, when another one is established. Prepended to ActiveRecord's connection pool.
    #
    # A pool also knows the native route to its database, so that finding it is quick and it goes with the pool.
    module PoolWatch
      # @return [NativeRoute, nil]
      # @api private
      attr_accessor :pgbus_native_route

      # The adapter's own, then the same for the native connections that no call is using.
      #
      # @return [Object] what the pool's own returns
      def disconnect!(...)
        super.tap { Databases.disconnect(db_config) }
      end
    end
  end
end

ActiveSupport.on_load(:active_record) do
  ActiveRecord::ConnectionAdapters::ConnectionPool.prepend(Pgbus::Native::PoolWatch)
end
