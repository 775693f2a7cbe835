# frozen_string_literal: true

require "date"
require "json"

require_relative "cutoff"
require_relative "events"
require_relative "presence_record"
require_relative "route"
require_relative "schema_answer"
require_relative "seat_expiry"
require_relative "table_shape"

module Pgbus
  # Everything about pgbus's SSE streams.
  module Streams
    # Who is on a stream right now: a row for each member, or for each of a member's browser tabs (a seat), in
    # the table `pgbus_presence_members`.
    #
    # Every call runs one statement on a native connection, or on ActiveRecord's where the outcome would
    # otherwise differ: inside a transaction it commits and rolls back with it. All methods may be called from
    # any thread or fiber, and after a fork. They raise the PG:: class of the server's SQLSTATE,
    # `PG::ConnectionBad` if the connection breaks under the statement,
    # `ActiveRecord::ConnectionNotEstablished` if none can be made, and ArgumentError for text with a NUL byte.
    #
    # A record is a Hash with String keys: `"id"`, `"metadata"`, `"joined_at"`, `"last_seen_at"`, and on a table
    # with seats `"connection_id"`, `"seat"` and `"state"`.
    class Presence
      # The columns that every record is made of.
      RECORD_COLUMNS = "member_id, metadata, joined_at, last_seen_at"
      # Those of a record on a table with seats.
      SEAT_RECORD_COLUMNS = "#{RECORD_COLUMNS}, connection_id, seat, state".freeze

      # Seconds for which "the table has no seats" is trusted.
      SCHEMA_RECHECK_SECONDS = 30

      class << self
        # Has the table its seat columns? A yes is kept for the life of the process, a no for
        # {SCHEMA_RECHECK_SECONDS}, for each database.
        #
        # @return [Boolean]
        def seats_supported?
          schema_answer.fetch(method(:monotonic_now), SCHEMA_RECHECK_SECONDS) do
            statement = Native::Statements::SEAT_COLUMNS
            Native::Events.instrument(statement, nil) { |details| Native::Route.run(statement, [], details) }.any?
          end
        end

        # {seats_supported?}, but a no is looked up again first.
        #
        # @return [Boolean]
        def seats_supported_now?
          return true if seats_supported?

          schema_answer.forget
          seats_supported?
        end

        # Forgets what is known about the table, for every database.
        #
        # @return [void]
        def reset_schema_cache!
          Native::SchemaAnswer.forget
          nil
        end

        # Deletes every seat that has not been touched within its stream's ttl. Member-keyed rows are left
        # alone. Of several sweepers, in whatever processes, one reports a row.
        #
        # @param ttl_for [#call] from a stream's name to its ttl in seconds; asked once for each stream, before
        #   anything is deleted
        # @param min_ttl [Numeric, ActiveSupport::Duration] the smallest ttl configured, in seconds
        # @return [Array<Hash>] the deleted records, each with its `"stream_name"`; `[]` without seats
        # @raise what `ttl_for` raises, with nothing deleted; what a report raises, with every row reported
        def expire_seats!(ttl_for:, min_ttl:)
          Native::SeatExpiry.new(self, ttl_for: ttl_for, min_ttl: min_ttl).call
        end

        # Reports a seat's coming or going to `Pgbus.configuration.notify_presence_change`.
        #
        # @param stream_name [String]
        # @param type [Symbol] `:join` or `:leave`
        # @param record [Hash]
        # @return [Object] what the configuration answers
        def report_change(stream_name, type, record)
          change = { type: type, connection_id: record["connection_id"], seat: record["seat"],
                     member_id: record["id"] }
          Pgbus.configuration.notify_presence_change(stream_name, change)
        end

        # @return [PG::Connection] the one that ActiveRecord has for the caller, leased until ActiveRecord
        #   takes it back
        # @raise [Pgbus::ConfigurationError] without ActiveRecord
        def connection
          owner = Native::Route.connection_class
          # Rails 7.1 has no lease_connection, 7.2 prefers it.
          (owner.respond_to?(:lease_connection) ? owner.lease_connection : owner.connection).raw_connection
        end

        # @param values [Array<#to_s>]
        # @return [String] a PostgreSQL text[] literal with every element quoted
        def text_array(values)
          elements = values.map { |value| %("#{value.to_s.gsub(/["\\]/) { |character| "\\#{character}" }}") }
          "{#{elements.join(",")}}"
        end

        # @return [Float] seconds of the clock by which schema answers age; tests may stub it
        def monotonic_now
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        end

        private

        def schema_answer
          Native::SchemaAnswer.for(Native::Route.connection_class.connection_pool.db_config)
        end
      end

      # @param stream [#name, #broadcast]
      def initialize(stream)
        @stream = stream
      end

      # @return [Boolean] see {Presence.seats_supported?}
      def seats?
        self.class.seats_supported?
      end

      # @return [Boolean] see {Presence.seats_supported_now?}
      def seats_now?
        self.class.seats_supported_now?
      end

      # Adds a member, or refreshes the one that is there: last seen now, with this metadata. With a
      # connection_id the row is that connection's seat, whose member, metadata and seat are overwritten while
      # `joined_at` and `state` stay, and the join is reported.
      #
      # @param member_id [#to_s]
      # @param metadata [Object] whatever JSON.generate takes
      # @param connection_id [#to_s, nil]
      # @param seat [#to_s, nil] the client's id of its tab
      # @yieldparam record [Hash] after the row is written and reported
      # @yieldreturn [Object] a non-empty String is broadcast on the stream
      # @return [Hash] the record
      def join(member_id:, metadata: {}, connection_id: nil, seat: nil)
        member_id = member_id.to_s
        record = if connection_id
                   join_seat(member_id, metadata, connection_id.to_s, seat&.to_s)
                 else
                   join_member(member_id, metadata)
                 end
        self.class.report_change(@stream.name, :join, record) if connection_id
        broadcast(yield(record)) if block_given?
        record
      end

      # Removes a member, or one connection's seat, whose leave is reported.
      #
      # @param member_id [#to_s, nil] this, or
      # @param connection_id [#to_s, nil] this
      # @yieldparam record [Hash] after the row is gone and reported
      # @yieldreturn [Object] a non-empty String is broadcast on the stream
      # @return [Hash, nil] the record as it was, nil if there was none
      # @raise [ArgumentError] unless exactly one is given
      def leave(member_id: nil, connection_id: nil)
        check_one_key(:leave, member_id, connection_id)
        record = connection_id ? leave_seat(connection_id.to_s) : leave_member(member_id.to_s)
        return unless record

        self.class.report_change(@stream.name, :leave, record) if connection_id
        broadcast(yield(record)) if block_given?
        record
      end

      # Refreshes last_seen_at, so that a sweep passes over the row.
      #
      # @param member_id [#to_s, nil] the member-keyed row, or
      # @param connection_id [#to_s, Array<#to_s>, nil] the seats of these connections, in one statement
      # @return [Array<String>] for connections: those that have a seat here; the others may join again
      # @return [Integer] for a member: how many rows were refreshed, 0 or 1
      # @raise [ArgumentError] unless exactly one is given
      def touch(member_id: nil, connection_id: nil)
        check_one_key(:touch, member_id, connection_id)
        connection_id ? touch_seats(Array(connection_id).map(&:to_s)) : touch_member(member_id.to_s)
      end

      # Merges a Hash into a seat's state, at the top level, and refreshes last_seen_at. Reports and broadcasts
      # nothing.
      #
      # @param connection_id [#to_s]
      # @param state [Hash] keys that are not given keep their values
      # @return [Hash, nil] the record, nil if the connection has no seat here
      # @raise [ArgumentError] unless the state is a Hash
      def set_state(connection_id:, state:)
        raise ArgumentError, "state must be a Hash (got a #{state.class})" unless state.is_a?(Hash)

        run(Native::Statements::SET_STATE, connection_id.to_s, JSON.generate(state)).first
      end

      # @return [Array<Hash>] every record of the stream, the oldest join first
      def members
        run_by_shape(Native::Statements::MEMBERS, Native::Statements::MEMBERS_BEFORE_SEATS)
      end

      # @return [Integer] how many rows the stream has
      def count
        run(Native::Statements::COUNT)
      end

      # Deletes the member-keyed rows of the stream that were last seen before a time. Of several sweeps at
      # once, one reports a row.
      #
      # @param older_than [Time, ActiveSupport::TimeWithZone, DateTime, String] an instant; a String is read by
      #   PostgreSQL
      # @yieldparam record [Hash] each deleted one
      # @return [Integer] how many were deleted
      def sweep!(older_than:)
        records = run_by_shape(Native::Statements::SWEEP, Native::Statements::SWEEP_BEFORE_SEATS,
                               Native::Cutoff.text(older_than))
        records.each { |record| yield record } if block_given? # rubocop:disable Style/ExplicitBlockArgument -- the signature is probed
        records.size
      end

      private

      def run(statement, *params)
        stream = @stream.name&.to_s
        Native::Events.instrument(statement, stream) do |details|
          Native::Route.run(statement, [stream, *params], details)
        end
      end

      # Runs the one of two statements that fits the table.
      def run_by_shape(seats, before_seats, *params)
        Native::TableShape.choose(self.class) { |has_seats| run(has_seats ? seats : before_seats, *params) }
      end

      def join_member(member_id, metadata)
        run_by_shape(Native::Statements::JOIN_MEMBER, Native::Statements::JOIN_MEMBER_BEFORE_SEATS,
                     member_id, JSON.generate(metadata)).first
      end

      def join_seat(member_id, metadata, connection_id, seat)
        run(Native::Statements::JOIN_SEAT, member_id, JSON.generate(metadata), connection_id, seat).first
      end

      def leave_member(member_id)
        run_by_shape(Native::Statements::LEAVE_MEMBER, Native::Statements::LEAVE_MEMBER_BEFORE_SEATS,
                     member_id).first
      end

      def leave_seat(connection_id)
        run(Native::Statements::LEAVE_SEAT, connection_id).first
      end

      def touch_member(member_id)
        run_by_shape(Native::Statements::TOUCH_MEMBER, Native::Statements::TOUCH_MEMBER_BEFORE_SEATS, member_id)
      end

      def touch_seats(connection_ids)
        case connection_ids.size
        when 0 then []
        when 1 then run(Native::Statements::TOUCH_SEAT, connection_ids.first)
        else run(Native::Statements::TOUCH_SEATS, connection_ids)
        end
      end

      def check_one_key(method, member_id, connection_id)
        return if member_id ? connection_id.nil? : connection_id && member_id.nil?

        raise ArgumentError, "#{method} needs either member_id: or connection_id:, and not both"
      end

      def broadcast(html)
        @stream.broadcast(html) if html.is_a?(String) && !html.empty?
      end
    end
  end
end
