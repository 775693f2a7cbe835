# frozen_string_literal: true

require "json"
require "rack/request"

module Demo
  module Web
    # The page, and what it asks for beside its stream.
    class Site
      PAGE = File.expand_path("page", __dir__)
      FILES = {
        "/" => ["index.html", "text/html; charset=utf-8"],
        "/style.css" => ["style.css", "text/css; charset=utf-8"],
        "/room.js" => ["room.js", "text/javascript; charset=utf-8"]
      }.freeze
      JSON_TYPE = "application/json"
      HEADERS = {
        "cache-control" => "no-store",
        "content-security-policy" => "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; " \
                                     "frame-ancestors 'none'",
        "x-content-type-options" => "nosniff"
      }.freeze

      CONNECTION_ID = /\A\h{16}\z/

      # Bytes of a request's body; none is meant to be longer.
      BODY = 1000

      CHOICES = [
        { id: "noodles", name: "Noodle bar", remark: "Five minutes away, and always a queue" },
        { id: "pizza", name: "Pizzeria", remark: "Slow, and worth it" },
        { id: "curry", name: "Curry house", remark: "Hot, but they have a mild one" },
        { id: "salad", name: "Salad bar", remark: "Paid by weight: mind the potatoes" },
        { id: "bakery", name: "Bakery", remark: "A sandwich on the bench outside" },
        { id: "canteen", name: "Canteen", remark: "Nobody has to put on a coat" }
      ].freeze

      # The block is called with what to do ("kill" or "start") and the name of the server to do it to.
      def initialize(server:, room:, guests:, &order)
        @server = server
        @room = room
        @guests = guests
        @order = order
      end

      def call(env)
        request = Rack::Request.new(env)
        case [request.request_method, request.path_info]
        in ["GET", path] if FILES.key?(path) then file(*FILES[path])
        in ["GET", "/welcome"] then json(welcome)
        in ["GET", "/room"] then json(@room.picture)
        in ["POST", "/state"] then state(body(request))
        in ["POST", "/servers"] then order(body(request))
        else answer(404)
        end
      end

      private

      # What a tab has to know before it can open the stream.
      def welcome
        { stream: Pgbus::Streams::SignedName.sign(@room.name), server: @server, guest: @guests.greet.to_h,
          choices: CHOICES, ttl: TTL }
      end

      # The id of its connection, which the stream told that tab alone, is what allows it to say something for its seat.
      def state(wish)
        return answer(422) unless wish in { connection: String => connection_id, choice: String | nil => choice }
        return answer(422) unless CONNECTION_ID.match?(connection_id.b)
        return answer(422) unless choice.nil? || CHOICES.any? { |known| known[:id] == choice }
        return answer(404) unless @room.presence.set_state(connection_id:, state: { choice: })

        @room.show
        answer(204)
      end

      # Not to itself: one server is always left to start the other one again.
      def order(wish)
        return answer(422) unless wish in { do: "kill" | "start" => what, server: String => other }
        return answer(422) unless (NAMES - [@server]).include?(other)

        @order.call(what, other)
        answer(202)
      end

      # What was sent as JSON, nil if that is not what was sent. Another site's form cannot send this type.
      def body(request)
        JSON.parse(request.body.read(BODY).to_s, symbolize_names: true) if request.media_type == JSON_TYPE
      rescue JSON::ParserError, EncodingError
        nil
      end

      # Read anew each time, so that a changed page needs no restart.
      def file(name, type)
        answer(200, type, File.read(File.join(PAGE, name)))
      end

      def json(value)
        answer(200, JSON_TYPE, JSON.generate(value))
      end

      def answer(status, type = nil, text = "")
        [status, type ? { "content-type" => type, **HEADERS } : HEADERS.dup, [text]]
      end
    end
  end
end
