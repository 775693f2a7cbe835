# frozen_string_literal: true

module Pgbus
  module Native
    # Runs statements on the connection that ActiveRecord has for the calling thread or fiber, as part of its
    # transaction if there is one.
    class ActiveRecordRoute
      @calls = 0
      @lock = Mutex.new

      class << self
        # @return [Integer] calls made on this route in this process
        attr_reader :calls

        # @api private
        def count
          @lock.synchronize { @calls += 1 }
        end
      end

      # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool]
      def initialize(pool)
        @pool = pool
      end

      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>]
      # @return [Array<Hash>, Array<String>, Integer] as {Database#run} does
      # @raise [PG::Error] as the server refuses
      def run(statement, params)
        self.class.count
        @pool.with_connection do |connection|
          # Threads may share a pinned connection; libpq takes one statement at a time.
          connection.lock.synchronize do
            build(statement, connection.raw_connection.exec_params(statement.sql, encode(params)))
          end
        end
      end

      private

      def encode(params)
        params.map { |param| param.is_a?(Array) ? Streams::Presence.text_array(param) : param }
      end

      def build(statement, result)
        case statement.returns
        when :records then result.map { |row| record(row) }
        when :texts then result.column_values(0)
        when :number then result.getvalue(0, 0)
        when :changes then result.cmd_tuples
        end
      end

      def record(row)
        record = Streams::Presence::Record.build(row)
        record["stream_name"] = row["stream_name"] if row.key?("stream_name")
        record
      end
    end
  end
end
