# frozen_string_literal: true

require "open3"
require "pg"

require_relative "throwaway"

# A PgBouncer in front of a server's database, with as few connections to it as make sessions meet.
class PgBouncer
  SERVER_CONNECTIONS = 3

  class << self
    # Why there can be none here; nil if there can.
    def unavailable
      "no pgbouncer" unless program
    end

    # Debian keeps it out of PATH.
    def program
      [*ENV.fetch("PATH", "").split(":"), "/usr/sbin"].map { |directory| File.join(directory, "pgbouncer") }
                                                      .find { |path| File.executable?(path) }
    end
  end

  attr_reader :port

  # @param server [PostgresServer]
  # @param mode [String] "transaction" or "session"
  # @param sessions [Integer] the most connections to the server
  def initialize(server, mode:, sessions: SERVER_CONNECTIONS)
    @throwaway = Throwaway.new { |directory| ["sh", "-c", "kill -QUIT $(cat #{directory}/pid)"] }
    20.times do
      @port = rand(20_000..31_999)
      configure(server, mode, sessions)
      return if started?
    end
    raise "PgBouncer does not start:\n#{File.read(file("log"))}"
  end

  def stop
    @throwaway.remove
  end

  private

  def file(name)
    File.join(@throwaway.directory, name)
  end

  # Without max_prepared_statements a name is good only on the connection that it was given on.
  def configure(server, mode, sessions)
    File.write(file("ini"), <<~INI)
      [databases]
      * = host=#{server.directory} port=#{server.port} user=postgres
      [pgbouncer]
      listen_addr = 127.0.0.1
      listen_port = #{port}
      unix_socket_dir =
      auth_type = any
      pool_mode = #{mode}
      default_pool_size = #{sessions}
      max_prepared_statements = 0
      logfile = #{file("log")}
      pidfile = #{file("pid")}
    INI
  end

  def started?
    FileUtils.rm_f(file("log"))
    command = [*Throwaway.as_its_user, self.class.program, "--daemon", "--quiet", file("ini")]
    system(*command, in: File::NULL, out: File::NULL, err: File::NULL, chdir: "/") && answers?
  end

  def answers?
    500.times do
      return true if PG::Connection.ping(host: "127.0.0.1", port:) == PG::PQPING_OK
      return false if File.exist?(file("log")) && File.read(file("log")).include?("cannot listen")

      sleep 0.01
    end
    false
  end
end
