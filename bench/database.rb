# frozen_string_literal: true

require "active_record"
require "pg"
require "uri"
require "pgbus_native/migrations/create_presence_members"
require "pgbus_native/migrations/add_presence_seats"

module Bench
  # A database of the bench's own on the server of DATABASE_URL, with the presence table in it.
  class Database
    TABLE = "pgbus_presence_members"
    MIGRATIONS = [Pgbus::Native::Migrations::CreatePresenceMembers, Pgbus::Native::Migrations::AddPresenceSeats].freeze

    # Yields the database, and drops it afterwards.
    def self.open(server_url)
      database = new(server_url)
      database.create
      yield database
    ensure
      database&.drop
    end

    def initialize(server_url)
      @server_url = server_url
      @name = "pgbus_native_bench_#{Process.pid}"
    end

    def create
      on_server { |server| server.exec("CREATE DATABASE #{@name}") }
      migrate
      @admin = PG.connect(url("admin"))
      @admin.exec("SET client_min_messages = 'error'")
    end

    def drop
      @admin&.close
      on_server { |server| server.exec("DROP DATABASE IF EXISTS #{@name} WITH (FORCE)") }
    end

    # @param application [String] by which its sessions can be told apart
    # @param port [Integer, nil] of a proxy on this machine, if the way leads through one
    def url(application, port: nil)
      uri = URI.parse(@server_url)
      uri.path = "/#{@name}"
      redirect(uri, port) if port
      uri.query = URI.encode_www_form(URI.decode_www_form(uri.query.to_s) << ["application_name", application])
      uri.to_s
    end

    # @return [Array(String, Integer), nil] host and port, nil if it is reached in another way than by TCP
    def address
      [@admin.host, @admin.port] unless @admin.host.start_with?("/")
    end

    def exec(sql, *values)
      @admin.exec_params(sql, values)
    end

    def value(sql, *values)
      exec(sql, *values).getvalue(0, 0)
    end

    # The table as the migrations make it.
    def recreate
      exec("DROP TABLE #{TABLE}")
      migrate
    end

    # Empties the table.
    def clear
      exec("TRUNCATE #{TABLE}")
    end

    # Puts seats into streams, quicker than by joins, so many into each.
    #
    # @param streams [Array<String>]
    # @param age [Integer] seconds since they were last seen
    def fill(streams, seats, age: 0)
      exec(<<~SQL, "{#{streams.join(",")}}", seats, age)
        INSERT INTO #{TABLE} (stream_name, member_id, connection_id, seat, metadata, state, joined_at, last_seen_at)
        SELECT stream, 'member' || n, 'c' || n, 'desk', '{"name":"Ada Lovelace","role":"editor"}',
               '{"status":"typing","line":12}', now() - interval '1 hour', now() - make_interval(secs => $3::int)
        FROM unnest($1::text[]) AS stream, generate_series(1, $2::int) AS n
      SQL
    end

    # What autovacuum does by and by: without statistics the planner takes the wrong index.
    def settle
      exec("VACUUM ANALYZE #{TABLE}")
    end

    # Whether a commit waits for the disk, for sessions from now on.
    def synchronous_commit(value)
      exec("ALTER DATABASE #{@name} SET synchronous_commit = #{value}")
    end

    # @return [Integer] the sessions under this application name
    def sessions(application)
      value("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", application).to_i
    end

    # @return [Hash{String => String}] what matters for the figures
    def settings
      names = %w[server_version fsync synchronous_commit full_page_writes shared_buffers autovacuum]
      names.to_h { |name| [name, value("SHOW #{name}")] }
    end

    private

    # To a port of this machine; URI drops the user with the host.
    def redirect(uri, port)
      user = uri.userinfo
      uri.host = "127.0.0.1"
      uri.port = port
      uri.userinfo = user
    end

    def migrate
      ActiveRecord::Base.establish_connection(url("migrations"))
      ActiveRecord::Migration.suppress_messages { MIGRATIONS.each { |migration| migration.migrate(:up) } }
      ActiveRecord::Base.connection_pool.disconnect!
    end

    def on_server
      server = PG.connect(@server_url)
      yield server
    ensure
      server&.close
    end
  end
end
