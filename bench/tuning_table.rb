# frozen_string_literal: true

require_relative "figures"
require_relative "text"

module Bench
  # The presence table of one variant, with heartbeats as a process of pgbus does them.
  class TuningTable
    STREAMS = 100
    SEATS = 100 # of each stream
    MEMBERS = 10 # of each stream, that have no seat
    # How many seats come and go between two heartbeats.
    CHURN = 20
    # Compressed like the hour, with some room for a slow machine.
    TTL = 5
    MANY = 100_000

    Room = Struct.new(:name) do
      def broadcast(html); end
    end

    # @param statements [Array<String>] that make the variant of the table as it is shipped
    def initialize(database, statements)
      @database = database
      database.recreate
      statements.each { |statement| database.exec(statement) }
      ActiveRecord::Base.establish_connection(database.url("tuning"))
      Pgbus::Streams::Presence.reset_schema_cache!
      @rooms = streams.map { |name| Pgbus::Streams::Presence.new(Room.new(name)) }
      @ids = Array.new(STREAMS) { Array.new(SEATS) { |index| "c#{index + 1}" } }
      @came = SEATS
      @figures = Figures.new
      @largest = 0
    end

    def fill
      @database.fill(streams, SEATS)
      @database.exec(<<~SQL)
        INSERT INTO #{Database::TABLE} (stream_name, member_id)
        SELECT 'stream' || s, 'member' || n FROM generate_series(1, #{STREAMS}) s, generate_series(1, #{MEMBERS}) n
      SQL
      @database.settle
      @written = @database.value("SELECT pg_current_wal_insert_lsn()")
    end

    # One heartbeat: some seats come and go, all are touched, then those past their ttl are looked for.
    def beat
      churn
      timed("heartbeat") { @rooms.zip(@ids) { |room, ids| touch(room, ids) } }
      timed("search") { expire(0) }
      @largest = [@largest, size("pg_table_size") + size("pg_indexes_size")].max
    end

    # @return [Hash] bytes and shares after the heartbeats
    def sizes
      wal = @database.value("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", @written).to_i
      stats = statistics
      {
        "table" => size("pg_table_size"), "indexes" => size("pg_indexes_size"), "largest" => @largest,
        "wal_per_beat" => wal / @figures.fetch("search", "tuning").samples.size,
        "hot" => stats["n_tup_hot_upd"].to_f / stats["n_tup_upd"].to_i, "vacuums" => stats["autovacuum_count"].to_i
      }
    end

    # @return [Hash{String => Float}] median nanoseconds
    def times
      keep_fresh
      5.times do
        stale_seats
        timed("expire") { expire(STREAMS * (SEATS / 10)) }
      end
      @rooms.first(20).each { |room| timed("sweep") { room.sweep!(older_than: Time.now - 3600) } }
      heartbeat = @figures.fetch("heartbeat", "tuning")
      times = %w[search expire sweep].to_h { |work| [work, @figures.median(work, "tuning")] }
      { "heartbeat" => heartbeat.median, "heartbeat_high" => heartbeat.high, **times }
    end

    # @return [Float] median nanoseconds of looking for stale seats in a table ten times as large
    def search_in_many
      more = MANY / SEATS
      @database.fill(Array.new(more) { |index| "more#{index}" }, SEATS, age: 3600)
      keep_fresh
      @database.settle
      10.times { timed("many") { expire(0) } }
      @figures.median("many", "tuning")
    end

    private

    def streams
      Array.new(STREAMS) { |index| "stream#{index + 1}" }
    end

    def churn
      @came += 1
      CHURN.times do |index|
        room, ids = [@rooms, @ids].map { |all| all[(@came + index) % STREAMS] }
        raise "a seat is missing" unless room.leave(connection_id: ids.shift)

        ids << "c#{@came}"
        room.join(member_id: "member", connection_id: ids.last, metadata: { "name" => "Ada Lovelace" })
      end
    end

    def touch(room, ids)
      raise "a seat is missing" unless room.touch(connection_id: ids).size == ids.size
    end

    def expire(expected)
      expired = Pgbus::Streams::Presence.expire_seats!(ttl_for: ->(_) { TTL }, min_ttl: TTL)
      raise "#{expired.size} seats expired instead of #{expected}" unless expired.size == expected
    end

    # From here on no seat becomes stale by itself. An update, as a seat's life consists of: an index that remembers
    # old times remembers these.
    def keep_fresh
      @database.exec(<<~SQL)
        UPDATE #{Database::TABLE} SET last_seen_at = now() + interval '1 hour' WHERE connection_id IS NOT NULL
      SQL
    end

    # A tenth of all seats.
    def stale_seats
      @stale = @ids.map { |ids| ids.shift(SEATS / 10) }
      streams.zip(@stale) do |stream, ids|
        @database.exec(<<~SQL, stream, "{#{ids.join(",")}}")
          UPDATE #{Database::TABLE} SET last_seen_at = now() - interval '1 hour'
          WHERE stream_name = $1 AND connection_id = ANY ($2::text[])
        SQL
      end
    end

    def statistics
      @database.exec("SELECT pg_stat_force_next_flush()")
      sleep 1.5 # the other sessions', too
      @database.exec("SELECT * FROM pg_stat_user_tables WHERE relname = $1", Database::TABLE).first
    end

    def size(function)
      @database.value("SELECT #{function}($1::regclass)", Database::TABLE).to_i
    end

    def timed(work)
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      yield
      @figures.add(work, "tuning", [Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - started])
    end
  end

  # The results as a Markdown table.
  class TuningText
    include Text

    HEAD = ["table", "table and indexes", "largest", "HOT", "WAL a heartbeat", "heartbeat (9 of 10 below)",
            "search, none stale", "`expire_seats!` of 1,000", "`sweep!`, none stale", "search in 110,000 seats"].freeze
    MARKS = ["<!-- figures -->", "<!-- end of figures -->"].freeze

    # Puts the table between the marks of a text.
    def self.insert(file, table)
      text = File.read(file)
      File.write(file, text.sub(/#{MARKS.first}.*#{MARKS.last}/m, "#{MARKS.first}\n#{table}\n#{MARKS.last}"))
    end

    def initialize(results)
      @results = results
    end

    # @return [String]
    def table
      super(HEAD, @results.map { |result| line(result) })
    end

    private

    def line(result)
      [result["variant"], "#{mega(result["table"])} and #{mega(result["indexes"])}", mega(result["largest"]),
       text(result["hot"], :share), mega(result["wal_per_beat"]),
       "#{time(result["heartbeat"])} (#{time(result["heartbeat_high"])})",
       *result.values_at("search", "expire", "sweep", "search_100000").map { |nanoseconds| time(nanoseconds) }]
    end

    def mega(bytes)
      "#{significant(bytes / 1_048_576.0)} MB"
    end
  end
end
