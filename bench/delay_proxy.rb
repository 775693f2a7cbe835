# frozen_string_literal: true

require_relative "program"

module Bench
  # A process that forwards to the server and delays both directions.
  module DelayProxy
    # Yields the port on this machine that it listens on.
    #
    # @param microseconds [Integer] for each direction
    def self.open(host, port, microseconds)
      process = IO.popen([File.join(Program::EXAMPLES, "delay"), host, port.to_s, microseconds.to_s], "r+")
      yield Integer(process.gets)
    ensure
      process&.close
    end
  end
end
