# frozen_string_literal: true

require "rack/request"

module Demo
  module Web
    # Who sits on a seat; `colour` is a place in the page's circle of colours.
    Guest = Data.define(:name, :colour)

    # Gives those who come a name and a colour, and lets in who has both. An application would ask its session.
    class Guests
      NAMES = %w[Otter Heron Lynx Wren Badger Marten Finch Hare Stoat Swift Vole Kite].freeze
      NAME_FORMAT = /\A[^[:cntrl:]]{1,24}\z/

      # @param first [Integer] where in the list to begin: the servers do not know whom the other one has just greeted
      def initialize(room, first:)
        @room = room
        @next = first
        @mutex = Mutex.new
      end

      # A guest whose colour nobody has, while there are such.
      def greet
        taken = @room.seats.map { |seat| seat[:colour] }
        @mutex.synchronize do
          order = (@next...(@next + NAMES.size)).map { |number| number % NAMES.size }
          colour = order.find { |number| !taken.include?(number) } || order.first
          @next = colour + 1
          Guest.new(name: NAMES[colour], colour:)
        end
      end

      # The authorize hook: nobody comes in without a seat, a name and a colour.
      def call(env, _stream_name)
        query = Rack::Request.new(env).GET
        name, colour, seat = query.values_at("name", "colour", "seat")
        return unless name?(name) && NAMES.size.times.any? { |number| colour == number.to_s }

        Guest.new(name: name.strip, colour: colour.to_i) if Pgbus::Web::StreamApp::SEAT_FORMAT.match?(seat.to_s.b)
      end

      private

      def name?(text)
        text.is_a?(String) && text.valid_encoding? && !text.strip.empty? && NAME_FORMAT.match?(text)
      end
    end
  end
end
