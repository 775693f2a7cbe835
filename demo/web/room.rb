# frozen_string_literal: true

require "json"

module Demo
  module Web
    # The stream whose presence the pages show.
    class Room
      attr_reader :name

      # Who serves: Hashes with a name, a port and a status, "running" or not.
      attr_accessor :servers

      def initialize(name)
        @name = name
        @servers = []
      end

      def presence
        Pgbus::Streams::Presence.new(self)
      end

      # Who is here, as the database has it, oldest first. A tab that has come back before the row of its lost
      # connection was expired has two rows for a while: the newest is the one that lives.
      def seats
        presence.members.group_by { |record| record["seat"] }.values.map { |records| seat(records.last) }
      end

      # All that a page shows.
      def picture
        # Taken before the seats are read: whatever changes last is in the picture with the highest number, however
        # pictures overtake each other on their way. This clock is the same for all processes of a machine.
        number = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
        { number:, servers:, seats: }
      end

      # Sends the picture to every page, on both servers.
      def show
        Pgbus::Web::Streamer.current.broadcast(name, JSON.generate(picture), event: "room")
      end

      # For Presence, which broadcasts what a caller's block makes of a join: the pages get the whole picture instead.
      def broadcast(_html); end

      private

      def seat(record)
        { seat: record["seat"], name: record["id"], colour: record["metadata"]["colour"],
          server: record["metadata"]["server"], choice: record.dig("state", "choice"),
          untouched: (Time.now - record["last_seen_at"]).round(1) }
      end
    end
  end
end
