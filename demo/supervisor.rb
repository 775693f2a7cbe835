# frozen_string_literal: true

require "io/wait"
require "json"
require_relative "audit"

module Demo
  # Forks the workers, gives them their lines and kills one; what they report goes to the screen, and the rooms,
  # read from the database, to the screen and the audit.
  class Supervisor
    # Seconds that starting, ending, and a change in the rooms may take on a busy machine.
    PATIENCE = 10

    # Seconds between two looks at the rooms.
    REDRAW = 0.2

    # A worker; +status+ is "running", "killed" or "ended".
    Child = Struct.new(:name, :pid, :commands, :status)

    # +at+ is seconds from the start.
    Event = Struct.new(:at, :worker, :what, :room, :member, :seat, :status, :calls, keyword_init: true)

    # @return [Array<Event>] all that happened, in order
    attr_reader :events

    def initialize(screen)
      @screen = screen
      @audit = Audit.new
      @children = []
      @events = []
      @started = now
    end

    # Plays the script to its end.
    # @raise [Failure]
    def run
      start
      Play.steps.each do |step|
        show_until { elapsed >= step.at }
        perform(step)
      end
      finish
      @audit.check_reports(@events)
    ensure
      stop
    end

    private

    def start
      @reports, writer = IO.pipe
      WORKERS.each { |name| @children << fork_worker(name, writer) }
      writer.close
      ready = within(PATIENCE) { @events.size == WORKERS.size }
      raise Failure, "not every worker was ready after #{PATIENCE} s" unless ready

      @started = now
    end

    def fork_worker(name, writer)
      reader, commands = IO.pipe
      pid = fork do
        # A copy kept here would keep the other workers from seeing their pipe closed.
        [@reports, commands, *@children.map(&:commands)].each(&:close)
        Worker.new(name, reader, writer).run
      end
      reader.close
      Child.new(name, pid, commands, "running")
    end

    def perform(step)
      case step.verb
      when "settle" then settle(elapsed + PATIENCE)
      when "gone" then settle(@killed_at + GONE_WITHIN)
      when "kill" then kill(child(step.worker))
      else
        @audit.expect(step)
        tell(child(step.worker), step.to_a.drop(2).compact.join(" "))
      end
    end

    def tell(child, line)
      child.commands.syswrite("#{line}\n")
    rescue Errno::EPIPE
      raise Failure, "#{child.name} ended unasked"
    end

    def kill(child)
      @killed_at = elapsed
      Process.kill(:KILL, child.pid)
      reap(child, "killed")
      @audit.lose(child.name)
      note(Event.new(at: @killed_at, worker: child.name, what: "killed"))
    end

    # Waits for the rooms to be as they must be.
    def settle(deadline)
      return @screen.settled(@seats) if within(deadline - elapsed) { @audit.difference(@seats).nil? }

      raise Failure, format("after %.1f s the rooms are not as they must be; ", elapsed) + @audit.difference(@seats)
    end

    # Ends the workers as a deployment does; each leaves its seats.
    def finish
      @audit.everybody_leaves
      @children.each { |child| child.commands.close }
      # The workers hold the other end of this pipe: it is at its end when the last of them is.
      raise Failure, "a worker did not end within #{PATIENCE} s" unless within(PATIENCE) { @reports.closed? }

      running.each do |child|
        status = reap(child, "ended")
        raise Failure, "#{child.name} failed: #{status}" unless status.success?
      end
      settle(elapsed + PATIENCE)
    end

    # Ends what still runs, after a failure or Ctrl-C.
    def stop
      running.each do |child|
        Process.kill(:KILL, child.pid)
        reap(child, "killed")
      end
    end

    def running
      @children.select { |child| child.status == "running" }
    end

    # @return [Process::Status]
    def reap(child, status)
      child.commands.close
      child.status = status
      Process.wait2(child.pid).last
    end

    # @return [Boolean] whether the condition came true within so many seconds
    def within(seconds)
      deadline = now + seconds
      met = false
      show_until { (met = yield) || now >= deadline }
      met
    end

    def show_until
      loop do
        @seats = ROOMS.flat_map { |room| Room.new(room).seats }
        @screen.draw(@seats, @children, elapsed)
        break if yield

        collect(now + REDRAW)
      end
    end

    # Takes in what the workers report, until the deadline.
    def collect(deadline)
      while (left = deadline - now).positive? && !@reports.closed?
        next unless @reports.wait_readable(left)

        line = @reports.gets
        line ? receive(JSON.parse(line, symbolize_names: true)) : @reports.close
      end
    end

    def receive(report)
      raise Failure, "#{report[:worker]}: #{report[:message]}" if report[:what] == "error"

      note(Event.new(**report, at: report[:at] - @started))
    end

    def note(event)
      @events << event
      @screen.event(event)
    end

    def child(name)
      @children.find { |child| child.name == name }
    end

    def elapsed
      now - @started
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
