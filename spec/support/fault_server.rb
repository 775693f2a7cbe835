# frozen_string_literal: true

require "etc"
require "fileutils"
require "open3"
require "socket"
require "tmpdir"

require_relative "waiting"

# A PostgreSQL server of the examples' own, which they may stop, kill and start again. The server that
# DATABASE_URL names is never touched.
class FaultServer
  include Waiting

  DATABASE = "faults"
  USER = "postgres"

  # A statement that is acknowledged has been handed to the operating system: it outlives the server's
  # crash, if not the machine's, and that is as much as killing the server can show.
  SETTINGS = {
    "listen_addresses" => "127.0.0.1", "max_connections" => 100, "fsync" => "off", "synchronous_commit" => "on",
    "full_page_writes" => "off", "log_min_messages" => "warning", "restart_after_crash" => "on"
  }.freeze

  class << self
    # @return [String, nil] why there can be no such server here
    def unavailable
      "no PostgreSQL server programs (initdb, pg_ctl) on this machine" unless programs
    end

    # The directory of the newest server's programs; bin/env names it.
    def programs
      @programs ||= [ENV.fetch("PGBUS_NATIVE_PG_BIN", nil), *installed, *from_pg_config].compact.find do |folder|
        %w[initdb pg_ctl postgres].all? { |name| File.executable?("#{folder}/#{name}") }
      end
    end

    private

    def installed
      Dir["/usr/lib/postgresql/*/bin"].sort_by { |folder| -folder[%r{/(\d+)/bin}, 1].to_i }
    end

    def from_pg_config
      out, = Open3.capture2("pg_config", "--bindir")
      [out.chomp]
    rescue SystemCallError
      []
    end
  end

  attr_reader :port

  def initialize(**settings)
    @settings = SETTINGS.merge(settings.transform_keys(&:to_s))
    @folder = Dir.mktmpdir("pgbus_native_faults")
    FileUtils.chown(USER, nil, @folder) if root?
    FileUtils.chmod(0o755, @folder)
    initdb
    start_on_a_free_port
    administer { |connection| connection.exec("CREATE DATABASE #{DATABASE}") }
  end

  # Stops the server and removes every trace of it.
  def remove
    stop("immediate")
    FileUtils.rm_rf(@folder)
  end

  def start
    run("pg_ctl", "start", "--silent", "--wait", "--log", log_file, "--options", "-p #{port} -k #{@folder}")
  end

  # @param mode [String] "fast" ends sessions with a farewell, "immediate" ends them as a crash would
  def stop(mode)
    run("pg_ctl", "stop", "--silent", "--wait", "--mode", mode)
  rescue RuntimeError
    raise if running?
  end

  def restart(mode)
    stop(mode)
    start
  end

  # The folder of its Unix socket.
  def socket
    @folder
  end

  # ActiveRecord's settings for its database, as SpecDatabase.establish takes them.
  def settings(**others)
    { host: "127.0.0.1", port:, database: DATABASE, username: USER, password: nil, **others }
  end

  def url
    "postgresql://#{USER}@127.0.0.1:#{port}/#{DATABASE}"
  end

  # Gives an empty presence table with seats.
  def empty_table
    sql("DROP TABLE IF EXISTS pgbus_presence_members")
    SpecDatabase::MIGRATIONS.each { |migration| migration.new.exec_migration(ActiveRecord::Base.connection, :up) }
  ensure
    ActiveRecord::Base.connection_handler.clear_all_connections!(:all)
  end

  # Runs one statement apart from ActiveRecord and gives its rows as Hashes of text.
  def sql(statement, *values)
    administer(DATABASE) { |connection| connection.exec_params(statement, values).to_a }
  end

  def administer(database = "postgres")
    connection = PG.connect(host: @folder, port:, dbname: database, user: USER)
    connection.set_notice_processor { nil }
    yield connection
  ensure
    connection&.close
  end

  # Process ids of the sessions in the database, but for the asking one.
  def sessions
    sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
         AND backend_type = 'client backend'").map { |row| row["pid"].to_i }
  end

  # Kills the process of a session, for which the server ends all of them and recovers; returns when it has.
  def crash
    administer(DATABASE) do |witness|
      Process.kill(:KILL, sessions.find { |pid| pid != witness.backend_pid } || raise("there is no session to kill"))
      wait_until("the server has ended all sessions") { !answers? { witness.exec("SELECT 1") } }
    end
    wait_until("the server has recovered") { answers? { sessions } }
  end

  # Ends the sessions that there are now, and returns when they are gone.
  def terminate_sessions
    administer(DATABASE) do |connection|
      there = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
      pids = connection.exec("SELECT pid, pg_terminate_backend(pid) #{there}").column_values(0)
      deadline = Time.now + 10
      while (left = connection.exec("SELECT pid #{there}").column_values(0) & pids).any?
        raise "sessions #{left} survive their termination" if Time.now > deadline

        sleep 0.002
      end
    end
  end

  # Process ids of the sessions that wait for a lock.
  def blocked
    sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
      .map { |row| row["pid"].to_i }
  end

  def terminate(pid)
    sql("SELECT pg_terminate_backend($1)", pid)
  end

  # Holds the locks that the statement takes until the block ends.
  def while_locked(statement = "LOCK TABLE pgbus_presence_members")
    administer(DATABASE) do |connection|
      connection.exec("BEGIN")
      connection.exec(statement)
      yield connection
    end
  end

  # What the server has complained of.
  def log
    File.read(log_file)
  end

  private

  def initdb
    run_command("initdb", "--pgdata", data, "--username", USER, "--auth", "trust", "--encoding", "UTF8",
                "--locale", "C", "--no-sync")
    settings = @settings.map { |name, value| "#{name} = '#{value}'\n" }.join
    File.write("#{data}/postgresql.auto.conf", settings)
  end

  # Below the ports that the kernel gives to outgoing connections: while the server is down, one of them could
  # take its port.
  def start_on_a_free_port
    tries = 0
    begin
      @port = rand(20_000..31_999)
      TCPServer.new("127.0.0.1", @port).close
      start
    rescue Errno::EADDRINUSE, RuntimeError
      (tries += 1) < 10 ? retry : raise
    end
  end

  def data
    "#{@folder}/data"
  end

  def log_file
    "#{@folder}/log"
  end

  def answers?
    yield
    true
  rescue PG::Error
    false
  end

  def running?
    File.exist?("#{data}/postmaster.pid")
  end

  def run(program, action, *options)
    run_command(program, action, "--pgdata", data, *options)
  end

  # A server runs on with the descriptors it was started with, so its output is no pipe that would be read to
  # its end.
  def run_command(program, *arguments)
    command = [*(["runuser", "-u", USER, "--"] if root?), "#{self.class.programs}/#{program}", *arguments]
    return if system(*command, in: IO::NULL, out: IO::NULL, err: IO::NULL, chdir: @folder)

    raise "#{program} #{arguments.join(" ")} failed\n#{log if File.exist?(log_file)}"
  end

  def root?
    Process.euid.zero?
  end
end

# Groups with `:fault_server` have a server of their own, `server`, with ActiveRecord pointed at it. In the
# examples below a call takes the route that it takes in production.
RSpec.shared_context "with a server that may fail" do
  # One for the whole group: starting it takes a second.
  before(:context) do
    skip FaultServer.unavailable if FaultServer.unavailable

    @fault_server = FaultServer.new
  end

  after(:context) { server&.remove }

  before do
    SpecDatabase.establish(**server.settings)
    server.empty_table
    presence_class.reset_schema_cache!
    presence.seats?
  end

  after { SpecDatabase.establish }

  def server
    @fault_server # rubocop:disable RSpec/InstanceVariable
  end
end

RSpec.configure do |config|
  config.include_context "with a server that may fail", :fault_server
end
