# frozen_string_literal: true

# bench/worker.rb COLUMN THREADS [GVL_GRACE]
#
# One Ruby column of the bench, in a process of its own: "plain", "active_record" or "native". It answers
# requests, a line each, with numbers; every time is in nanoseconds and is that of one call.

require "active_record"
require "json"

$LOAD_PATH.unshift(File.join(__dir__, "stand_in"), File.join(__dir__, "../lib"))
require "pgbus"
require_relative "answers"

# The Ruby side of the bench.
module Bench
  # The part of a stream that Presence uses.
  Room = Struct.new(:name) do
    def broadcast(html); end
  end

  # Every public method is a request.
  class Worker
    include Answers

    METADATA = { "name" => "Ada Lovelace", "role" => "editor" }.freeze
    STATE = { "status" => "typing", "line" => 12 }.freeze
    TTL = 30

    def initialize(presence)
      @presence = presence
    end

    # --- Calls one after the other. A wrong answer is an error, since its time means nothing. ---

    # Seats c1, c2, ... of the stream; the next four take the same ones.
    def join(stream, count)
      on_seats(stream, count) do |room, id|
        room.join(member_id: "ada", connection_id: id, seat: "desk", metadata: METADATA)["connection_id"] == id
      end
    end

    def touch(stream, count)
      on_seats(stream, count) { |room, id| room.touch(connection_id: id) == [id] }
    end

    def set_state(stream, count)
      on_seats(stream, count) { |room, id| room.set_state(connection_id: id, state: STATE)["state"] == STATE }
    end

    def leave(stream, count)
      on_seats(stream, count) { |room, id| room.leave(connection_id: id)["connection_id"] == id }
    end

    def members(stream, rows, count)
      room = room(stream)
      Array.new(count.to_i) { timed { room.members.size == rows.to_i } }
    end

    def touch_ids(stream, ids, count)
      room = room(stream)
      connections = Array.new(ids.to_i) { |index| "c#{index + 1}" }
      Array.new(count.to_i) { timed { room.touch(connection_id: connections).size == ids.to_i } }
    end

    def expire(rows)
      timed { @presence.expire_seats!(ttl_for: ->(_) { TTL }, min_ttl: TTL).size == rows.to_i }
    end

    # Objects allocated by `members`.
    def objects(stream)
      room = room(stream)
      before = GC.stat(:total_allocated_objects)
      room.members
      GC.stat(:total_allocated_objects) - before
    end

    # --- Several threads ---

    # Joins new seats from so many threads at once: how many calls, in how many nanoseconds.
    def threads(stream, number, seconds)
      ready = Queue.new
      start = Queue.new
      threads = Array.new(number.to_i) { |index| Thread.new { join_until_over(stream, index, ready, start) } }
      number.to_i.times { ready.pop }
      started = now
      @deadline = started + (seconds.to_f * 1_000_000_000)
      start.close
      [threads.sum(&:value), now - started]
    end

    # A thread that computes all the time, from now on.
    def busy
      @computing = true
      @busy = Thread.new do
        started = now
        turns = 0
        turns += 1 while @computing
        [turns, now - started]
      end
      0
    end

    # Ends it: how many turns it made, in how many nanoseconds.
    def idle
      @computing = false
      @busy.value
    end

    # Joins a seat over and over for so long.
    def join_for(stream, seconds)
      deadline = now + (seconds.to_f * 1_000_000_000)
      times = []
      times.concat(join(stream, 1)) while now < deadline
      times
    end

    # Meanwhile: how late another thread is that wakes up every millisecond.
    def lateness(stream, seconds)
      deadline = now + (seconds.to_f * 1_000_000_000)
      sleeper = Thread.new { lateness_until(deadline) }
      join_for(stream, seconds)
      sleeper.value
    end

    # --- The process ---

    # Kilobytes of memory in use.
    def rss
      File.read("/proc/self/status")[/^VmRSS:\s+(\d+)/, 1]
    end

    # The choice of a route, many times over, on a thread that has an ActiveRecord connection as a controller has.
    def route(count)
      pool = ActiveRecord::Base.connection_pool
      pool.lease_connection.select_value("SELECT 1")
      count = count.to_i
      time = timed { count.times { Pgbus::Native::Route.current } }
      pool.release_connection
      time / count
    end

    # Calls made natively and on ActiveRecord's connection.
    def routes
      Pgbus::Native.stats[:calls].values_at(:native, :active_record)
    end

    def disconnect
      ActiveRecord::Base.connection_pool.disconnect!
      0
    end

    private

    def room(stream)
      @presence.new(Room.new(stream))
    end

    def on_seats(stream, count)
      room = room(stream)
      Array.new(count.to_i) do |index|
        id = "c#{index + 1}"
        timed { yield room, id }
      end
    end

    def timed
      started = now
      right = yield
      time = now - started
      raise "a wrong answer" unless right

      time
    end

    def join_until_over(stream, index, ready, start)
      room = room(stream)
      join_seat(room, "t#{index}-0") # connects
      ready << true
      start.pop
      calls = 0
      while now < @deadline
        calls += 1
        join_seat(room, "t#{index}-#{calls}")
      end
      calls
    ensure
      ActiveRecord::Base.connection_pool.release_connection
    end

    def join_seat(room, id)
      record = room.join(member_id: "ada", connection_id: id, seat: "desk", metadata: METADATA)
      raise "another call's answer" unless record["connection_id"] == id
    end

    def lateness_until(deadline)
      late = []
      while now < deadline
        started = now
        sleep 0.001
        late << (now - started - 1_000_000)
      end
      late
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    end
  end

  # Loads the column's Presence and connects ActiveRecord, with a connection for each thread.
  def self.presence(column, threads, grace = nil)
    if column == "plain"
      require_relative "plain_ruby"
      load PlainRuby.file
    else
      require "pgbus_native"
      Pgbus::Native.configure do |config|
        config.route = :active_record if column == "active_record"
        config.gvl_grace = grace.to_f if grace
      end
    end
    connect(threads.to_i)
    Pgbus::Streams::Presence
  end

  def self.connect(threads)
    ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
    settings = ActiveRecord::Base.connection_db_config.configuration_hash
    ActiveRecord::Base.establish_connection(settings.merge(pool: threads + 1))
  end
end

Bench::Worker.new(Bench.presence(*ARGV)).serve($stdin, $stdout)
