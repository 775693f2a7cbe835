# frozen_string_literal: true

module Pgbus
  module Native
    # Deletes the seats that have not been touched within their stream's ttl: one statement finds the streams,
    # one deletes for all of them. It passes over rows that another sweeper holds, so each is reported once.
    class SeatExpiry
      # Rows for each deleting statement, so that no number of stale seats makes a huge one.
      BATCH = 10_000

      # @param presence [Class] what reports the leaves
      # @param ttl_for [#call] from stream name to seconds
      # @param min_ttl [Numeric] the smallest ttl, in seconds
      def initialize(presence, ttl_for:, min_ttl:)
        @presence = presence
        @ttl_for = ttl_for
        @min_ttl = min_ttl
      end

      # @return [Array<Hash>] the deleted records, each with its "stream_name"
      # @raise what `ttl_for` raises, before anything is deleted
      # @raise the first error of a report, after every deleted row has been reported
      def call
        Events.instrument(Statements::EXPIRE_SEATS, nil) { |details| expire(details) }
      end

      # @param streams [Array<String>]
      # @param ttl_for [#call]
      # @return [Hash{String => String}] seconds by stream; a stream without a ttl does not expire
      def self.ttls(streams, ttl_for)
        streams.to_h { |stream| [stream, ttl_for.call(stream)] }.compact.transform_values(&:to_s)
      end

      private

      def expire(details)
        ttls = self.class.ttls(stale_streams(details), @ttl_for)
        return [] if ttls.empty?

        records = []
        failure = nil
        loop do
          batch = delete(ttls, details)
          batch.each do |record|
            error = report(record)
            failure ||= error
          end
          records.concat(batch)
          break if batch.size < BATCH
        end
        raise failure if failure

        records
      end

      def stale_streams(details)
        TableShape.choose(@presence) do |seats|
          seats ? Route.run(Statements::STALE_STREAMS, [@min_ttl&.to_s], details) : []
        end
      end

      def delete(ttls, details)
        Route.run(Statements::EXPIRE_SEATS, [ttls.keys, ttls.values, BATCH.to_s], details)
      end

      def report(record)
        @presence.report_change(record["stream_name"], :leave, record)
        nil
      rescue Exception => e # rubocop:disable Lint/RescueException -- the row is gone: the rest must be reported too
        e
      end
    end
  end
end
