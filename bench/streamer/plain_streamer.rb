# frozen_string_literal: true

require "pgbus_native/streams/envelope"
require_relative "plain_registry"

module Bench
  module Streamer
    # The yardstick: a streamer in plain Ruby, built as pgbus's is. One thread takes what happens from a queue
    # (connects, disconnects, broadcasts) and does one after the other, another one does the heartbeat, both with
    # write_nonblock on one socket after the other and one call of Presence after the other.
    #
    # It is spared what pgbus's does beside: reading a broadcast's text from a table, and asking filters.
    class PlainStreamer
      # The part of a stream that Presence uses.
      Room = Struct.new(:name) do
        def broadcast(html); end
      end

      # What a connection is given to write.
      Message = Data.define(:msg_id, :payload)

      attr_reader :registry

      # @param config [Settings]
      # @param logger [Logger]
      def initialize(config:, logger:)
        @config = config
        @logger = logger
        @registry = PlainRegistry.new
        @queue = Thread::Queue.new
        @broadcasts = 0
      end

      def start
        Thread.new { dispatch }
        Thread.new { beat_again_and_again }
        self
      end

      def register(connection)
        @queue << [:connect, connection]
      end

      def broadcast(stream_name, html)
        @queue << [:deliver, stream_name, html]
      end

      private

      # --- What happens, one after the other ---

      def dispatch
        loop { guarded { send(*@queue.pop) } }
      end

      def connect(connection)
        guarded { join(connection) } if seat?(connection)
        @registry.add(connection)
        greeting = Pgbus::Streams::Envelope.connected(id: connection.id)
        drop(connection) unless connection.write_sentinel(greeting) == :ok
      end

      def disconnect(connection)
        return unless @registry.remove(connection)

        connection.close
        presence(connection.stream_name).leave(connection_id: connection.id) if seat?(connection)
      end

      # As pgbus's, each connection makes the frame for itself.
      def deliver(stream_name, html)
        messages = [Message.new(@broadcasts += 1, html)]
        @registry.connections_for(stream_name).each do |connection|
          drop(connection) if connection.enqueue(messages).empty?
        end
      end

      # --- Heartbeat ---

      # By a schedule: what a heartbeat takes is no part of the interval.
      def beat_again_and_again
        due = now
        loop do
          due += @config.streams_heartbeat_interval
          sleep [due - now, 0].max
          guarded { beat }
        end
      end

      # A comment to each connection, then a touch for each stream, then seats of whoever does not come back.
      def beat
        @registry.connections.each do |connection|
          connection.mark_dead! if connection.idle_for > @config.streams_idle_timeout
          drop(connection) unless connection.write_comment("heartbeat #{now.to_i}") == :ok
        end
        seats = @registry.connections.select { |connection| seat?(connection) }
        seats.group_by(&:stream_name).each { |stream_name, connections| touch(stream_name, connections) }
        Pgbus::Streams::Presence.expire_seats!(ttl_for: @config.method(:presence_ttl_for),
                                               min_ttl: @config.presence_min_ttl)
      end

      # A seat that is gone although its connection lives is joined again.
      def touch(stream_name, connections)
        found = presence(stream_name).touch(connection_id: connections.map(&:id))
        return if found.size == connections.size

        found = found.to_set
        connections.each { |connection| join(connection) unless found.include?(connection.id) }
      end

      # --- Both ---

      def drop(connection)
        @queue << [:disconnect, connection]
      end

      def join(connection)
        member = @config.presence_member_for(connection.context)
        presence(connection.stream_name).join(member_id: member[:id], metadata: member[:metadata],
                                              connection_id: connection.id, seat: connection.seat)
      end

      def seat?(connection)
        @config.stream_presence?(connection.stream_name)
      end

      def presence(stream_name)
        Pgbus::Streams::Presence.new(Room.new(stream_name))
      end

      def guarded
        yield
      rescue StandardError => e
        @logger.error("the plain streamer: #{e.class}: #{e.message}")
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
