# frozen_string_literal: true

require_relative "room"

module Demo
  # How long each kind of call takes on each route: the calls of all routes take turns in this process, so that
  # whatever else the machine does falls on all of them.
  class Timing
    # Seconds to go on for.
    SECONDS = 5
    ROUNDS = 300
    MEMBERS = 500
    TOUCHED = 20

    CALLS = {
      "join a seat" => ->(room, _) { room.join(member_id: "ada", connection_id: "c", seat: "desk", metadata: NAME) },
      "touch #{TOUCHED} seats" => ->(_, full) { full.touch(connection_id: IDS) },
      "set_state" => ->(room, _) { room.set_state(connection_id: "c", state: { status: "typing" }) },
      "members, #{MEMBERS} seats" => ->(_, full) { full.members },
      "count, #{MEMBERS} seats" => ->(_, full) { full.count },
      "expire_seats!, none stale" => ->(room, _) { room.class.expire_seats!(ttl_for: ->(_) { 60 }, min_ttl: 60) },
      "leave a seat" => ->(room, _) { room.leave(connection_id: "c") }
    }.freeze
    NAME = { "name" => "Ada" }.freeze
    IDS = Array.new(TOUCHED) { |index| "connection#{index + 1}" }.freeze

    # pgbus's plain Ruby, where it is at hand, by the file that PGBUS_REFERENCE names.
    def self.plain_presence
      path = ENV["PGBUS_REFERENCE"].to_s
      return if path.empty?

      box = Module.new
      load(path, box)
      box.const_get(:Pgbus).define_singleton_method(:configuration) { ::Pgbus.configuration }
      box.const_get(:Pgbus)::Streams::Presence
    end

    # @return [Array<String>] the names of the routes
    attr_reader :routes

    def initialize
      @plain = self.class.plain_presence
      @routes = ["native", "active_record", *("plain Ruby" if @plain)]
      @times = Hash.new { |times, key| times[key] = [] }
    end

    # Fills a room of the database, and times.
    def run(database)
      database.fill("timing", MEMBERS)
      deadline = now + SECONDS
      1.upto(ROUNDS) do |round|
        break if now > deadline

        CALLS.each_key { |call| routes.rotate(round).each { |route| time(call, route) } }
      end
      self
    end

    # @return [Integer] how often a route made each call
    def calls
      @times.values.map(&:size).min
    end

    # @return [Float] in milliseconds
    def median(call, route)
      sorted = @times.fetch([call, route]).sort
      sorted[sorted.size / 2] * 1000
    end

    private

    def time(call, route)
      presence = route == "plain Ruby" ? @plain : Pgbus::Streams::Presence
      room, full = ["timing #{route}", "timing"].map { |name| presence.new(Room.new(name)) }
      on_route(route) do
        started = now
        CALLS.fetch(call).call(room, full)
        @times[[call, route]] << (now - started)
      end
    end

    def on_route(route, &)
      route == "plain Ruby" ? yield : Pgbus::Native.with_route(route.to_sym, &)
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
