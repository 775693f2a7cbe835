# frozen_string_literal: true

require "open3"
require "pg"

require_relative "throwaway"

# A PostgreSQL server for the time of an example group, with access rules and settings of its own.
class PostgresServer
  class << self
    # Why there can be none here; nil if there can.
    def unavailable
      "no PostgreSQL server programs: set PGBUS_NATIVE_PG_BIN" unless programs
    end

    # The directory of the server's programs.
    def programs
      @programs ||= [ENV.fetch("PGBUS_NATIVE_PG_BIN", nil), *installed, *configured].compact.find do |directory|
        %w[initdb pg_ctl postgres].all? { |program| File.executable?(File.join(directory, program)) }
      end
    end

    def version
      Open3.capture2(File.join(programs, "postgres"), "--version").first[/\d+/].to_i
    end

    private

    def installed
      Dir["/usr/lib/postgresql/*/bin"].sort_by { |directory| -directory[/\d+/].to_i }
    end

    def configured
      [Open3.capture2("pg_config", "--bindir").first.chomp]
    rescue Errno::ENOENT
      []
    end
  end

  attr_reader :port

  # Starts a server. Its superuser is "postgres", trusted on the Unix socket and nowhere else.
  #
  # @param hba [Array<String>] lines of pg_hba.conf
  # @yield before it starts, to put files into its directory
  # @yieldreturn [Hash] settings of postgresql.conf
  def initialize(hba: ["host all all 127.0.0.1/32 trust"])
    prepare
    run("initdb", "--pgdata", data, "--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C",
        "--no-sync")
    settings = block_given? ? yield : {}
    write("pg_hba.conf", ["local all,replication postgres trust", *hba])
    write("postgresql.conf", settings_of(settings))
    start
  end

  # A hot standby of this server, with the same settings, which goes with it.
  def standby
    @standby ||= PostgresServer.allocate.tap { |server| server.send(:follow, self) }
  end

  # Changes settings of the running server; nil sets the default.
  def set(**settings)
    settings.each { |name, value| sql("ALTER SYSTEM SET #{name} TO #{value ? "'#{value}'" : "DEFAULT"}") }
    run("pg_ctl", "reload", "--silent", "--pgdata", data)
    wait_until_loaded(settings)
  end

  # Runs statements as the superuser and gives the last one's rows as Hashes of text.
  def sql(statements, database: "postgres")
    connection = PG.connect(host: directory, port:, user: "postgres", dbname: database, sslmode: "disable")
    connection.set_notice_processor { nil }
    connection.exec(statements).to_a
  ensure
    connection&.close
  end

  # The folder of its Unix socket and its files.
  def directory
    @throwaway.directory
  end

  def file(name)
    File.join(directory, name)
  end

  def log
    File.read(file("server.log"))
  end

  # Ends the server and removes its files.
  def stop
    @standby&.stop
    @throwaway&.remove
    @throwaway = nil
  end

  private

  def data
    file("data")
  end

  def prepare
    @throwaway = Throwaway.new do |directory|
      [program("pg_ctl"), "stop", "--silent", "--mode", "immediate", "--pgdata", File.join(directory, "data")]
    end
  end

  def follow(primary)
    prepare
    run("pg_basebackup", "--pgdata", data, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
        "--host", primary.directory, "--port", primary.port.to_s, "--username", "postgres")
    start
  end

  def settings_of(settings)
    { listen_addresses: "127.0.0.1", fsync: "off", full_page_writes: "off", max_connections: 100, **settings }
      .map { |name, value| "#{name} = '#{value}'" }
  end

  def write(name, lines)
    lines = lines.join("\n")
    File.write(File.join(data, name), "#{lines}\n")
  end

  # Tries ports until one is free; they are below those that the kernel gives to outgoing connections.
  def start
    20.times do
      @port = rand(20_000..31_999)
      return if system(*command("pg_ctl", "start", "--silent", "--wait", "--pgdata", data, "--log", file("server.log"),
                                "--options", "-p #{port} -k #{directory}"), **quiet)

      raise "PostgreSQL does not start:\n#{log}" unless log.include?("could not bind")
    end
    raise "no free port"
  end

  def run(...)
    output, status = Open3.capture2e(*command(...), chdir: directory)
    raise "#{command(...).join(" ")}:\n#{output}" unless status.success?
  end

  def command(name, *arguments)
    [*Throwaway.as_its_user, program(name), *arguments]
  end

  def program(name)
    File.join(self.class.programs, name)
  end

  # The server would inherit our output and keep a pipe to it open.
  def quiet
    { in: File::NULL, out: File::NULL, err: File::NULL, chdir: directory }
  end

  def wait_until_loaded(settings)
    names = settings.map { |name, _| "'#{name}'" }.join(", ")
    200.times do
      loaded = sql("SELECT name, setting FROM pg_settings WHERE name IN (#{names})")
               .to_h { |row| [row["name"].to_sym, row["setting"]] }
      return if settings.all? { |name, value| value.nil? || loaded[name] == value.to_s }

      sleep 0.01
    end
    raise "#{settings} did not take effect"
  end
end
