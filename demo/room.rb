# frozen_string_literal: true

require_relative "pgbus"

module Demo
  # A seat as the screen and the checks see it.
  Seat = Struct.new(:room, :member, :seat, :worker, :status)

  # The stream whose presence is shown.
  Room = Struct.new(:name) do
    def presence
      Pgbus::Streams::Presence.new(self)
    end

    # Presence calls it with the HTML of a join or leave. There are no browsers here.
    def broadcast(_html); end

    # Who is here, as the database has it.
    def seats
      presence.members.map do |record|
        Seat.new(name, record["id"], record["seat"], record["metadata"]["worker"], record.dig("state", "status"))
      end
    end
  end

  # As much of pgbus as Presence asks for. The block receives each change: the stream's name and a Hash.
  class Configuration
    def initialize(&on_change)
      @on_change = on_change
    end

    def connects_to; end

    def notify_presence_change(stream_name, change)
      @on_change&.call(stream_name, change)
    end
  end
end
