# frozen_string_literal: true

require "pgbus"

module Bench
  module Streamer
    # What a streamer asks of pgbus's configuration: the same for both sides.
    class Settings < Pgbus::Configuration
      # Presence streams begin with it.
      ROOM = "room"
      # Seconds; shorter than any heartbeat's interval here times three would be wrong.
      TTL = 60
      METADATA = { "name" => "Ada Lovelace", "role" => "editor" }.freeze

      attr_reader :streams_heartbeat_interval

      # @param interval [Numeric] seconds between two heartbeats of a connection
      def initialize(interval)
        super()
        @streams_heartbeat_interval = interval
      end

      def stream_presence?(stream_name)
        stream_name.start_with?(ROOM)
      end

      # @param context [Integer] the connection's number
      def presence_member_for(context)
        { id: "member#{context}", metadata: METADATA }
      end

      def presence_ttl_for(_stream_name)
        TTL
      end

      def presence_min_ttl
        TTL
      end

      def streams_idle_timeout
        3600
      end

      def streams_write_deadline_ms
        5000
      end

      def streams_max_connections
        100_000
      end
    end
  end
end
