# frozen_string_literal: true

module Demo
  module Web
    # Seconds between two touches of a server's seats. Short, as is the ttl, so that the fading can be watched.
    HEARTBEAT = 1

    # Seconds that a seat stays without being touched.
    TTL = 5

    # What an application's initializer would set of pgbus's configuration, as far as the connection path asks for it.
    class Configuration
      attr_reader :streams_signed_name_secret

      # The block is called after each change of a room's presence, on the streamer's own thread.
      def initialize(secret:, server:, &on_change)
        @streams_signed_name_secret = secret
        @server = server
        @on_change = on_change
      end

      # Every stream has presence: there is only the one.
      def stream_presence?(_name) = true

      # @param guest [Guest] what the authorize hook answered for the connection
      def presence_member_for(guest)
        { id: guest.name, metadata: { colour: guest.colour, server: @server } }
      end

      def presence_ttl_for(_name) = TTL

      def notify_presence_change(_name, _change)
        @on_change.call
      end

      def streams_heartbeat_interval = HEARTBEAT
      def streams_idle_timeout = 3600
      def streams_write_deadline_ms = 5000
      def streams_max_connections = 500
      def streams_test_mode = false
      def streams_falcon_streaming_body = false
      # The demo gives StreamApp its hook, and everything is in one database.
      def streams_authorize = nil
      def connects_to = nil
    end
  end
end
