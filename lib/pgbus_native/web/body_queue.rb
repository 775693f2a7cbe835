# frozen_string_literal: true

require "protocol/http/body/writable"

module Pgbus
  # What answers HTTP requests for pgbus.
  module Web
    class StreamApp
      # The queue inside a streaming body: of bounded length, and whoever finds it full waits for so long and no longer.
      # A body's own queue would keep everything for a client that does not read.
      class BodyQueue < Thread::SizedQueue
        # Frames that may wait for a client.
        LENGTH = 64

        # Nothing was taken out in time. A kind of closed body, since that is what connections know: either way the
        # client is lost.
        class Full < ::Protocol::HTTP::Body::Writable::Closed; end

        # @param deadline_ms [Numeric] milliseconds
        def initialize(deadline_ms)
          super(LENGTH)
          @seconds = deadline_ms / 1000.0
        end

        # @param frame [String]
        # @return [BodyQueue]
        # @raise [Full] when there is no room in time
        # @raise [ClosedQueueError] when the server has stopped reading
        def push(frame)
          super(frame, timeout: @seconds) || raise(Full, "the client does not read")
        end
      end
      private_constant :BodyQueue
    end
  end
end
