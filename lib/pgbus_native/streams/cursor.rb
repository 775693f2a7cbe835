# frozen_string_literal: true

module Pgbus
  module Streams
    # How far a client has read a stream: the id of the last message it has, 0 for none.
    module Cursor
      # Ids of messages are PostgreSQL's bigint.
      MAX_MSG_ID = (2**63) - 1

      # It is not a whole number from 0 to {MAX_MSG_ID}, written in digits alone.
      class InvalidCursor < ArgumentError; end

      # The header goes first: a browser sends it when it reconnects, and then the address still has the cursor that
      # it was opened with. A blank one counts as none.
      #
      # @param query_since [String, Integer, nil] `since` of the query
      # @param last_event_id [String, Integer, nil] the header Last-Event-ID
      # @return [Integer]
      # @raise [InvalidCursor]
      def self.parse(query_since:, last_event_id:)
        # As bytes: what comes from a client may be no valid text, on which strip and match? raise.
        given = [last_event_id, query_since].map { |value| value.to_s.b }.find { |bytes| !bytes.strip.empty? }
        return 0 unless given
        raise InvalidCursor, "a cursor is a whole number, not negative" unless given.match?(/\A\d+\z/)

        number = Integer(given, 10)
        raise InvalidCursor, "a cursor is at most #{MAX_MSG_ID}" if number > MAX_MSG_ID

        number
      end
    end
  end
end
