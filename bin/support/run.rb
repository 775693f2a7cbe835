# frozen_string_literal: true

require "fileutils"

# bin/support/run.rb COMMAND...
#
# The second half of bin/env, once there is a Ruby: compiles the extension while the throwaway PostgreSQL
# starts, runs COMMAND and leaves nothing behind.
#
# COMMAND is a child, so that somebody is left to clean up after it. For the case that this process is
# killed there is the keeper: a process that holds the other end of a pipe and cleans up when it closes.
class Run
  LIBRARY = "lib/pgbus_native/pgbus_native.so"
  SOURCES = "{src,ext}/**/*.{rs,toml,rb},Cargo.{toml,lock}"
  COMPILE_LOG = "tmp/compile.log"

  # RubyGems' programs go through Bundler when the gems are Bundler's.
  BUNDLE = ENV["PGBUS_NATIVE_BUNDLER"] ? %w[bundle exec] : []

  def initialize(command)
    @command = command
    # Marks every process of the run, for the keeper to find.
    @mark = "#{Process.pid}-#{rand(1 << 32)}"
    @child = nil
  end

  # Returns the Process::Status of the command.
  def call
    %w[INT TERM HUP].each { |signal| trap(signal) { forward(signal) } }
    start_keeper
    compile unless ENV["PGBUS_NATIVE_SKIP_COMPILE"] == "1"
    ENV["DATABASE_URL"] ||= @from_keeper.gets&.chomp || abort("bin/env: no PostgreSQL")
    run(*@command)
  ensure
    finish
  end

  private

  # In a process group of its own: Ctrl-C, and what is sent to the caller's group, spares it.
  def start_keeper
    bin = ENV["DATABASE_URL"] ? [] : [ENV.fetch("PGBUS_NATIVE_PG_BIN")]
    stdin, @to_keeper = IO.pipe
    @from_keeper, stdout = IO.pipe
    @keeper = spawn("bin/support/keeper", @mark, *bin, in: stdin, out: stdout, pgroup: true)
    [stdin, stdout].each(&:close)
  end

  def finish
    %w[INT TERM HUP].each { |signal| trap(signal, "IGNORE") }
    return unless @keeper

    @to_keeper.close
    Process.wait(@keeper)
  end

  def compile
    abort "bin/env: Ruby's mkmf cannot compile in a path with spaces: #{Dir.pwd}" if Dir.pwd.match?(/\s/)
    FileUtils.mkdir_p("tmp")
    # Two at once would write the same files.
    File.open("Rakefile") do |rakefile|
      rakefile.flock(File::LOCK_EX)
      warn "bin/env: compiling the extension (the first time takes one or two minutes)" if stale?
      status = run("rake", "compile", %i[out err] => COMPILE_LOG)
      next if status.success?

      exit 128 + status.termsig if status.signaled?
      warn File.read(COMPILE_LOG)
      abort "bin/env: the extension does not compile"
    end
  end

  # Only decides whether to say so; what has to be compiled is Cargo's to know.
  def stale?
    !File.exist?(LIBRARY) || Dir.glob("{#{SOURCES}}").any? { |path| File.mtime(path) > File.mtime(LIBRARY) }
  end

  def run(*command, **options)
    @child = spawn({ "PGBUS_NATIVE_RUN" => @mark }, *BUNDLE, *command, options)
    Process.wait2(@child).last
  rescue SystemCallError => e
    warn "bin/env: #{e.message}"
    exit 127
  ensure
    @child = nil
  end

  def forward(signal)
    exit 128 + Signal.list.fetch(signal) unless @child
    # Ctrl-C at the terminal has reached the command by itself, and RSpec takes a second one for "at once".
    Process.kill(signal, @child) unless signal == "INT" && terminal_foreground?
  rescue Errno::ESRCH
    nil # it has just ended
  end

  def terminal_foreground?
    `ps -o tpgid= -p #{Process.pid}`.to_i == Process.getpgrp
  end
end

status = Run.new(ARGV).call
if status.termsig == Signal.list["INT"]
  # Whoever called in a loop learns from the signal, not from the status, that it was Ctrl-C.
  trap("INT", "SYSTEM_DEFAULT")
  Process.kill("INT", Process.pid)
  sleep
end
exit status.exitstatus || (128 + status.termsig)
