# frozen_string_literal: true

require "rbconfig"
require_relative "../plain_ruby"
require_relative "../program"

module Bench
  module Streamer
    # One of the streamers to be compared, or the limit, in a process of its own. {WebProcess} has the requests.
    class Side < Program
      LIMIT = "limit"
      LABELS = { "plain" => "plain Ruby streamer", "native" => "native streamer", LIMIT => "limit" }.freeze
      # The limit.
      PROGRAM = "sse_limit"

      # @return [Array<String>] those that can be measured here
      def self.names
        LABELS.keys - (PlainRuby.file ? [] : ["plain"])
      end

      # @return [Integer] where it accepts connections
      attr_reader :port

      # @param url [String] of the database
      # @param streams [Integer] presence streams; 0 for one stream without presence
      # @param interval [Numeric] seconds between heartbeats
      def initialize(name, url:, streams:, interval:)
        command = if name == LIMIT
                    [File.join(EXAMPLES, PROGRAM)]
                  else
                    [RbConfig.ruby, File.join(__dir__, "web_process.rb"), name, streams.to_s, interval.to_s]
                  end
        super(name, command, { "DATABASE_URL" => url })
        @port = numbers.first
      end

      # @return [Boolean] whether it is one, with seats and heartbeats
      def streamer?
        name != LIMIT
      end
    end

    # The clients of one side. examples/sse_clients.rs has the requests.
    class Clients < Program
      PROGRAM = "sse_clients"

      # @param side [Side]
      def initialize(side)
        super("the clients of #{side.name}", [File.join(EXAMPLES, PROGRAM), side.port.to_s])
      end
    end
  end
end
