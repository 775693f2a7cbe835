# frozen_string_literal: true

# JSON text drawn from a seed: what PostgreSQL's json type takes, in all its spellings.
class RandomJson
  STRINGS = ["", "a", "ü", "😀", "NULL", "\\\\", "\\\"", "\\/", "\\b\\f\\n\\r\\t", "\\u00fc", "\\uD83D\\uDE00",
             "\\u0001", "\u2028", "\u007f", "<script>", "\\u0000", "\\ud800", "x" * 300].freeze
  NUMBERS = %w[0 -0 1 -1 0.0 -0.0 1.0 1.5 -1.5e3 1e5 1E+5 1e-5 0.1 0.30000000000000004 123456789.123456789
               9007199254740991 9007199254740992 9007199254740993.0 9223372036854775807 9223372036854775808
               -9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616
               123456789012345678901234567890 1e22 1e23 1.7976931348623157e308 5e-324 2.2250738585072014e-308 1e308
               4.9e-324 1e-400 0e10 0.000001 1e15 1e16 100000000000000000000.5 1.0000000000000002].freeze
  SPACES = ["", "", "", " ", "\n", "\t", "  \r\n "].freeze

  def initialize(random)
    @random = random
  end

  # A text; nested so deep at most.
  def text(levels = 5)
    padded(value(levels))
  end

  # A text nested exactly so deep.
  def nested(levels)
    inner = scalar
    levels.times { inner = chance(50) ? "[#{inner}]" : "{\"a\":#{inner}}" }
    inner
  end

  private

  def value(levels)
    return scalar if levels.zero? || chance(30)

    elements = Array.new(@random.rand(5)) { padded(value(levels - 1)) }
    return "[#{elements.join(",")}]" if chance(40)

    "{#{elements.map { |element| "#{padded(string)}:#{element}" }.join(",")}}"
  end

  def scalar
    case @random.rand(8)
    when 0 then %w[true false null].sample(random: @random)
    when 1..2 then NUMBERS.sample(random: @random)
    when 3 then number
    else string
    end
  end

  def string
    "\"#{Array.new(@random.rand(4)) { STRINGS.sample(random: @random) }.join}\""
  end

  # Any digits, with or without point and exponent.
  def number
    digits = @random.rand(10**@random.rand(1..25)).to_s
    digits = "-#{digits}" if chance(30)
    digits += ".#{@random.rand(10**@random.rand(1..18))}" if chance(40)
    digits += "e#{@random.rand(-40..40)}" if chance(20)
    digits
  end

  def padded(text)
    "#{SPACES.sample(random: @random)}#{text}#{SPACES.sample(random: @random)}"
  end

  def chance(percent)
    @random.rand(100) < percent
  end
end
