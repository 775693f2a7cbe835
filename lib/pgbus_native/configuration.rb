# frozen_string_literal: true

module Pgbus
  module Native
    # Settings of the gem, for one process and the children it forks.
    class Configuration
      # What {#route} may be.
      ROUTES = %i[auto native active_record].freeze

      # @return [Integer] the most native connections for each database, 4 by default
      attr_reader :pool_size

      # @return [Float, Integer] seconds that a call waits for a free connection, 5 by default
      attr_reader :checkout_timeout

      # @return [Float, Integer] seconds for which a call may keep the GVL while it waits for the server, 0.001 by
      #   default, 0 for never. It does so only while another thread computes, which makes the GVL slow to come
      #   back, and only while the server answers in time.
      attr_reader :gvl_grace

      # @return [Symbol] `:auto`: native unless the outcome would differ; `:active_record`: always
      #   ActiveRecord's connection; `:native`: always native, also inside a transaction, for comparisons
      attr_reader :route

      # @return [Boolean] whether the native streamer takes the place of pgbus's, false by default. Without pgbus there
      #   is no other.
      attr_accessor :streamer

      # @param route [Symbol]
      # @raise [ArgumentError] unless it is one of {ROUTES}
      def self.check_route(route)
        return if ROUTES.include?(route)

        raise ArgumentError, "route must be one of #{ROUTES.map(&:inspect).join(", ")} (got #{route.inspect})"
      end

      def initialize
        @pool_size = 4
        @checkout_timeout = 5
        @gvl_grace = 0.001
        @route = :auto
        @streamer = false
      end

      # @param size [Integer] at least 1
      # @raise [ArgumentError]
      def pool_size=(size)
        unless size.is_a?(Integer) && size.positive?
          raise ArgumentError, "pool_size must be a positive Integer (got #{size.inspect})"
        end

        @pool_size = size
      end

      # @param seconds [Numeric]
      # @raise [ArgumentError]
      def checkout_timeout=(seconds)
        unless seconds.is_a?(Numeric) && seconds.positive?
          raise ArgumentError, "checkout_timeout must be a positive number of seconds (got #{seconds.inspect})"
        end

        @checkout_timeout = seconds
      end

      # @param seconds [Numeric] at most 0.01: other threads stand still meanwhile
      # @raise [ArgumentError]
      def gvl_grace=(seconds)
        unless seconds.is_a?(Numeric) && seconds.between?(0, 0.01)
          raise ArgumentError, "gvl_grace must be a number of seconds from 0 to 0.01 (got #{seconds.inspect})"
        end

        @gvl_grace = seconds
      end

      # @param route [Symbol]
      # @raise [ArgumentError]
      def route=(route)
        self.class.check_route(route)
        @route = route
      end
    end
  end
end
