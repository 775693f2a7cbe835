# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # In a connection in place of its socket, and of what writes to it, once the hub has both.
      class TakenSocket
        # Both classes of connections, pgbus's and this gem's, keep them in these variables.
        #
        # @param connection [Pgbus::Web::Streamer::Connection]
        # @param hub [Hub]
        # @return [void]
        def self.replace(connection, hub)
          taken = new(hub, connection.id)
          connection.instance_variable_set(:@io, taken)
          connection.instance_variable_set(:@writer, taken)
        end

        # @param hub [Hub]
        # @param id [String] the connection's
        def initialize(hub, id)
          @hub = hub
          @id = id
        end

        # Has the hub write the frame, behind those that wait; its deadline holds.
        #
        # @return [Symbol] `:ok`, or `:closed` if the connection has gone
        def write(_connection, bytes, deadline_ms: nil) # rubocop:disable Lint/UnusedMethodArgument -- as IoWriter.write
          @hub.write(@id, bytes) ? :ok : :closed
        end

        # @return [void]
        def close
          @hub.close(@id)
          nil
        end
      end
    end
  end
end
