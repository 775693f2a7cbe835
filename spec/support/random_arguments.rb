# frozen_string_literal: true

# Arguments of every kind, drawn from a seed.
class RandomArguments
  # What ids may be made of; NUL and bytes that are no text now and then.
  BYTES = ["a", "\"", "\\", "{", "}", ",", "'", "NULL", " ", "\n", "ü", "😀", "%", "$1", "\0", "\xFF",
           "\xED\xA0\x80"].freeze
  ENCODINGS = %w[UTF-8 ASCII-8BIT ISO-8859-1 UTF-16LE UTF-16BE UTF-32LE Windows-1252 Shift_JIS EUC-JP UTF-7
                 US-ASCII].freeze

  # Whose to_s raises, or gives no String.
  class Unfriendly
    def initialize(answer)
      @answer = answer
    end

    def to_s
      @answer.is_a?(Class) ? raise(@answer, "no text") : @answer
    end
  end

  def initialize(random)
    @random = random
  end

  def pick(values)
    values[@random.rand(values.size)]
  end

  def text
    text = Array.new(@random.rand(6)) { pick(BYTES) }.join
    text = @random.bytes(@random.rand(12)) if @random.rand(8).zero?
    text = "x" * 10_000 if @random.rand(50).zero?
    @random.rand(3).zero? ? text.dup.force_encoding(pick(ENCODINGS)) : text
  end

  def number
    pick([0, 1, -1, 1.5, 2**64, 10**30, -0.0, Float::NAN, Float::INFINITY, 1r, 1i, BigDecimal("1e-5")])
  end

  def time
    pick([Time.at(0), Time.now, Time.utc(-4000), Time.utc(9999, 12, 31, 23, 59, 59.999999r), Time.utc(290_000),
          DateTime.now, Date.today, Time.now.getlocal("+05:45"), Time.utc(-5000), Time.utc(300_000)])
  end

  # No text, number or time.
  def oddity
    pick([nil, true, false, :symbol, Object, Object.new, BasicObject, proc { 1 }, 1..2, Thread.current, $stdout,
          Unfriendly.new(nil), Unfriendly.new(7), Unfriendly.new(IOError), Struct.new(:a).new(1)])
  end

  # Anything, nested so deep at most.
  def thing(levels = 2)
    return pick([text, text, number, time, oddity]) if levels.zero? || @random.rand(3).positive?
    return Array.new(@random.rand(4)) { thing(levels - 1) } if @random.rand(2).zero?

    Array.new(@random.rand(4)) { [thing(levels - 1), thing(levels - 1)] }.to_h
  end

  # The name of a method and the keywords for it, right or wrong.
  def call
    method, names = pick([[:join, %i[member_id metadata connection_id seat]], [:leave, %i[member_id connection_id]],
                          [:touch, %i[member_id connection_id]], [:set_state, %i[connection_id state]], [:members, []],
                          [:count, []], [:sweep!, %i[older_than]], [:expire_seats!, %i[ttl_for min_ttl]]])
    keywords = names.reject { @random.rand(5).zero? }.to_h { |name| [name, argument(name)] }
    keywords[:wrong] = 1 if @random.rand(40).zero?
    [method, keywords]
  end

  private

  def argument(name)
    return thing if @random.rand(3).zero?

    case name
    when :state then { text => thing }
    when :older_than then time
    when :ttl_for then ->(_) { pick([1, 1.5, -1, 0, nil, 10**9, Float::INFINITY, "x"]) }
    when :min_ttl then number
    else text
    end
  end
end
