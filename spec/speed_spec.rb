# frozen_string_literal: true

# The floor: no call slower than with plain Ruby, and `members` well faster. Both take turns in the same run, and
# medians are compared. Other work on the machine blurs that, so the best of a few runs counts: noise makes a call
# look slow in one run, a slow call is slow in all of them. On a machine that is busy with other things the figures
# mean nothing, so bin/test leaves them out; see spec_helper.rb.
RSpec.describe "Presence's speed beside plain Ruby's", :speed do
  runs = 3

  before do
    skip Implementation::PLAIN_RUBY.unavailable if Implementation::PLAIN_RUBY.unavailable

    SpecDatabase.table
    [Implementation::NATIVE, Implementation::PLAIN_RUBY].each do |implementation|
      implementation.pgbus.start_over
      implementation.presence_class.reset_schema_cache!
    end
  end

  def presence_on(implementation)
    implementation.presence_class.new(SpecStream.new("speed"))
  end

  # How many times as fast the block is on the native route as with plain Ruby.
  def speed(turns)
    native, plain = [Implementation::NATIVE, Implementation::PLAIN_RUBY].map do |implementation|
      presence = presence_on(implementation)
      [[], -> { implementation.use { seconds { yield presence } } }]
    end
    turns.times { [native, plain].each { |times, call| times << call.call } }
    median(plain.first) / median(native.first)
  end

  def seconds
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  end

  def median(times)
    times.sort[times.size / 2]
  end

  def fill(seats)
    sql(<<~SQL)
      INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, seat, metadata, state)
      SELECT 'speed', 'm' || n, 'c' || n, 's' || n,
             jsonb_build_object('name', 'Member ' || n, 'avatar', '/avatars/' || n || '.png', 'admin', n % 2 = 0),
             jsonb_build_object('selected', n, 'color', '#ff8800')
      FROM generate_series(1, #{seats}) n
    SQL
    sql("ANALYZE pgbus_presence_members")
  end

  {
    "join of a member" => ->(presence) { presence.join(member_id: "7", metadata: { name: "Ada" }) },
    "join of a seat" => lambda do |presence|
      presence.join(member_id: "7", metadata: { name: "Ada" }, connection_id: "c7", seat: "tab")
    end,
    "touch of a member" => ->(presence) { presence.touch(member_id: "7") },
    "touch of a connection" => ->(presence) { presence.touch(connection_id: "c7") },
    "touch of 20 connections" => ->(presence) { presence.touch(connection_id: (1..20).map { |n| "c#{n}" }) },
    "touch of 200 connections" => ->(presence) { presence.touch(connection_id: (1..200).map { |n| "c#{n}" }) },
    "set_state" => ->(presence) { presence.set_state(connection_id: "c7", state: { selected: 1 }) },
    "leave of nobody" => ->(presence) { presence.leave(connection_id: "nobody") },
    "count" => ->(presence) { presence.count },
    "sweep! of nobody" => ->(presence) { presence.sweep!(older_than: "2000-01-01") },
    "expire_seats! of nobody" => lambda do |presence|
      presence.class.expire_seats!(ttl_for: ->(_) { 1_000_000 }, min_ttl: 1_000_000)
    end
  }.each do |call, block|
    it "is not below it for #{call}" do
      fill(500)

      expect(Array.new(runs) { speed(300, &block) }.max).to be >= 1
    end
  end

  it "is at least 1.8 times it for members of 2,000 seats" do
    fill(2000)

    expect(Array.new(runs) { speed(40, &:members) }.max).to be >= 1.8
  end
end
