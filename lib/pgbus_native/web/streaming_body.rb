# frozen_string_literal: true

require "protocol/http/body/writable"

module Pgbus
  module Web
    class StreamApp
      # A streaming body of bounded length that tells when the server has closed it: its client has gone.
      class StreamingBody < ::Protocol::HTTP::Body::Writable
        # @param deadline_ms [Numeric] milliseconds that a frame may wait for the client to read
        def initialize(deadline_ms)
          super(queue: BodyQueue.new(deadline_ms))
        end

        # @yield once, when the server has closed the body; at once if it has already
        # @return [void]
        def on_close(&block)
          @on_close = block
          gone if closed?
        end

        # Called by the server.
        #
        # @param error [Exception, nil]
        # @return [void]
        def close(error = nil)
          super
          gone
        end

        private

        def gone
          on_close = @on_close
          @on_close = nil
          on_close&.call
        end
      end
      private_constant :StreamingBody
    end
  end
end
