# frozen_string_literal: true

require_relative "random_operations"

# What one implementation did, operation by operation, in a form that compares: times are
# told by their relation to the table's, since each implementation runs at its own time.
class Trace
  Step = Data.define(:operation, :result, :yielded, :broadcasts, :changes, :table)

  MICROSECONDS = <<~SQL
    SELECT *, metadata::text AS metadata, (extract(epoch FROM joined_at) * 1000000)::bigint AS joined_at,
           (extract(epoch FROM last_seen_at) * 1000000)::bigint AS last_seen_at
    FROM pgbus_presence_members
  SQL

  def initialize(implementation)
    @implementation = implementation
    @rows = {}
  end

  # Runs the operations and gives a Step of each.
  def of(operations)
    @implementation.use { operations.map { |operation| step(operation) } }
  end

  private

  def step(operation)
    @implementation.pgbus.start_over
    @yielded = []
    @stream = SpecStream.new(operation.stream)
    result = run(operation)
    @before = @rows
    @rows = SpecDatabase.sql(MICROSECONDS).to_h do |row|
      [row.values_at("stream_name", "member_id", "connection_id"), row]
    end
    Step.new(operation: operation.to_s, result: comparable(result), yielded: @yielded.map do |record|
                                                                               comparable(record)
                                                                             end,
             broadcasts: @stream.broadcasts, changes: changes, table:)
  end

  def run(operation)
    presence = @implementation.presence_class.new(@stream)
    send(:"run_#{operation.name.to_s.delete("!")}", presence, operation.arguments)
  rescue StandardError => e
    [:raised, e.class]
  end

  def run_join(presence, arguments)
    presence.join(**arguments.except(:html)) { |record| @yielded.push(record) && arguments[:html] }
  end

  def run_leave(presence, arguments)
    presence.leave(**arguments.except(:html)) { |record| @yielded.push(record) && arguments[:html] }
  end

  alias run_join_seat run_join
  alias run_leave_seat run_leave

  # What touching a member returns is nobody's business.
  def run_touch(presence, arguments)
    presence.touch(**arguments) && nil
  end

  def run_touch_seats(presence, arguments)
    presence.touch(**arguments).sort
  end

  def run_set_state(presence, arguments)
    presence.set_state(**arguments)
  end

  def run_members(presence, _)
    presence.members
  end

  def run_count(presence, _)
    presence.count
  end

  def run_seats(presence, _)
    [presence.seats?, presence.seats_now?]
  end

  def run_age(_, arguments)
    SpecDatabase.sql("UPDATE pgbus_presence_members SET last_seen_at = now() - make_interval(secs => $1)
                      WHERE member_id = $2 AND stream_name = $3", arguments[:seconds], arguments[:member_id],
                     @stream.name)
  end

  def run_sweep(presence, arguments)
    cutoff = SpecDatabase.sql("SELECT now() - make_interval(secs => $1) AS time", arguments[:seconds]).first["time"]
    presence.sweep!(older_than: cutoff) { |record| @yielded << record }
  ensure
    @yielded.sort_by! { |record| record["id"] }
  end

  def run_expire_seats(presence, arguments)
    presence.class.expire_seats!(ttl_for: arguments[:ttls].method(:fetch), min_ttl: arguments[:min_ttl])
            .sort_by { |record| record.values_at("stream_name", "connection_id") }
  end

  def run_wrong(presence, (name, arguments))
    presence.public_send(name, **arguments)
  end

  def changes
    configuration = @implementation.pgbus.configuration
    Array.new(configuration.changes.size) { configuration.changes.pop }.sort_by(&:inspect)
  end

  def table
    @rows.map do |key, row|
      before = @before[key]
      row.merge("joined_at" => kept_or_new(before, row, "joined_at"),
                "last_seen_at" => kept_or_new(before, row, "last_seen_at"))
    end.sort_by(&:inspect)
  end

  def kept_or_new(before, row, column)
    before && before[column] == row[column] ? :kept : :new
  end

  # inspect, since == knows no difference between 1 and 1.0, nor between two orders of keys.
  def comparable(result)
    replace_times(result).inspect
  end

  def replace_times(result)
    case result
    when Array then result.map { |element| replace_times(element) }
    when Hash then result.to_h { |key, value| [key, value.is_a?(Time) ? relation(result, key, value) : value] }
    else result
    end
  end

  # Whether the time is the one in the row, as it is now or, where it is gone, as it was.
  def relation(record, column, time)
    key = [record.fetch("stream_name", @stream.name), record["id"], record["connection_id"]]
    microseconds = (time.to_r * 1_000_000).to_i.to_s
    { now: @rows[key], before: @before[key] }.find { |_, row| row && row[column] == microseconds }&.first || :strange
  end
end
