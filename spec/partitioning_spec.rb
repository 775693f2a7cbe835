# frozen_string_literal: true

require_relative "support/busy_process"
require_relative "support/partitions"
require_relative "support/trace"

# The table partitioned by the hash of stream_name: the same behaviour, and a stream's calls stay in its partition.
RSpec.describe "Presence on a table partitioned by stream" do
  include Partitions

  around { |example| SpecDatabase.partitioned { example.run } }

  # As much as makes an index worth its while, all of it due. A table of a few pages is rather read as a whole, where
  # a statement is about several streams.
  def fill
    seats = presence.seats?
    sql(<<~SQL)
      INSERT INTO pgbus_presence_members (stream_name, member_id, last_seen_at)
      SELECT 'room:' || stream, member, now() - interval '150 s'
      FROM generate_series(0, 59) stream, generate_series(1, 300) member
    SQL
    sql(<<~SQL) if seats
      INSERT INTO pgbus_presence_members (stream_name, member_id, last_seen_at, connection_id)
      SELECT stream_name, member_id, last_seen_at, 'c' || member_id FROM pgbus_presence_members
    SQL
    sql("ANALYZE pgbus_presence_members")
  end

  Implementation::GEM.each do |implementation|
    describe "on the #{implementation.name}", implementation: do
      [
        "joining", "leaving", "touching", "setting the state of a seat", "listing and counting", "sweeping",
        "expiring seats", "the answer whether the table has seats", "times", "any table", "bad input", "errors"
      ].each do |behaviour|
        describe(behaviour) { include_examples behaviour }
      end

      it "does as on a plain table through 1000 random operations", :slow do
        operations = RandomOperations.new(seed).take(1000)
        plain = trace(operations, partitioned: false)

        trace(operations, partitioned: true).zip(plain).each_with_index do |(step, expected), index|
          expect(step.to_h).to eq(expected.to_h), "PRESENCE_SEED=#{seed}: operation #{index}, #{step.operation}"
        end
      end

      def seed
        @seed ||= Integer(ENV.fetch("PRESENCE_SEED") { rand(1_000_000) })
      end

      def trace(operations, **table)
        SpecDatabase.table(**table)
        presence_class.reset_schema_cache!
        Trace.new(implementation).of(operations)
      end
    end
  end

  # The rows of different partitions may have the same place in them.
  describe "with rows of several streams at the same place", implementation: Implementation::AUTO do
    let(:streams) { streams_of_different_partitions(4) }

    # One row each, the first of its partition.
    before do
      sql("TRUNCATE pgbus_presence_members")
      streams.each { |name| insert_row(stream_name: name, connection_id: "c1", last_seen_at: Time.now.utc - 150) }
      places = sql("SELECT DISTINCT ctid FROM pgbus_presence_members")
      raise "not at the same place: #{places}" unless places.size == 1
    end

    def expire
      presence_class.expire_seats!(ttl_for: ->(_) { 100 }, min_ttl: 100).map { |record| record["stream_name"] }
    end

    def reported
      changes.map(&:first)
    end

    it "expires each once" do
      expect(expire).to match_array(streams)
      expect(reported).to match_array(streams)
      expect(rows).to be_empty
    end

    it "passes over those that another session holds, and never waits for one" do
      held, *free = streams
      while_locked("SELECT * FROM pgbus_presence_members WHERE stream_name = '#{held}' FOR UPDATE") do
        expiring = in_thread { expire }

        expect(expiring.join(Waiting::DEADLINE)&.value).to match_array(free)
      ensure
        expiring&.kill
      end
      expect(reported).to match_array(free)
      expect(expire).to eq([held])
    end

    it "takes no more of them than asked for" do
      sizes = [1, 2, 1].map do |most|
        Pgbus::Native::Route.run(Pgbus::Native::Statements::EXPIRE_SEATS, [streams, ["100"] * 4, most.to_s]).size
      end

      expect(sizes).to eq([1, 2, 1])
    end

    it "touches, changes and takes the one that was meant" do
      presence = presence_of(streams[1])
      presence.touch(connection_id: %w[c1 c2])
      expect(expire).to match_array(streams - [streams[1]])

      insert_row(stream_name: streams[0], connection_id: "c1")
      expect(presence.set_state(connection_id: "c1", state: { a: 1 })["state"]).to eq("a" => 1)
      expect(presence.leave(connection_id: "c1")).to include("state" => { "a" => 1 })
      expect(row).to include("stream_name" => streams[0], "state" => "{}")
    end
  end

  it "has sweepers of several processes expire each seat exactly once", :slow, implementation: Implementation::AUTO do
    ttl = 4
    BusyProcess::STREAMS.product(BusyProcess::SHARED) do |stream, seat|
      presence_of(stream).join(member_id: "shared", connection_id: seat)
    end
    deeds = Array.new(4) { |number| fork_child { BusyProcess.new(presence_class, number, ttl:).work(10) } }
                 .map { |child| child.value(within: 40) }
    BusyProcess::STREAMS.each { |stream| BusyProcess.touch_shared(presence_class, stream) }
    sql("UPDATE pgbus_presence_members SET last_seen_at = last_seen_at - interval '1000 s'
         WHERE connection_id NOT LIKE 'shared/%'")
    last = BusyProcess.expire(presence_class, ttl)

    expired = deeds.flat_map(&:returned)
    expect(deeds.map(&:longest_pause)).to all(be < ttl)
    expect(expired.size).to be > 20
    expect(expired + last).to match_array(deeds.flat_map(&:forgotten))
    expect(deeds.flat_map(&:reported)).to match_array(expired)
  end

  # Which partitions the server comes to, whether it plans for the parameters or for any.
  describe "in the server's plans", implementation: Implementation::AUTO do
    # What follows the stream in the parameters of a statement about one stream.
    others = {
      "JOIN_MEMBER" => ["7", "{}"], "JOIN_SEAT" => ["7", "{}", "c7", "left"], "TOUCH_MEMBER" => ["7"],
      "TOUCH_SEAT" => ["c7"], "TOUCH_SEATS" => [%w[c7 c8 c9]], "SET_STATE" => ["c7", '{"a": 1}'],
      "LEAVE_MEMBER" => ["7"], "LEAVE_SEAT" => ["c7"], "MEMBERS" => [], "COUNT" => [], "SWEEP" => ["now"]
    }
    # By their batches.
    batched = {
      "JOIN_MEMBERS" => "JOIN_MEMBER", "JOIN_SEATS" => "JOIN_SEAT", "TOUCH_MEMBERS" => "TOUCH_MEMBER",
      "TOUCH_EACH_SEAT" => "TOUCH_SEAT", "SET_STATES" => "SET_STATE", "LEAVE_MEMBERS" => "LEAVE_MEMBER",
      "LEAVE_SEATS" => "LEAVE_SEAT"
    }

    let(:streams) { streams_of_different_partitions(3) }

    before { fill }

    def expect_partitions(partitions, statement, *parameters, settings: {})
      statement = Pgbus::Native::Statements.const_get(statement)
      %w[force_custom_plan force_generic_plan].each do |mode|
        used = partitions_used(statement, parameters, plan_cache_mode: mode, **settings)

        expect(used).to match_array(partitions), "#{statement.name}, #{mode}: #{used}"
      end
    end

    # The server takes a plan for any parameters to come to every partition each time, and so reads the whole table at
    # once until it is very large.
    def very_large
      { enable_hashjoin: "off", enable_mergejoin: "off", enable_seqscan: "off" }
    end

    def each_partition
      streams.map { |name| partition_of(name) }
    end

    Pgbus::Native::Statements.constants.map(&:to_s).each do |name|
      plain = name.delete_suffix("_BEFORE_SEATS")
      table = { seats: plain == name }

      if others.key?(plain)
        it "addresses the one partition of its stream: #{name}", table: do
          expect_partitions([partition_of(streams[1])], name, streams[1], *others[plain])
        end
      elsif batched.key?(plain)
        it "addresses the partitions of its streams and no other: #{name}", table: do
          given = others.fetch(batched[plain]).map { |parameter| [parameter] * 3 }

          expect_partitions(each_partition, name, streams, *given, settings: very_large)
        end
      end
    end

    it "addresses the one partition of its stream, or those of its streams: EXPIRE_SEATS" do
      expect_partitions([partition_of(streams[1])], "EXPIRE_SEATS", [streams[1]], ["100"], "10000")
      expect_partitions(each_partition, "EXPIRE_SEATS", streams, ["100"] * 3, "10000")
    end

    it "looks for stale seats in all partitions: STALE_STREAMS" do
      expect_partitions(Partitions::ALL, "STALE_STREAMS", "100")
    end

    it "looks for the seats' columns in none: SEAT_COLUMNS" do
      expect_partitions([], "SEAT_COLUMNS")
    end

    it "broadcasts without a look at the table: NOTIFY" do
      expect_partitions([], "NOTIFY", "{}")
    end

    it "says so of every statement there is" do
      named = others.keys + batched.keys + %w[EXPIRE_SEATS STALE_STREAMS SEAT_COLUMNS NOTIFY]
      statements = Pgbus::Native::Statements.constants.map { |name| name.to_s.delete_suffix("_BEFORE_SEATS") }

      expect(statements.uniq).to match_array(named)
    end
  end

  Implementation::GEM.each do |implementation|
    it "goes on in other partitions while one is locked, on the #{implementation.name}", implementation: do
      fill
      blocked, free = streams_of_different_partitions(2)
      presence = presence_of(free)
      calls = lambda do
        presence.join(member_id: "7")
        presence.join(member_id: "7", connection_id: "c7")
        presence.touch(member_id: "7")
        presence.touch(connection_id: "c7")
        presence.touch(connection_id: %w[c7 c8])
        presence.set_state(connection_id: "c7", state: { a: 1 })
        presence.sweep!(older_than: Time.now - 3600)
        [presence.count == presence.members.size,
         presence.leave(connection_id: "c7")["id"], presence.leave(member_id: "7")["id"]]
      end

      # A session considers a plan for all parameters the sixth time, which needs every partition for a moment.
      8.times { calls.call }

      while_locked("LOCK TABLE #{partition_of(blocked)}") do
        calling = in_thread { Array.new(12) { calls.call } }

        expect(calling.join(Waiting::DEADLINE)&.value).to eq([[true, "7", "7"]] * 12)
      ensure
        calling&.kill
      end
    end
  end
end
