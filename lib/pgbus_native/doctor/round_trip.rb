# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # How long the smallest call takes on each route.
      class RoundTrip < TableCheck
        NAME = "round trip"

        TIMES = 5
        # Seconds. A server in the same place answers in a tenth of it.
        SLOW = 0.02
        private_constant :TIMES

        private

        def examine
          measure("active_record") { app.raw.exec("SELECT 1") }
          measure("native") { app.native.run(Statements::COUNT, [app.stream]) } if app.native
        end

        def measure(route, &)
          yield # The first one plans.
          median = Array.new(TIMES) { seconds(&) }.sort[TIMES / 2]
          message = "#{milliseconds(median)} ms on the #{route} route"
          return ok(message, route:, milliseconds: milliseconds(median)) if median < SLOW

          warning(message, "every call waits at least so long: see that the server is near and not overloaded",
                  route:, milliseconds: milliseconds(median))
        end
      end
    end
  end
end
