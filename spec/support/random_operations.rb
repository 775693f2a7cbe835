# frozen_string_literal: true

# Operations on presence drawn from a seed: the same seed, the same operations. None depends
# on what another gave, so that each implementation can be put through all of them by itself.
class RandomOperations
  # Of the name (see Trace), on a stream of that name, with the arguments.
  Operation = Data.define(:name, :stream, :arguments) do
    def to_s
      "#{name}(#{arguments.inspect}) on #{stream.inspect}"
    end
  end

  STREAMS = ["room:1", "room:2", "r\u00f6om \"3\""].freeze
  IDS = ["7", "8", "ada", "", "NULL", "{a,\"b\\}", "ü😀", "'", " x "].freeze
  BAD_IDS = ["a\0b", "\xFF"].freeze
  # Rows are aged to whole thousands of seconds, cutoffs and ttls lie between: which rows
  # they catch does not depend on how fast a run is.
  AGES = [1000, 2000, 3000].freeze
  CUTOFFS = [500, 1500, 2500].freeze
  HTML = ["<p>", "", nil, :html].freeze

  WEIGHTS = { join: 20, join_seat: 25, leave: 6, leave_seat: 10, touch: 6, touch_seats: 10, set_state: 10, members: 8,
              count: 3, age: 12, sweep!: 4, expire_seats!: 4, seats: 2, wrong: 2 }.freeze

  def initialize(seed, seats: true)
    @random = Random.new(seed)
    @names = WEIGHTS.flat_map { |name, weight| [name] * weight }
    @names -= %i[set_state join_seat leave_seat touch_seats] unless seats
    @seats = seats
  end

  def take(count)
    Array.new(count) do
      name = pick(@names)
      Operation.new(name:, stream: pick(STREAMS), arguments: send(:"arguments_of_#{name.to_s.delete("!")}"))
    end
  end

  private

  def pick(values)
    values[@random.rand(values.size)]
  end

  def chance(percent)
    @random.rand(100) < percent
  end

  def id
    value = pick(IDS)
    value = value.encode("UTF-16LE") if value.ascii_only? && chance(5)
    value == "7" && chance(50) ? 7 : value
  end

  def arguments_of_join
    { member_id: id, metadata: json(3), html: pick(HTML) }
  end

  def arguments_of_join_seat
    { **arguments_of_join, connection_id: id, seat: chance(30) ? nil : id }
  end

  def arguments_of_leave
    { member_id: id, html: pick(HTML) }
  end

  def arguments_of_leave_seat
    { connection_id: id, html: pick(HTML) }
  end

  def arguments_of_touch
    { member_id: id }
  end

  def arguments_of_touch_seats
    { connection_id: chance(30) ? pick(IDS) : Array.new(@random.rand(6)) { pick(IDS) } }
  end

  def arguments_of_set_state
    { connection_id: id, state: Array.new(@random.rand(3)) { [pick(%w[typing cursor selected]), json(2)] }.to_h }
  end

  def arguments_of_age
    { member_id: pick(IDS), seconds: pick(AGES) }
  end

  def arguments_of_sweep
    { seconds: pick(CUTOFFS) }
  end

  def arguments_of_expire_seats
    ttls = STREAMS.to_h { |stream| [stream, pick(CUTOFFS) + (chance(50) ? 0.5 : 0)] }
    { ttls:, min_ttl: ttls.values.min }
  end

  # A call that is refused, by Ruby or by the server; for one reason, not for either of two.
  def arguments_of_wrong
    bad = pick(BAD_IDS)
    seats = [[:join, { member_id: "7", connection_id: bad }], [:leave, { connection_id: bad }]]
    pick([
           *(seats if @seats), [:join, { member_id: bad }], [:leave, { member_id: "7", connection_id: "8" }],
           [:leave, {}], [:touch, {}], [:touch, { member_id: bad }], [:set_state, { connection_id: "7", state: [] }],
           [:join, { member_id: "7", metadata: { a: "\0" } }], [:join, { member_id: "7", metadata: Float::NAN }],
           [:sweep!, { older_than: "no time" }], [:count, { of: 1 }]
         ])
  end

  def arguments_of_members = {}
  def arguments_of_count = {}
  def arguments_of_seats = {}

  # Something that JSON can hold, nested up to so many levels.
  def json(levels)
    return scalar if levels.zero? || chance(20)

    size = @random.rand(4)
    return Array.new(size) { json(levels - 1) } if chance(30)

    Array.new(size) { [chance(80) ? pick(%w[name a b ü]) : text, json(levels - 1)] }.to_h
  end

  def scalar
    case @random.rand(8)
    when 0 then nil
    when 1 then chance(50)
    when 2 then @random.rand(2**70) - (2**69)
    when 3 then @random.rand * (10**@random.rand(-20..20))
    when 4 then @random.rand(10).to_f
    when 5 then pick([0, -1, -0.0, 2**63, 2**64, 10**40])
    else text
    end
  end

  def text
    Array.new(@random.rand(8)) { pick(["a", "ü", "😀", "\"", "\\", "\n", "\u0001", "/", "<", "\u2028", " "]) }.join
  end
end
