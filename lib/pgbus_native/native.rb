# frozen_string_literal: true

require_relative "configuration"
require_relative "installation"

module Pgbus
  # Everything that the gem pgbus_native adds beside the classes it takes over.
  #
  # All of it may be used from any thread and fiber, and after a fork.
  module Native
    # Raised inside the gem for a database that the native client cannot serve; such a database is served by
    # ActiveRecord's connection.
    class UnsupportedError < StandardError; end

    # The key of {with_route} in a fiber's storage.
    ROUTE = :pgbus_native_route
    private_constant :ROUTE

    @configuration = Configuration.new

    class << self
      # @return [Configuration] the settings in force
      attr_reader :configuration

      # @return [Symbol] why native code is in place or not: `:installed`, `:off` (PGBUS_NATIVE=0) or
      #   `:other_version` (a pgbus that this gem does not follow)
      attr_reader :status

      # Whether Pgbus::Streams::Presence runs on native code.
      #
      # @return [Boolean]
      def enabled?
        status == :installed
      end

      # Changes settings. Sizes and timeouts apply to databases that are first used afterwards.
      #
      # @yieldparam configuration [Configuration]
      # @return [void]
      def configure
        yield configuration
      end

      # Runs the block with another route than the configured one, in the calling fiber and the fibers and
      # threads that it starts.
      #
      # @param route [Symbol] `:auto`, `:native` or `:active_record`
      # @return [Object] what the block returns
      # @raise [ArgumentError] for any other route
      def with_route(route)
        Configuration.check_route(route)
        before = Fiber[ROUTE]
        Fiber[ROUTE] = route
        begin
          yield
        ensure
          Fiber[ROUTE] = before
        end
      end

      # The route in force here: that of {with_route}, else the configured one.
      #
      # @return [Symbol]
      def route
        Fiber[ROUTE] || configuration.route
      end

      # Figures of this process, over all its databases.
      #
      # @return [Hash{Symbol => Object}] `pool_size:` (connections allowed for each database),
      #   `connections:` (held now), `busy:` (of those, in use), `connects:` (connections made so far),
      #   `calls: { native:, active_record: }` (calls by route), `batched:` (calls that were run along in another
      #   one's statement) and `retries:` (statements repeated because their connection broke); all Integers
      def stats
        databases = enabled? ? Databases.stats : {}
        {
          pool_size: configuration.pool_size,
          connections: databases.fetch(:connections, 0),
          busy: databases.fetch(:busy, 0),
          connects: databases.fetch(:connects, 0),
          calls: {
            native: databases.fetch(:calls, 0),
            active_record: enabled? ? ActiveRecordRoute.calls : 0
          },
          batched: databases.fetch(:batched, 0),
          retries: databases.fetch(:retries, 0)
        }
      end

      # {stats} for a scrape: counters (`..._total`) only grow while a process lives, and start at zero in a forked
      # child.
      #
      # @return [String] Prometheus's text format, to be served as `text/plain; version=0.0.4`
      def prometheus
        require_relative "prometheus"
        Prometheus.text(stats)
      end

      # Looks at everything that presence depends on, connected as the app is, and says line by line what it finds
      # and what to do about it. Leaves nothing in the table and reports no change. Every failure becomes a line;
      # no password is shown.
      #
      # @param io [#puts] where the lines go
      # @param json [Boolean] one JSON object instead of lines
      # @return [Boolean] whether nothing is wrong: no line is a warning or an error
      def doctor(io: $stdout, json: false)
        require_relative "doctor"
        Doctor.new(io:, json:).call
      end

      # Puts native code under Pgbus::Streams::Presence, unless the environment or pgbus's version forbids it.
      #
      # @return [Symbol] {status}
      # @raise [LoadError] if the extension is not built
      # @api private
      def install
        @status = Installation.new.call if status.nil?
        status
      end
    end
  end
end
