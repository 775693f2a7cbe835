# frozen_string_literal: true

# One process of several that work on the same rows for a while: it keeps shared seats alive, joins seats of its
# own that it leaves or forgets, expires what others forgot, and sweeps members. Raises where an answer is wrong.
class BusyProcess
  STREAMS = ["room:0", "room:1", "room:2"].freeze
  # Seats that live all the time.
  SHARED = Array.new(20) { |seat| "shared/#{seat}" }.freeze

  # What the process did; seats are [stream, connection] pairs. `forgotten` ones it never touched again,
  # `returned` and `reported` are those that it expired, `longest_pause` is the time, in seconds, for which it
  # touched nothing.
  Deeds = Struct.new(:forgotten, :returned, :reported, :longest_pause)

  def initialize(presence_class, number, ttl:)
    @presence_class = presence_class
    @number = number
    @ttl = ttl
    @random = Random.new(number)
    @deeds = Deeds.new([], [], [], 0)
    @joined = 0
  end

  # Works for so many seconds.
  def work(seconds)
    note_reports
    over = now + seconds
    while (round = now) < over
      STREAMS.shuffle(random: @random).each { |stream| keep_alive(stream) }
      5.times { come_and_go(pick(STREAMS)) }
      @deeds.returned.concat(expire)
      sweep(pick(STREAMS))
      @deeds.longest_pause = [@deeds.longest_pause, now - round].max
    end
    @deeds
  end

  # Touches the seats that live all the time.
  def self.touch_shared(presence_class, stream, order = SHARED)
    found = presence_class.new(SpecStream.new(stream)).touch(connection_id: order)
    raise "live seats of #{stream} are gone: #{order - found}" unless found.size == order.size
  end

  # Expires what is due; gives the seats.
  def self.expire(presence_class, ttl)
    records = presence_class.expire_seats!(ttl_for: ->(_) { ttl }, min_ttl: ttl)
    records.map { |record| record.values_at("stream_name", "connection_id") }
  end

  private

  def note_reports
    Pgbus.configuration.on_presence_change = lambda do |stream, change|
      @deeds.reported << [stream, change[:connection_id]] if change[:type] == :leave
    end
  end

  # All processes touch the same seats, each time in another order.
  def keep_alive(stream)
    self.class.touch_shared(@presence_class, stream, SHARED.shuffle(random: @random))
    presence = presence_of(stream)
    presence.set_state(connection_id: pick(SHARED), state: { n: @random.rand(100) })
    presence.join(member_id: "shared", connection_id: pick(SHARED))
  end

  def come_and_go(stream)
    seat = [stream, "#{@number}/#{@joined += 1}"]
    presence_of(stream).join(member_id: seat.last, connection_id: seat.last)
    return @deeds.forgotten << seat if @random.rand(2).zero?

    presence_of(stream).leave(connection_id: seat.last) || raise("#{seat} was expired alive")
    # A leave is reported like an expiry.
    @deeds.reported.delete(seat)
  end

  def expire
    self.class.expire(@presence_class, @ttl)
  end

  # Members that all processes join, touch, leave and sweep.
  def sweep(stream)
    presence = presence_of(stream)
    ids = Array.new(10) { |member| "member#{member}" }.shuffle(random: @random)
    ids.first(3).each do |id|
      presence.join(member_id: id)
      presence.touch(member_id: id)
    end
    presence.leave(member_id: ids.last)
    presence.sweep!(older_than: Time.now - (@random.rand * 0.2))
  end

  def presence_of(stream)
    @presence_class.new(SpecStream.new(stream))
  end

  def pick(values)
    values.sample(random: @random)
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
