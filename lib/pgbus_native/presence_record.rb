# frozen_string_literal: true

require "json"

module Pgbus
  module Streams
    class Presence
      # Makes records of rows that come over ActiveRecord's connection; the native route makes the same ones
      # itself and leaves to {parse_json} what it is not certain to read like Ruby.
      module Record
        # @param row [Hash, #[], #key?] column values by column name
        # @return [Hash] the record; with seat columns where the row has them
        def self.build(row)
          record = {
            "id" => row["member_id"],
            "metadata" => parse_json(row["metadata"]),
            "joined_at" => row["joined_at"],
            "last_seen_at" => row["last_seen_at"]
          }
          if row.key?("connection_id")
            record["connection_id"] = row["connection_id"]
            record["seat"] = row["seat"]
            record["state"] = parse_json(row["state"])
          end
          record
        end

        # @param value [String, Hash, nil] JSON text, or what is parsed already
        # @return [Object] what JSON.parse makes of it; `{}` for nothing, and for text that it refuses, which
        #   is logged at debug level
        def self.parse_json(value)
          return value if value.is_a?(Hash)
          return {} if value.nil? || value.empty?

          JSON.parse(value)
        rescue JSON::ParserError => e
          excerpt = value.to_s[0, 200]
          Pgbus.logger&.debug { "[pgbus_native] unreadable JSON in a presence row (#{e.class}): #{excerpt.inspect}" }
          {}
        end
      end
    end
  end
end
