# frozen_string_literal: true

# What a client makes of an event stream, by the rules of the HTML standard (section "Server-sent events", parsing and
# interpreting). It knows nothing of how pgbus writes one.
class EventStream
  Event = Data.define(:type, :data, :id)

  # Events in order; comments; the reconnection time in milliseconds; the last event id; names of fields that no client
  # knows.
  attr_reader :events, :comments, :retry, :last_event_id, :unknown

  def initialize(bytes)
    @events = []
    @comments = []
    @unknown = []
    @last_event_id = ""
    start_event
    lines(decode(bytes)).each { |line| take(line) }
  end

  private

  # "UTF-8 decode": one byte order mark goes, and what is no UTF-8 becomes U+FFFD.
  def decode(bytes)
    bytes.b.delete_prefix("\xEF\xBB\xBF".b).force_encoding(Encoding::UTF_8).scrub("\uFFFD")
  end

  # A line ends with CR LF, LF or CR, and with nothing else; what comes after the last end is no line yet.
  def lines(text)
    text.scan(/([^\r\n]*)(?:\r\n|\n|\r)/).flatten
  end

  def take(line)
    return dispatch if line.empty?
    return comments << line.delete_prefix(":") if line.start_with?(":")

    name, value = line.split(":", 2)
    field(name, value.to_s.delete_prefix(" "))
  end

  def field(name, value)
    case name
    when "event" then @type = value
    when "data" then @data << value << "\n"
    when "id" then @last_event_id = value unless value.include?("\0")
    when "retry" then @retry = Integer(value, 10) if value.match?(/\A[0-9]+\z/)
    else unknown << name
    end
  end

  def dispatch
    events << Event.new(type: @type.empty? ? "message" : @type, data: @data.delete_suffix("\n"), id: last_event_id) \
      unless @data.empty?
    start_event
  end

  def start_event
    @type = +""
    @data = +""
  end
end
