# frozen_string_literal: true

module Bench
  module Streamer
    # The connections of a {PlainStreamer}, by id and by stream. Safe on any thread.
    class PlainRegistry
      def initialize
        @mutex = Mutex.new
        @by_id = {}
        @by_stream = {}
      end

      def add(connection)
        @mutex.synchronize do
          @by_id[connection.id] = connection
          (@by_stream[connection.stream_name] ||= {})[connection.id] = connection
        end
      end

      # @return [Object, nil] the connection, if it was there
      def remove(connection)
        @mutex.synchronize do
          stream = @by_stream[connection.stream_name]
          stream&.delete(connection.id)
          @by_stream.delete(connection.stream_name) if stream && stream.empty?
          @by_id.delete(connection.id)
        end
      end

      def size
        @mutex.synchronize { @by_id.size }
      end

      # @return [Array] a copy
      def connections
        @mutex.synchronize { @by_id.values }
      end

      # @return [Array] a copy
      def connections_for(stream_name)
        @mutex.synchronize { (@by_stream[stream_name] || {}).values }
      end
    end
  end
end
