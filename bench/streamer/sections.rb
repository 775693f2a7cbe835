# frozen_string_literal: true

require_relative "../section"
require_relative "programs"
require_relative "sizes"

module Bench
  module Streamer
    # A part of the bench. Each turn of a side has a process of its own: a side that does its heartbeats while the other
    # is measured would be in the way.
    class Section < Bench::Section
      # Connections before anything is measured: code is loaded, connections to PostgreSQL are open.
      WARM = 100

      # @param sides [Array<String>]
      def initialize(database, figures, sizes:, sides:)
        super(database, figures, quick: sizes == QUICK)
        @sizes = sizes
        @sides = sides
      end

      private

      attr_reader :sizes

      # Yields the sides in turns, each with its clients.
      def turns(streams:, interval:, sides: @sides, rounds: sizes.rounds)
        in_turns(sides, rounds) do |name|
          clear
          side = Side.new(name, url: database.url(application(name)), streams:, interval:)
          clients = Clients.new(side)
          yield side, clients
        ensure
          clients&.close
          side&.close
        end
      end

      # @return [Integer] nanoseconds until the last has its connected frame
      def connect(clients, count, slow: 0)
        clients.ask("connect", count, slow).first
      end

      def expect(what, number, wanted)
        raise Failure, "#{what}: #{number} instead of #{wanted}" unless number == wanted
      end
    end

    # Clients that connect at once to presence streams.
    class Connect < Section
      WORK = "connect"

      def run
        # A turn takes little time, so there are more of them.
        turns(streams: sizes.streams, interval: 60, rounds: (2 * sizes.rounds) - 1) do |side, clients|
          connect(clients, WARM)
          add(WORK, side, [connect(clients, sizes.connecting)])
          seats(side) if side.streamer?
        end
      end

      private

      # A client that has the frame finds its seat.
      def seats(side)
        number = database.value("SELECT count(*) FROM #{Database::TABLE}").to_i
        expect("seats of #{side.name}", number, WARM + sizes.connecting)
      end
    end

    # Connections with seats that do nothing: their memory, and what their heartbeat takes.
    class Heartbeat < Section
      CPU = "heartbeat cpu"
      LATENESS = "heartbeat lateness"
      WITHOUT = "lateness without"
      MEMORY = "memory"
      # In each measurement.
      BEATS = 2

      def run
        turns(streams: sizes.streams, interval: sizes.interval) do |side, clients|
          next limit(side, clients) unless side.streamer?

          add(WITHOUT, side, side.ask("lateness", duration))
          memory(side, clients)
          cpu(side, clients)
          add(LATENESS, side, side.ask("lateness", duration))
          touched(side)
        end
      end

      private

      def duration
        BEATS * sizes.interval
      end

      def limit(side, clients)
        connect(clients, sizes.connections)
        BEATS.times do
          clients.ask("look_away", Broadcast::AWAY)
          add(CPU, side, side.ask("heartbeat"))
        end
      end

      def memory(side, clients)
        connect(clients, WARM)
        before = side.ask("rss").first
        connect(clients, sizes.connections - WARM)
        after = side.ask("rss").first
        add(MEMORY, side, [(after - before) * 1024 / (sizes.connections - WARM)])
      end

      # The window begins between two heartbeats of a side that does all of them at once.
      def cpu(side, clients)
        clients.ask("beat")
        sleep sizes.interval / 2.0
        before = beats(clients)
        clients.ask("look_away", duration * 1000)
        used = side.ask("cpu", duration).first
        sleep sizes.interval / 4.0 # while the clients read
        seen = beats(clients) - before
        raise Failure, "#{side.name}: #{seen} heartbeats instead of #{BEATS}" unless (seen - BEATS).abs < 0.5

        add(CPU, side, [used / BEATS])
      end

      # For each connection.
      def beats(clients)
        clients.ask("heartbeats").first / sizes.connections.to_f
      end

      # A heartbeat that leaves seats out would be a quick one.
      def touched(side)
        seats = database.value(<<~SQL, sizes.interval + 2).to_i
          SELECT count(*) FROM #{Database::TABLE}
          WHERE last_seen_at > (now() AT TIME ZONE 'UTC') - make_interval(secs => $1::int)
        SQL
        expect("seats of #{side.name} that are touched", seats, sizes.connections)
      end
    end

    # One broadcast to all connections of a stream, until the last has it.
    class Broadcast < Section
      WORK = "broadcast"
      # For each turn.
      COUNT = 10
      # Milliseconds, longer than a broadcast takes.
      AWAY = 300

      def run
        turns(streams: 0, interval: 60) do |side, clients|
          connect(clients, sizes.connections)
          times = Array.new(COUNT + 1) { |index| broadcast(side, clients, index + 1) }
          add(WORK, side, times.drop(1)) # the first one warms up
        end
      end

      private

      def broadcast(side, clients, number)
        clients.ask("look_away", AWAY)
        side.ask("broadcast")
        clients.ask("broadcasts", number).first
      end
    end

    # Many connections for a while, with heartbeats, and a broadcast to each stream once a second. Some do not read, on
    # streams that others read.
    class Hold < Section
      LATE = "hold late"
      LOST = "hold lost"
      KEPT = "hold slow kept"
      GAP = "hold longest gap"
      SLOWEST = "hold slowest broadcast"
      MISSING = "hold missing"
      # Each so manyth does not read.
      SLOW = 100
      # Late is a heartbeat that comes so many seconds after its interval,
      GRACE = 2
      # or a broadcast that takes longer than so many seconds.
      LATEST = 1

      def run
        sides = @sides - [Side::LIMIT]
        turns(streams: sizes.streams, interval: sizes.held_interval, sides:, rounds: 1) do |side, clients|
          connect(clients, sizes.held, slow: SLOW)
          clients.ask("reset")
          broadcasts = side.ask("keep_broadcasting", sizes.seconds, sizes.bytes).first
          sleep LATEST # what is later than that is late
          judge(side, clients, broadcasts)
        end
      end

      private

      def judge(side, clients, broadcasts)
        allowed = [(sizes.held_interval + GRACE) * 1_000_000_000, LATEST * 1_000_000_000]
        readers, late, lost, others, cut, *figures = clients.ask("verdict", *allowed, broadcasts)
        expect("clients that read", readers, sizes.held - (sizes.held / SLOW))
        [LATE, LOST, KEPT, GAP, SLOWEST, MISSING].zip([late, lost, others - cut, *figures]) do |work, figure|
          add(work, side, [figure])
        end
      end
    end
  end
end
