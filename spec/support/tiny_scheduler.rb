# frozen_string_literal: true

# As little of a fiber scheduler as Ruby asks for: waiting for IO, sleeping, and blocking until
# another fiber or thread unblocks, each with a timeout, and Timeout.timeout.
class TinyScheduler
  # Runs the block in a fiber of a scheduler on a thread of its own, until all its fibers have ended.
  def self.run(within: 30, &)
    thread = Thread.new do
      Thread.current.report_on_exception = false
      scheduler = new
      Fiber.set_scheduler(scheduler)
      Fiber.schedule(&)
      scheduler.run
      scheduler.raise_first_error
    ensure
      Fiber.set_scheduler(nil)
    end
    raise "fibers still running after #{within} s" unless thread.join(within)
  ensure
    thread&.kill
  end

  def initialize
    @readable = {}
    @writable = {}
    @sleeping = {}
    @timeouts = []
    @blocked = {}
    @ready = []
    @lock = Mutex.new
    @wake_reader, @wake_writer = IO.pipe
    @errors = []
  end

  def raise_first_error
    raise @errors.first if @errors.any?
  end

  def run
    turn until [@readable, @writable, @sleeping, @blocked, @ready].all?(&:empty?)
  end

  # What Ruby calls, see Fiber::Scheduler.

  def fiber
    fiber = Fiber.new(blocking: false) do
      yield
    rescue StandardError => e
      @errors << e
    end
    fiber.tap(&:resume)
  end

  def io_wait(io, events, timeout)
    @readable[io] = Fiber.current if events.anybits?(IO::READABLE)
    @writable[io] = Fiber.current if events.anybits?(IO::WRITABLE)
    @sleeping[Fiber.current] = now + timeout if timeout
    Fiber.yield || false
  ensure
    @readable.delete(io)
    @writable.delete(io)
    @sleeping.delete(Fiber.current)
  end

  def kernel_sleep(duration = nil)
    block(:sleep, duration)
  end

  def block(_blocker, timeout = nil)
    @blocked[Fiber.current] = true
    @sleeping[Fiber.current] = now + timeout if timeout
    Fiber.yield
  ensure
    @blocked.delete(Fiber.current)
    @sleeping.delete(Fiber.current)
  end

  def timeout_after(duration, error, *arguments)
    timeout = [now + duration, Fiber.current, error, arguments]
    @timeouts << timeout
    yield duration
  ensure
    @timeouts.delete(timeout)
  end

  # May be called from any thread.
  def unblock(_blocker, fiber)
    @lock.synchronize { @ready << [fiber, true] }
    @wake_writer.write_nonblock(".", exception: false)
  end

  def close
    run
  end

  private

  def turn
    readable, writable = IO.select([@wake_reader, *@readable.keys], @writable.keys, nil, patience)
    @wake_reader.read_nonblock(1000, exception: false) if readable&.include?(@wake_reader)
    expire_timeouts
    woken = [*waiting_for(readable, @readable, IO::READABLE), *waiting_for(writable, @writable, IO::WRITABLE), *due,
             *@lock.synchronize { @ready.slice!(0..) }]
    woken.uniq(&:first).each { |fiber, result| fiber.resume(result) if fiber.alive? }
  end

  def waiting_for(ios, fibers, event)
    fibers.slice(*ios).values.map { |fiber| [fiber, event] }
  end

  def due
    @sleeping.select { |_, time| time <= now }.keys.map { |fiber| [fiber, nil] }
  end

  def patience
    return 0 if @lock.synchronize { @ready.any? }

    earliest = [*@sleeping.values, *@timeouts.map(&:first)].min
    earliest && [earliest - now, 0].max
  end

  def expire_timeouts
    expired, @timeouts = @timeouts.partition { |time, *| time <= now }
    expired.each { |_, fiber, error, arguments| fiber.raise(error, *arguments) if fiber.alive? }
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
