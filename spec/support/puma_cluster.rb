# frozen_string_literal: true

require "fileutils"
require "socket"
require "rbconfig"
require "tmpdir"

# Puma in cluster mode with the app of spec/fixtures/puma, on a Unix socket.
class PumaCluster
  SPEC = File.expand_path("..", __dir__)
  APP = File.join(SPEC, "fixtures/puma/config.ru")

  # An answer of the app: the seat's connection and the process that served it.
  Answer = Data.define(:status, :id, :pid)

  # @return [String] the path of its Unix socket
  attr_reader :socket

  # @return [String, nil] why there can be none here
  def self.unavailable
    Gem::Specification.find_by_name("puma") && nil
  rescue Gem::MissingSpecError => e
    e.message
  end

  # Runs the block with a cluster that answers; it is gone afterwards.
  def self.run(settings, url:, **)
    cluster = new(settings, url:, **)
    cluster.wait
    yield cluster
  ensure
    cluster&.remove
  end

  # @param settings [String] lines of its configuration
  # @param app [String] the path of another app
  # @param variables [Hash] of its environment
  def initialize(settings, url:, app: APP, **variables)
    @folder = Dir.mktmpdir("puma")
    @socket = "#{@folder}/socket"
    File.write("#{@folder}/config.rb", <<~RUBY)
      workers 2
      threads 4, 4
      bind "unix://#{@socket}"
      worker_timeout 60
      # Now and then a worker of Puma 6.6 on Ruby 3.3 never comes back from closing its socket, with any app.
      worker_shutdown_timeout 3
      #{settings}
    RUBY
    load_path = %w[../lib support/stand_in .].map { |folder| File.expand_path(folder, SPEC) }
    environment = { "DATABASE_URL" => url, "PGBUS_NATIVE" => nil, "RUBYLIB" => load_path.join(":"),
                    **variables.transform_keys(&:to_s) }
    # A group of its own, so that its workers can be ended with it.
    @pid = spawn(environment, RbConfig.ruby, Gem.bin_path("puma", "puma"), "--config", "#{@folder}/config.rb", app,
                 chdir: SPEC, pgroup: true, in: IO::NULL, %i[out err] => "#{@folder}/log")
  end

  # Waits until it answers.
  def wait
    deadline = now + 20
    begin
      get("hello")
    rescue SystemCallError
      raise "Puma does not answer\n#{log}" if now > deadline

      sleep 0.05
      retry
    end
  end

  def get(id)
    socket = UNIXSocket.new(@socket)
    socket.write("GET /#{id} HTTP/1.0\r\nHost: app\r\n\r\n")
    raise "no answer within 20 s\n#{log}" unless socket.wait_readable(20)

    head, body = socket.read.split("\r\n\r\n", 2)
    raise Errno::ECONNRESET unless body

    served, pid = body.split
    Answer.new(status: head[/\d{3}/].to_i, id: served, pid: pid.to_i)
  ensure
    socket&.close
  end

  # The processes that serve now.
  def workers
    Array.new(20) { |number| get("who#{number}").pid }.uniq
  rescue SystemCallError
    []
  end

  def signal(name)
    Process.kill(name, @pid)
  end

  def log
    File.read("#{@folder}/log")
  end

  # Ends it by SIGTERM; how it ended.
  def stop
    signal(:TERM)
    deadline = now + 15
    sleep 0.02 until (ended = Process.wait2(@pid, Process::WNOHANG)) || now > deadline
    @pid = nil if ended
    ended&.last
  end

  def remove
    Process.kill(:KILL, -@pid) && Process.wait(@pid) if @pid
  rescue Errno::ESRCH
    nil
  ensure
    FileUtils.rm_rf(@folder)
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
