# frozen_string_literal: true

# Threads that call presence, all of it, until the block ends.
module MixedCalls
  MEMBER_CALLS = [
    ->(presence, id) { presence.join(member_id: id, metadata: { id: }) },
    ->(presence, id) { presence.touch(member_id: id) },
    ->(presence, _) { presence.members },
    ->(presence, _) { presence.count },
    ->(presence, id) { presence.leave(member_id: id) },
    ->(presence, _) { presence.sweep!(older_than: Time.now - 3600) },
    ->(presence, _) { presence.seats_now? }
  ].freeze

  SEAT_CALLS = [
    ->(presence, id) { presence.join(member_id: id, connection_id: id) },
    ->(presence, id) { presence.touch(connection_id: [id, "none"]) },
    ->(presence, id) { presence.set_state(connection_id: id, state: { id: }) },
    ->(presence, id) { presence.leave(connection_id: id) }
  ].freeze

  # Every other thread has its calls on ActiveRecord's connection.
  #
  # @yieldparam errors [#call] the errors so far, but for seat calls that found no seat columns
  # @yieldparam some_calls [#call] waits until each thread has made some more
  def under_mixed_calls(threads:)
    errors = Thread::Queue.new
    made = Array.new(threads, 0)
    running = Array.new(threads) do |number|
      in_thread { loop { make_calls(number, errors) && made[number] += 1 } }
    end
    some_calls = lambda do
      goals = made.map { |count| count + 3 }
      wait_until("each thread makes calls", within: 30) { made.zip(goals).all? { |count, goal| count >= goal } }
    end
    some_calls.call
    yield -> { Array.new(errors.size) { errors.pop } }, some_calls
  ensure
    running&.each { |thread| thread.kill.join }
  end

  private

  def make_calls(number, errors)
    Pgbus::Native.with_route(number.odd? ? :active_record : :auto) do
      id = "member #{number}"
      MEMBER_CALLS.shuffle.each { |call| record_error(errors) { call.call(presence, id) } }
      SEAT_CALLS.shuffle.each { |call| record_error(errors, PG::UndefinedColumn) { call.call(presence, id) } }
    end
  end

  def record_error(errors, *allowed)
    yield
  rescue *allowed
    nil
  rescue StandardError => e
    errors << "#{e.class}: #{e.message} #{e.backtrace.grep(/mixed_calls/).first}"
  end
end
