# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # The thread that does what the hub asks for, or has it done by those who may take their time.
      class EventReader
        # @param hub [Hub]
        # @param registry [Registry]
        # @param workers [Hash{Symbol => Worker}] who gets which events, by their first element
        # @param logger [Logger, nil]
        # @yield when the seats have to be looked after from Ruby
        def initialize(hub, registry, workers, logger, &take_seats)
          @hub = hub
          @registry = registry
          @workers = workers
          @logger = logger
          @handlers = { gone: method(:gone), write: method(:write), log: method(:log), take_seats: }
          @writers = {}
          @closing = []
          @thread = Thread.new { run }
          @thread.name = "pgbus streamer"
        end

        # Before its connection is given to the hub.
        #
        # @param id [String] the connection's
        # @param writer [RubyWriter]
        # @return [void]
        def add_writer(id, writer)
          @writers[id] = writer
        end

        # @param id [String]
        # @return [RubyWriter, nil]
        def remove_writer(id)
          @writers.delete(id)
        end

        # Waits until the hub has ended, and all connections are closed.
        #
        # @param deadline [Float] of the monotonic clock, seconds
        # @return [void]
        def join(deadline)
          @thread.join(Streamer.left(deadline))
          @closing.each { |thread| thread.join(Streamer.left(deadline)) }
          nil
        end

        private

        def run
          while (events = @hub.next_events)
            events.each { |event| obey(*event) }
          end
        rescue StandardError => e
          @logger&.error { "[pgbus_native] #{Thread.current.name}: #{e.class}: #{e.message}" }
        end

        def obey(event, *details)
          handler = @handlers[event]
          handler ? handler.call(*details) : @workers[event]&.<<([event, *details])
        end

        def write(id, frame)
          @writers[id]&.push(frame)
        end

        def log(level, text)
          @logger&.public_send(level, "[pgbus_native] streamer: #{text}")
        end

        def gone(id)
          connection = @registry.remove(id)
          writer = @writers.delete(id)
          return connection&.mark_dead! unless writer

          @closing.select!(&:alive?)
          @closing << writer.close
        end
      end
    end
  end
end
