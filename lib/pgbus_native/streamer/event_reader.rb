# frozen_string_literal: true

require_relative "worker"

module Pgbus
  module Native
    class Streamer
      # The thread that does what the hub wants done at once.
      class EventReader
        # @param hub [Hub]
        # @param registry [Registry]
        # @param logger [Logger, nil]
        # @yield when the seats have to be looked after from Ruby
        def initialize(hub, registry, logger, &take_seats)
          @registry = registry
          @logger = logger
          @writers = {}
          @closing = []
          handlers = { gone: method(:gone), write: method(:write), log: method(:log), take_seats: }
          @worker = Worker.new("pgbus streamer", logger, hub.method(:next_events)) do |name, *details|
            handlers[name]&.call(*details)
          end
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
          @worker.join(Streamer.left(deadline))
          # All of them may still be at it, so there is no moment for each.
          @closing.each { |thread| thread.join([deadline - Streamer.now, 0].max) }
          nil
        end

        private

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
