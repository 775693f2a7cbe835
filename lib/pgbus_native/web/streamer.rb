# frozen_string_literal: true

require_relative "../streamer"

module Pgbus
  module Web
    # Where StreamApp finds the streamer of its process.
    module Streamer
      class << self
        # @return [Pgbus::Native::Streamer] this process's, started when it is first asked for
        def current(**)
          Native::Streamer.current
        end

        # @param streamer [#register, #registry, #shutdown!, nil] one to be used from now on
        def current=(streamer)
          Native::Streamer.current = streamer
        end

        # Shuts this process's streamer down, if there is one. The next call of {.current} starts another.
        #
        # @return [void]
        def reset!
          Native::Streamer.reset!
        end
      end
    end
  end
end
