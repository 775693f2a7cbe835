# frozen_string_literal: true

require "active_record"
require "securerandom"
require "pgbus_native/migrations/create_presence_members"
require "pgbus_native/migrations/add_presence_seats"

module Demo
  # A schema of the demo's own on the server of DATABASE_URL, so that no table of the user's is touched.
  class Database
    MIGRATIONS = [Pgbus::Native::Migrations::CreatePresenceMembers, Pgbus::Native::Migrations::AddPresenceSeats].freeze

    # Yields the database with the presence table in it, and drops the schema afterwards.
    def self.open(url)
      database = new(url)
      database.create
      yield database
    ensure
      database&.drop
    end

    def initialize(url)
      @schema = "pgbus_native_demo_#{SecureRandom.hex(4)}"
      # Merged after the URL was read, since a search path in the URL would win over one beside it.
      ActiveRecord::Base.establish_connection(url)
      settings = ActiveRecord::Base.connection_db_config.configuration_hash
      ActiveRecord::Base.establish_connection(settings.merge(schema_search_path: @schema))
    end

    def create
      connection.execute("CREATE SCHEMA #{@schema}")
      # A pooler may lose the search path; better no demo than a table in the wrong schema.
      current = connection.select_value("SELECT current_schema()")
      raise ActiveRecord::ActiveRecordError, "the session is in schema #{current}, not #{@schema}" if current != @schema

      ActiveRecord::Migration.suppress_messages { MIGRATIONS.each { |migration| migration.migrate(:up) } }
    end

    def drop
      # A second Ctrl-C must not leave the schema behind.
      trap("INT", "IGNORE")
      connection.execute("DROP SCHEMA IF EXISTS #{@schema} CASCADE")
    end

    # @return [String] such as "17.12"
    def server_version
      connection.select_value("SHOW server_version").split.first
    end

    # Puts +count+ seats into the stream, quicker than by +count+ joins.
    def fill(stream_name, count)
      connection.exec_query(<<~SQL, "Fill", [stream_name, count])
        INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, seat, metadata, state)
        SELECT $1, 'member' || n, 'connection' || n, 'desk', '{"name":"Ada","role":"editor"}', '{"status":"typing"}'
        FROM generate_series(1, $2::int) AS n
      SQL
      # As autovacuum does by and by: without statistics the planner takes the wrong index.
      connection.execute("ANALYZE pgbus_presence_members")
    end

    private

    def connection
      ActiveRecord::Base.connection
    end
  end
end
