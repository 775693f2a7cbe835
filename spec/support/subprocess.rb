# frozen_string_literal: true

require "rbconfig"
require "tempfile"

# A Ruby process of its own with the gem, connected to the database of this run, for what happens to a whole
# process: signals, its end, its memory. It is killed at its deadline.
class Subprocess
  SPEC = File.expand_path("..", __dir__)

  # What a script finds: the gem installed, ActiveRecord connected, and `presence_of`.
  PRELUDE = <<~'RUBY'
    require "active_record"
    require "pgbus_native"
    require "support/spec_stream"

    $stdout.sync = true
    ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))

    def presence_of(name) = Pgbus::Streams::Presence.new(SpecStream.new(name))
  RUBY

  attr_reader :pid

  # Runs the block with the process under way; it is gone afterwards.
  def self.run(script, **)
    process = new(script, **)
    yield process
  ensure
    process&.kill
  end

  # Runs a script to its end and gives the lines that it printed.
  def self.lines(script, within: 30, **)
    run(script, within:, **) do |process|
      lines = process.rest
      raise "#{process.status}\n#{process.errors}" unless process.status.success?

      lines
    end
  end

  def initialize(script, within: 30, url: SpecDatabase.url, environment: {})
    @deadline = now + within
    @errors = Tempfile.new("errors")
    @out, writer = IO.pipe
    load_path = %w[../lib support/stand_in .].flat_map { |folder| ["-I", File.expand_path(folder, SPEC)] }
    @pid = spawn({ "DATABASE_URL" => url, "PGBUS_NATIVE" => nil, **environment }, RbConfig.ruby, *load_path, "-e",
                 PRELUDE + script, in: IO::NULL, out: writer, err: @errors.path)
    writer.close
  end

  # The next line that it prints; nil at the end of its output.
  def line
    raise "no line from the process\n#{errors}" unless @out.wait_readable([@deadline - now, 0].max)

    @out.gets(chomp: true)
  end

  # The lines that it prints from now on until its end.
  def rest
    lines = []
    while (next_line = line)
      lines << next_line
    end
    lines
  end

  # How it ended; waits for that, and fails at the deadline.
  def status
    @status ||= begin
      sleep 0.01 until (ended = Process.wait2(pid, Process::WNOHANG)) || now > @deadline
      ended ? ended.last : raise("the process still runs at its deadline\n#{errors}")
    end
  end

  # What it wrote to standard error.
  def errors
    File.read(@errors.path)
  end

  def signal(name)
    Process.kill(name, pid)
  end

  def kill
    @out.close
    @errors.close!
    return if @status

    Process.kill(:KILL, pid)
    Process.wait(pid)
  rescue Errno::ESRCH, Errno::ECHILD
    nil
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
