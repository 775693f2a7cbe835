# frozen_string_literal: true

require_relative "worker"

module Pgbus
  module Native
    class Streamer
      # Writes to a connection that the hub cannot write to: a socket whose TLS the web server does, or a body. Each has
      # a thread of its own, so that a client that does not read delays nobody else.
      class RubyWriter
        # Frames that may wait. A client that lets more come together is lost.
        LENGTH = 64

        # @param connection [Pgbus::Web::Streamer::Connection]
        # @param hub [Hub]
        # @param logger [Logger, nil]
        def initialize(connection, hub, logger)
          @connection = connection
          @hub = hub
          @queue = Thread::SizedQueue.new(LENGTH)
          next_frame = -> { @queue.pop&.then { |frame| [frame] } }
          @worker = Worker.new("pgbus writer", logger, next_frame) { |frame| write(frame) }
        end

        # @param frame [String]
        # @return [void]
        def push(frame)
          @queue.push(frame, true)
        rescue ThreadError
          # What waits is not written any more: it could take as long again for each frame.
          @connection.mark_dead!
          @hub.close(@connection.id)
        rescue ClosedQueueError
          nil # it has gone
        end

        # Closes the connection once what waits is written, in a thread of its own: that takes as long as the client
        # lets it, but no longer than the connection's deadline for each frame.
        #
        # @return [Thread]
        def close
          @queue.close
          Thread.new do
            @worker.join
            @connection.close
          end
        end

        private

        def write(frame)
          # The application may have closed it, of which nobody tells the hub.
          written = !@connection.dead? && @connection.write_sentinel(frame) == :ok
          @hub.close(@connection.id) unless written
        end
      end
    end
  end
end
