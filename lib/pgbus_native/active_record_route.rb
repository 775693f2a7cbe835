# frozen_string_literal: true

module Pgbus
  module Native
    # Runs statements on the connection that ActiveRecord has for the calling thread or fiber, as part of its
    # transaction if there is one.
    class ActiveRecordRoute
      @calls = 0
      @process = ::Process.pid
      @lock = Mutex.new

      class << self
        # @return [Integer] calls made on this route in this process; a forked child counts from zero
        def calls
          @lock.synchronize { own_calls }
        end

        # Counts a call.
        #
        # @return [Integer] {.calls}
        # @api private
        def count
          @lock.synchronize { @calls = own_calls + 1 }
        end

        private

        def own_calls
          return @calls if @process == ::Process.pid

          @process = ::Process.pid
          @calls = 0
        end
      end

      # @param pool [ActiveRecord::ConnectionAdapters::ConnectionPool]
      def initialize(pool)
        @pool = pool
      end

      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>]
      # @param details [Hash, nil] takes `:route` and `:batch_size`
      # @return [Array<Hash>, Array<String>, Integer] as {Database#run} does
      # @raise [PG::Error] as the server refuses; PG::ConnectionBad if the connection is lost
      def run(statement, params, details = nil)
        self.class.count
        details&.update(route: :active_record, batch_size: 1)
        params = params.map { |param| param.is_a?(Array) ? array(param) : param }
        connection = lease
        # Threads may share a pinned connection; libpq takes one statement at a time.
        connection.lock.synchronize { execute(connection, statement, params) }
      end

      private

      # The caller's connection, until ActiveRecord takes it back. Rails 7.1 has no lease_connection.
      def lease
        @pool.respond_to?(:lease_connection) ? @pool.lease_connection : @pool.connection
      end

      def execute(connection, statement, params)
        build(statement, live(connection).exec_params(statement.sql, params))
      rescue PG::ConnectionBad, PG::UnableToSend => e
        # ActiveRecord is not told by the raw connection; it connects again when it knows.
        connection.disconnect! unless connection.transaction_open?
        raise e if e.is_a?(PG::ConnectionBad)

        raise PG::ConnectionBad, e.message
      end

      # The raw connection, a new one if libpq knows that it is lost. A transaction is lost with it.
      def live(connection)
        raw = connection.raw_connection
        return raw if raw.status == PG::CONNECTION_OK || connection.transaction_open?

        connection.disconnect!
        connection.raw_connection
      end

      # Of a batch's parameters some may be null.
      def array(texts)
        elements = texts.map { |text| text.nil? ? "NULL" : Streams::Presence.text_array([utf8(text)])[1...-1] }
        "{#{elements.join(",")}}"
      end

      # As the pg gem does with a text of its own: what cannot be transcoded is left to the server.
      def utf8(text)
        [Encoding::UTF_8, Encoding::BINARY].include?(text.encoding) ? text : text.encode(Encoding::UTF_8)
      rescue EncodingError
        text
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
