# frozen_string_literal: true

require "json"

module Pgbus
  module Native
    class Streamer
      # Who takes the seat of a connection, as pgbus's configuration says.
      module Member
        # @param connection [Pgbus::Web::Streamer::Connection]
        # @param config [#stream_presence?, #presence_member_for, Object] pgbus's configuration
        # @param logger [Logger, nil] is told what raises; the connection lives on without a seat
        # @return [Array(String, String, String), nil] member id, metadata as JSON, and the client's own id of its tab,
        #   which may be nil; nil alone for a connection that gets no seat
        def self.of(connection, config, logger)
          return unless config.respond_to?(:stream_presence?) && config.stream_presence?(connection.stream_name)

          member = config.presence_member_for(connection.context)
          member && seated(connection, member[:id].to_s, member[:metadata] || {})
        rescue StandardError => e
          logger&.error { "[pgbus_native] no seat for connection #{connection.id}: #{e.class}: #{e.message}" }
          nil
        end

        def self.seated(connection, id, metadata)
          return if id.empty?

          id = text(id)
          connection.presence_member = id if connection.respond_to?(:presence_member=)
          [id, JSON.generate(metadata), connection.seat&.to_s]
        end

        # What no database takes is found here, where it costs only the seat.
        def self.text(id)
          id = id.encode(Encoding::UTF_8)
          raise ArgumentError, "the member's id is no text" unless id.valid_encoding? && !id.include?("\0")

          id
        end
        private_class_method :seated, :text
      end
    end
  end
end
