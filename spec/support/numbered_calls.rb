# frozen_string_literal: true

# Calls on a stream of the caller's own, each with a number of its own, which the answer must have: an answer to
# somebody else's call raises. Needs nothing of RSpec, so that other processes can make them too.
class NumberedCalls
  KINDS = %i[join_seat join_member join_seat set_state members touch leave count].freeze

  def initialize(presence, stream_name)
    @presence = presence
    @stream_name = stream_name
  end

  # Makes the call of this number and checks its answer.
  def call(number)
    send(KINDS[number % KINDS.size], number)
  end

  # Makes the calls of these numbers; gives how many there were.
  def calls(numbers)
    numbers.each { |number| call(number) }.size
  end

  # Makes calls until the block says that it is enough; gives how many there were.
  def calls_until
    number = 0
    until yield
      call(number)
      number += 1
    end
    number
  end

  private

  def join_seat(number)
    record = @presence.join(member_id: id(number), connection_id: seat(number), metadata: { id: id(number) })
    same(record.values_at("id", "connection_id", "metadata"), [id(number), seat(number), { "id" => id(number) }])
  end

  def join_member(number)
    record = @presence.join(member_id: id(number), metadata: { id: id(number) })
    same(record.values_at("id", "metadata"), [id(number), { "id" => id(number) }])
  end

  def set_state(number) # rubocop:disable Naming/AccessorMethodName -- named after the call
    record = @presence.set_state(connection_id: seat(number), state: { id: id(number) })
    same(record.dig("state", "id"), id(number)) if record
  end

  def members(_)
    ids = @presence.members.map { |record| record["metadata"]["id"] }
    same(ids.reject { |id| id.start_with?("#{@stream_name}/") }, [])
  end

  def touch(number)
    asked = [seat(number), seat(number + 1), "nobody"]
    same(@presence.touch(connection_id: asked) - asked.first(2), [])
  end

  # Of the member that joined a few numbers ago.
  def leave(number)
    joined = id(number - 5)
    record = @presence.leave(member_id: joined)
    same(record["metadata"], { "id" => joined }) if record
  end

  def count(_)
    same(@presence.count.class, Integer)
  end

  def id(number)
    "#{@stream_name}/#{number}"
  end

  # Few of them, so that they are joined anew again and again.
  def seat(number)
    "#{@stream_name}/seat#{number % 5}"
  end

  def same(answer, expected)
    raise "another's answer in #{@stream_name}: #{answer.inspect} instead of #{expected.inspect}" if answer != expected
  end
end
