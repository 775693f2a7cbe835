# frozen_string_literal: true

require "json"

require_relative "streamer/event_reader"
require_relative "streamer/listening"
require_relative "streamer/member"
require_relative "streamer/registry"
require_relative "streamer/ruby_seats"
require_relative "streamer/ruby_writer"
require_relative "streamer/taken_socket"
require_relative "streamer/worker"

module Pgbus
  module Native
    # Keeps the SSE connections of a process: writes to them, notices when they go, and looks after their seats. The
    # core does that on threads of its own, without the GVL; what is the application's code runs on Ruby threads:
    # reports of presence changes on one, filters on another.
    #
    # Safe on any thread. It belongs to the process that started it: in a forked child it has no connections and takes
    # none, and {.current} is another one.
    class Streamer
      # Seconds in which {#shutdown!} is done, whatever clients and the database do.
      SHUTDOWN_SECONDS = 5

      # What happens on a connection when the application says nothing else.
      EVENT = "turbo-stream"
      private_constant :EVENT

      @lock = Mutex.new

      class << self
        # @return [Streamer] this process's, started when it is first asked for
        def current
          @lock.synchronize do
            @current = nil unless @process == ::Process.pid
            @process = ::Process.pid
            @current ||= new.start
          end
        end

        # @param streamer [Streamer, nil]
        def current=(streamer)
          @lock.synchronize do
            @process = ::Process.pid
            @current = streamer
          end
        end

        # Shuts this process's streamer down, if there is one.
        #
        # @return [void]
        def reset!
          streamer = @lock.synchronize do
            current = @current if @process == ::Process.pid
            @current = nil
            current
          end
          streamer&.shutdown!
          nil
        end

        # @param deadline [Float] of {.now}
        # @return [Float] seconds until then, and a moment if it has passed
        # @api private
        def left(deadline)
          [deadline - now, 0.1].max
        end

        # @return [Float] seconds of a clock that is never set
        # @api private
        def now
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        end
      end

      # @return [Registry, nil] who is connected; nil before {#start}
      attr_reader :registry

      # @param config [Object] pgbus's configuration
      # @param logger [Logger, nil]
      # @param filters [Pgbus::Streams::Filters] for `visible_to`
      def initialize(config: Pgbus.configuration, logger: Pgbus.logger, filters: Pgbus::Streams.filters)
        @config = config
        @logger = logger
        @filters = filters
        @lock = Mutex.new
        @ending = Mutex.new
      end

      # Starts its threads. More than one call is as good as one.
      #
      # @return [self]
      def start
        @lock.synchronize do
          next if @hub

          @hub = Hub.new(settings)
          @registry = Registry.new(@hub)
          @events = EventReader.new(@hub, @registry, @logger) { @lock.synchronize { leave_seats_to_ruby } }
          @workers = workers
          listen
        end
        self
      end

      # Takes a connection, whose client gets the `pgbus:connected` frame as soon as its seat is joined. A plain socket
      # is taken over; TLS of the web server's and bodies are written to from Ruby.
      #
      # @param connection [Pgbus::Web::Streamer::Connection]
      # @return [void]
      # @raise [IOError] after {#shutdown!}; the connection is left to the caller
      def register(connection)
        return if connection.dead?

        check_open

        member = Member.of(connection, @config, @logger)
        @lock.synchronize { choose_keeper } if member
        admitted = @registry.add(connection) && hand_over(connection, member)
        admitted || raise(IOError, "the streamer is shut down, or has a connection #{connection.id} already")
        nil
      end

      # Writes an event to all connections of a stream, in this process and, by NOTIFY, in the others. In a transaction
      # of ActiveRecord's it is done after the commit.
      #
      # @param stream [String] its name
      # @param html [String] the payload
      # @param event [String, nil] the event's name, "turbo-stream" if nil
      # @param exclude [String, Array<String>, nil] ids of connections that do not get it
      # @param visible_to [Symbol, nil] a filter, which is asked about each connection
      # @return [void]
      # @raise [IOError] after {#shutdown!}
      # @raise [PG::Error, ActiveRecord::ActiveRecordError] if the other processes cannot be told; then nobody is
      def broadcast(stream, html, event: nil, exclude: nil, visible_to: nil)
        check_open

        message = [stream.to_s, frame(event || EVENT, html), Array(exclude).map(&:to_s), visible_to&.to_s]
        after_commit { tell(Broadcast.new(*message)) }
        nil
      end

      # Tells all clients that it is over, lets the seats of this process leave, and closes the sockets, within
      # {SHUTDOWN_SECONDS}. More than one call is as good as one.
      #
      # @return [void]
      def shutdown!
        return unless @hub

        deadline = Streamer.now + SHUTDOWN_SECONDS
        # One waits for the hub's end, the others for that one; but not the application's code, for whose end it waits.
        return if @ending.locked? && @workers.any?(&:current?)

        @ending.synchronize do
          @hub.shut_down(SHUTDOWN_SECONDS - 1.0)
          @events.join(deadline)
          @workers.each { |worker| worker.join(Streamer.left(deadline)) }
        end
        nil
      end

      private

      def check_open
        raise IOError, "the streamer is not started" unless @hub
        raise IOError, "the streamer is shut down" if @hub.closed?
      end

      def settings
        {
          heartbeat: interval,
          write_deadline: seconds(setting(:streams_write_deadline_ms, 5000) / 1000.0),
          idle_timeout: seconds(setting(:streams_idle_timeout, 3600)),
          heartbeat_frame: Streams::Envelope.comment("heartbeat"),
          shutdown_frame: frame("pgbus:shutdown", JSON.generate({ reason: "worker_restart" }))
        }
      end

      def setting(name, default)
        (@config.public_send(name) if @config.respond_to?(name)) || default
      end

      def interval
        interval = seconds(setting(:streams_heartbeat_interval, 15))
        return interval if interval.positive?

        raise ArgumentError, "streams_heartbeat_interval must be a positive number of seconds (got #{interval})"
      end

      # No longer than what can be added to any time, though an application may say infinity.
      def seconds(number)
        [number.to_f, 1e9].min
      end

      # An event that is no place in the stream has no id.
      def frame(event, data)
        Streams::Envelope.message(id: 0, event:, data:).delete_prefix("id: 0\n")
      end

      # For what is the application's code.
      def workers
        [
          worker("pgbus presence changes", :next_changes) { |change| report(*change) },
          worker("pgbus filters", :next_questions) { |question| answer(*question) }
        ]
      end

      def worker(name, source, &)
        Worker.new(name, @logger, @hub.method(source), application: true, &)
      end

      # Native connections look after the seats, unless the outcome would be another one.
      def choose_keeper
        database = Route.background_database
        return leave_seats_to_ruby unless database
        return if @keeper.equal?(database)

        @hub.keep_seats(database)
        @keeper = database
      end

      def leave_seats_to_ruby
        return if @keeper == :ruby

        RubySeats.start(@hub, @logger)
        @keeper = :ruby
      end

      def hand_over(connection, member)
        admitted = connection.io.is_a?(BasicSocket) ? take_over(connection, member) : write_to(connection, member)
      ensure
        unless admitted
          # The hub has it already if the thread was interrupted after that.
          @hub.close(connection.id)
          @registry.remove(connection.id)
        end
      end

      # The descriptor is copied, so Ruby's can be closed.
      def take_over(connection, member)
        connection.mutex.synchronize do
          socket = connection.io
          next unless admit(connection, member, [socket.fileno, true])

          TakenSocket.replace(connection, @hub)
          socket.close
          true
        end
      end

      def write_to(connection, member)
        @events.add_writer(connection.id, RubyWriter.new(connection, @hub, @logger))
        # A body has something for it, too, but that is no IO.
        socket = connection.io.to_io if connection.io.respond_to?(:to_io)
        admitted = admit(connection, member, ([socket.fileno, false] if socket.is_a?(::IO)))
        connection.io.on_close { @hub.close(connection.id) } if connection.io.respond_to?(:on_close)
        admitted
      ensure
        @events.remove_writer(connection.id)&.close unless admitted
      end

      def admit(connection, member, socket)
        greeting = Streams::Envelope.connected(id: connection.id)
        @hub.register(connection.id, connection.stream_name, member, greeting, socket)
      end

      def tell(broadcast)
        check_open
        Route.run(Statements::NOTIFY, [@hub.message(broadcast)])
        @hub.broadcast(broadcast) || raise(IOError, "the streamer is shut down")
      end

      def after_commit(&)
        return yield unless defined?(ActiveRecord) && ActiveRecord.respond_to?(:after_all_transactions_commit)

        ActiveRecord.after_all_transactions_commit(&)
      end

      def listen
        database = Listening.database(@config)
        return @hub.listen(database) if database

        @logger&.info("[pgbus_native] streamer: broadcasts of other processes do not arrive, since they come on a " \
                      "native connection")
      rescue StandardError => e
        @logger&.error("[pgbus_native] streamer: broadcasts of other processes do not arrive: #{e.class}: #{e.message}")
      end

      def report(type, *seat)
        return expire if type == :expire

        stream, connection_id, member_id, seat = seat
        record = { "connection_id" => connection_id, "seat" => seat, "id" => member_id }
        Streams::Presence.report_change(stream, type, record)
      end

      # A ttl below the interval of heartbeats would make all seats expire.
      def expire
        return unless @config.respond_to?(:presence_ttl_for)

        min_ttl = setting(:presence_min_ttl, setting(:streams_heartbeat_interval, 15))
        Streams::Presence.expire_seats!(ttl_for: @config.method(:presence_ttl_for), min_ttl:)
      rescue PG::ConnectionBad, ActiveRecord::ConnectionNotEstablished => e
        # An outage is in the log already, once.
        @logger&.debug { "[pgbus_native] streamer: no seats are expired: #{e.message}" }
      end

      def answer(question, filter, ids)
        label = filter.to_sym
        visible = ids.select do |id|
          connection = @registry[id]
          connection && @filters.visible?(label, connection.context)
        end
      ensure
        @hub.answer(question, visible || [])
      end
    end
  end
end
