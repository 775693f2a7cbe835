# frozen_string_literal: true

# What one caller knows of its own seats on a stream that nobody else writes to: every answer is held against
# what was acknowledged before, and so is the table in the end. A call that raised leaves two possibilities,
# that it happened and that it did not; the next answer about that seat tells which.
class Ledger
  # A call that failed for want of a connection.
  Failure = Data.define(:operation, :started, :ended, :error) do
    def delete?
      operation == :leave
    end

    def seconds
      ended - started
    end
  end

  OPERATIONS = %i[join join leave touch set_state members count].freeze

  attr_reader :stream_name, :failures, :calls

  def initialize(presence, stream_name, seed, seats: 6)
    @presence = presence
    @stream_name = stream_name
    @random = Random.new(seed)
    @ids = Array.new(seats) { |number| "#{stream_name}/#{number}" }
    # By seat, what the table may hold: the number of a join, or nil for no row.
    @possible = @ids.to_h { |id| [id, [nil]] }
    @joins = 0
    @calls = 0
    @failures = []
  end

  # Makes random calls until the block says that it is enough.
  def work
    # Where there is no server, asking again at once would only heat the room.
    call(OPERATIONS.sample(random: @random)) || sleep(0.02) until yield
    self
  end

  # Makes one call. Whether it succeeded.
  def call(operation)
    @calls += 1
    started = now
    send(operation, @ids.sample(random: @random))
    true
  rescue PG::ConnectionBad, ActiveRecord::ConnectionNotEstablished => e
    @failures << Failure.new(operation:, started:, ended: now, error: e)
    false
  end

  # Holds the rows of the table against what was acknowledged.
  def audit(rows)
    numbers = rows.to_h { |row| [row["connection_id"], JSON.parse(row["metadata"])["number"]] }
    @ids.each { |id| learn(id, numbers[id], "the table") }
  end

  private

  def join(id)
    number = @joins += 1
    @possible[id] |= [number]
    record = @presence.join(member_id: id, connection_id: id, metadata: { number:, id: })
    @possible[id] = [number]
    expect_own(record, id)
  end

  def leave(id)
    possible = @possible[id]
    @possible[id] |= [nil]
    record = @presence.leave(connection_id: id)
    @possible[id] = possible
    learn(id, number_in(record, id), "leave")
    @possible[id] = [nil]
  end

  def touch(_)
    asked = @ids.sample(3, random: @random)
    found = @presence.touch(connection_id: asked)
    raise "touch of #{asked} found #{found}" unless (found - asked).empty?

    asked.each { |id| found.include?(id) ? there(id, "touch") : learn(id, nil, "touch") }
  end

  def set_state(id) # rubocop:disable Naming/AccessorMethodName -- named after the call
    record = @presence.set_state(connection_id: id, state: { id => @calls })
    learn(id, number_in(record, id), "set_state")
    raise "set_state answered with #{record}" if record && record["state"][id] != @calls
  end

  def members(_)
    numbers = @presence.members.to_h { |record| [record["connection_id"], number_in(record, record["id"])] }
    raise "members has strangers: #{numbers.keys - @ids}" unless (numbers.keys - @ids).empty?

    @ids.each { |id| learn(id, numbers[id], "members") }
  end

  def count(_)
    count = @presence.count
    least = @possible.count { |_, numbers| !numbers.include?(nil) }
    most = @possible.count { |_, numbers| numbers != [nil] }
    raise "count is #{count}, not in #{least}..#{most}" unless count.between?(least, most)
  end

  # An answer says that the seat's row is that of the join of this number, or that there is none.
  def learn(id, number, source)
    possible = @possible.fetch(id)
    raise "#{source}: #{id} is #{number.inspect}, acknowledged was #{possible}" unless possible.include?(number)

    @possible[id] = [number]
  end

  def there(id, source)
    numbers = @possible[id].compact
    raise "#{source}: #{id} is there, though it left" if numbers.empty?

    @possible[id] = numbers
  end

  def number_in(record, id)
    return unless record

    expect_own(record, id)
    record["metadata"]["number"]
  end

  def expect_own(record, id)
    own = record.values_at("id", "connection_id") == [id, id] && record["metadata"]["id"] == id
    raise "another's record in place of that of #{id}: #{record}" unless own
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
