# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # Prepended to pgbus's Pgbus::Web::Streamer: with `Pgbus::Native.configure { |c| c.streamer = true }` the native
      # streamer is the current one.
      module Takeover
        # @return [Streamer, Object] pgbus's own without that setting
        def current(**)
          Native.configuration.streamer ? Streamer.current : super
        end

        # Shuts down whichever there is.
        #
        # @return [void]
        def reset!
          Streamer.reset!
          super
        end
      end
    end
  end
end
