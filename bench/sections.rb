# frozen_string_literal: true

require_relative "delay_proxy"
require_relative "section"

module Bench
  # One thread, one seat for each call.
  class Calls < Section
    WORKS = %w[join touch set_state leave].freeze
    SEATS = 25

    # @param prefix [String] before the names of the works
    def run(prefix: "", port: nil, rounds: quick? ? 8 : 40)
      living_table
      columns(port: port) do |columns|
        in_turns(columns, 1) { |column| measure(column) }
        in_turns(columns, rounds) do |column|
          measure(column).each { |work, times| add("#{prefix}#{work}", column, times) }
        end
      end
    end

    private

    def measure(column)
      WORKS.to_h { |work| [work, column.ask(work, "calls-#{column.name}", SEATS)] }
    end
  end

  # The same calls, and joins from many threads, where a commit does not wait for the disk: less of a call's time is
  # the server's.
  class Async < Section
    PREFIX = "async "

    def run
      without_waiting_for_the_disk do
        part(Calls).run(prefix: PREFIX)
        part(Threads).run(prefix: PREFIX, sizes: [Threads::MANY])
      end
    end
  end

  # `members` by rows, and the objects that it makes.
  class Members < Section
    # Rows, and calls in a row for each turn.
    SIZES = { 10 => 40, 100 => 20, 1000 => 6, 2000 => 5, 10_000 => 2, 100_000 => 1 }.freeze
    # The one that the issue asks about.
    ROWS = 2000

    def run
      sizes.each_key { |rows| fill([stream(rows)], rows) }
      settle
      columns { |columns| measure(columns) }
    end

    private

    def measure(columns)
      sizes.each do |rows, calls|
        in_turns(columns, 1) { |column| column.ask("members", stream(rows), rows, 1) }
        in_turns(columns, quick? ? 2 : 7) do |column|
          add("members #{rows}", column, column.ask("members", stream(rows), rows, calls))
        end
      end
      in_turns(columns.reject { |column| column.name == "limit" }, 3) do |column|
        add("objects #{ROWS}", column, column.ask("objects", stream(ROWS)))
      end
    end

    def sizes
      quick? ? SIZES.slice(10, ROWS) : SIZES
    end

    def stream(rows)
      "members-#{rows}"
    end
  end

  # `expire_seats!` by streams, each with 5 stale seats.
  class Expire < Section
    SIZES = [10, 100, 1000, 10_000].freeze
    STALE = 5

    def run(prefix: "", port: nil, sizes: quick? ? [10, 1000] : SIZES)
      columns(port: port) do |columns|
        in_turns(columns, 1) { |column| measure(column, 1) }
        sizes.each do |streams|
          in_turns(columns, rounds(streams)) do |column|
            add("#{prefix}expire #{streams}", column, measure(column, streams))
          end
        end
      end
    end

    private

    def measure(column, streams)
      clear
      fill(streams(streams), STALE, age: 3600)
      settle
      column.ask("expire", streams * STALE)
    end

    def rounds(streams)
      return 2 if quick?

      streams > 1000 ? 3 : 7
    end
  end

  # `touch` by ids.
  class Touch < Section
    # Ids, and calls in a row for each turn.
    SIZES = { 1 => 40, 10 => 20, 100 => 10, 1000 => 4, 10_000 => 1 }.freeze

    def run
      sizes = quick? ? SIZES.slice(1, 1000) : SIZES
      columns do |columns|
        sizes.each do |ids, calls|
          living_table
          fill(columns.map { |column| stream(column) }, ids)
          settle
          in_turns(columns, 1) { |column| column.ask("touch_ids", stream(column), ids, 1) }
          in_turns(columns, quick? ? 2 : 7) do |column|
            add("touch_ids #{ids}", column, column.ask("touch_ids", stream(column), ids, calls))
          end
        end
      end
    end

    private

    def stream(column)
      "touch-#{column.name}"
    end
  end

  # Seat joins by threads, in calls per second. Plain Ruby and the active_record route have a connection for each
  # thread, the native route its four.
  class Threads < Section
    SIZES = [1, 2, 4, 8, 16, 32, 64].freeze
    # The one that the issue asks about.
    MANY = 32

    def run(prefix: "", port: nil, sizes: quick? ? [1, MANY] : SIZES)
      columns(port: port, threads: sizes.max) do |columns|
        sizes.each do |threads|
          in_turns(columns, quick? ? 1 : 3) { |column| measure(column, threads, prefix) }
        end
      end
    end

    private

    def measure(column, threads, prefix)
      living_table
      add_rate("#{prefix}threads #{threads}", column, column.ask("threads", "threads", threads, 0.5))
      return if column.name == "limit" # has closed them

      add("#{prefix}connections #{threads}", column, [database.sessions(application(column.name))])
      column.ask("disconnect")
    end
  end

  # Beside a thread of the same process that computes all the time.
  class Busy < Section
    STREAMS = 20
    JOINS = 3

    def run
      columns(Column.names - ["limit"]) do |columns|
        in_turns(columns, 1) { |column| column.ask("join", "warm", 1) }
        in_turns(columns, quick? ? 1 : 2) do |column|
          beside_busy_thread(column) { measure(column) }
        end
      end
    end

    private

    def beside_busy_thread(column)
      column.ask("busy")
      yield
    ensure
      column.ask("idle")
    end

    def measure(column)
      living_table
      fill(["busy-members"], Members::ROWS)
      add("busy join", column, column.ask("join", "busy-#{column.name}", JOINS))
      add("busy members #{Members::ROWS}", column, column.ask("members", "busy-members", Members::ROWS, 1))
      clear # what was put in before may be stale by now
      fill(streams(STREAMS), Expire::STALE, age: 3600)
      settle
      add("busy expire #{STREAMS}", column, column.ask("expire", STREAMS * Expire::STALE))
    end
  end

  # The same with a network on the way whose round trip takes a millisecond.
  class Delay < Section
    PREFIX = "delay "
    ROUND_TRIP = 1000 # microseconds

    def run
      return warn("  left out: the server is not reached by TCP") unless database.address

      DelayProxy.open(*database.address, ROUND_TRIP / 2) do |port|
        part(Calls).run(prefix: PREFIX, port: port, rounds: quick? ? 1 : 8)
        part(Expire).run(prefix: PREFIX, port: port, sizes: [1000])
        part(Threads).run(prefix: PREFIX, port: port, sizes: [Threads::MANY])
      end
    end
  end

  # Whether the process grows with the number of calls.
  class Memory < Section
    CALLS = 250 # of each of the four

    def run
      living_table
      columns(Column.names - ["limit"]) do |columns|
        in_turns(columns, quick? ? 3 : 11) do |column|
          Calls::WORKS.each { |work| column.ask(work, "memory-#{column.name}", CALLS) }
          add("rss", column, column.ask("rss"))
          add("sessions", column, [database.sessions(application(column.name))])
        end
      end
    end
  end

  # What the choice of a route takes.
  class Route < Section
    CALLS = 2000

    def run
      columns(%w[native]) do |columns|
        in_turns(columns, 20) { |column| add("route", column, column.ask("route", CALLS)) }
      end
    end
  end
end
