# frozen_string_literal: true

require_relative "support/busy_process"
require_relative "support/fault_server"

# Many processes on the same rows, as the web processes of an application are: each touches the seats of its
# connections and expires those of others. On a server of their own, whose count of deadlocks is nobody else's.
RSpec.describe "Presence among sweepers", :fault_server, :slow, implementation: Implementation::AUTO do
  def deadlocks
    server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").first["deadlocks"].to_i
  end

  it "has no deadlock, expires no live seat, and reports each expired one exactly once" do
    ttl = 4
    before = deadlocks
    BusyProcess::STREAMS.product(BusyProcess::SHARED) do |stream, seat|
      presence_of(stream).join(member_id: "shared", connection_id: seat)
    end
    children = Array.new(8) { |number| fork_child { BusyProcess.new(presence_class, number, ttl:).work(30) } }
    deeds = children.map { |child| child.value(within: 60) }

    # The shared seats have lived through it; what was forgotten last is due now.
    BusyProcess::STREAMS.each { |stream| BusyProcess.touch_shared(presence_class, stream) }
    server.sql("UPDATE pgbus_presence_members SET last_seen_at = last_seen_at - interval '1000 s'
                WHERE connection_id NOT LIKE 'shared/%'")
    last = BusyProcess.expire(presence_class, ttl)

    expect(deeds.map(&:longest_pause)).to all(be < ttl)
    expired = deeds.flat_map(&:returned)
    expect(expired.size).to be > 100
    expect(expired + last).to match_array(deeds.flat_map(&:forgotten))
    expect(deeds.flat_map(&:reported)).to match_array(expired)
    expect(deadlocks).to eq(before)
    expect(server.log).not_to include("deadlock")
  end

  # Processes with many threads that touch, join and change the same seats.
  def crowd(ids)
    ids.each { |id| presence.join(member_id: id, connection_id: id) }
    children = Array.new(4) do |number|
      fork_child do
        random = Random.new(number)
        in_threads(12, within: 50) { 60.times { touch_join_and_change(ids, random) } }
        :done
      end
    end
    children.map { |child| child.value(within: 60) }
  end

  def touch_join_and_change(ids, random)
    presence.touch(connection_id: ids.shuffle(random:))
    presence.join(member_id: "x", connection_id: ids.sample(random:))
    presence.set_state(connection_id: ids.sample(random:), state: { n: 1 })
  end

  it "has no deadlock between touches of many seats and calls that share statements" do
    before = deadlocks

    expect(crowd(Array.new(40) { |number| "c#{number}" })).to eq([:done] * 4)
    expect(deadlocks).to eq(before)
  end

  it "has no deadlock where ids are citext, whose order is not that of text" do
    server.sql("CREATE EXTENSION IF NOT EXISTS citext")
    %w[stream_name member_id connection_id].each do |column|
      server.sql("ALTER TABLE pgbus_presence_members ALTER #{column} TYPE citext")
    end
    before = deadlocks

    expect(crowd(%w[a B c D e F g H])).to eq([:done] * 4)
    expect(deadlocks).to eq(before)
  end
end
