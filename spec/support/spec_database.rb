# frozen_string_literal: true

require "pgbus_native/migrations/add_presence_seats"
require "pgbus_native/migrations/create_presence_members"
require "pgbus_native/migrations/partition_presence"
require "securerandom"

# The database of this run on the server that DATABASE_URL names: created before the suite,
# dropped after it, with the presence table in whichever shape an example wants.
#
# Its own connection, apart from ActiveRecord's, arranges what an example needs (old rows, locks,
# types of columns) and looks at what came of it.
module SpecDatabase
  NAME = "pgbus_native_spec_#{Process.pid}_#{SecureRandom.hex(3)}".freeze
  TABLE = "pgbus_presence_members"
  MIGRATIONS = [Pgbus::Native::Migrations::CreatePresenceMembers, Pgbus::Native::Migrations::AddPresenceSeats].freeze

  # How the columns of a table are typed. `seats` is whether it has seat columns, `partitioned` whether it is
  # partitioned by stream; the others are the types of the times, the ids and the JSON.
  Shape = Data.define(:seats, :partitioned, :times, :ids, :json) do
    def initialize(seats: true, partitioned: false, times: "timestamp", ids: "varchar", json: "jsonb")
      super
    end

    def columns_of_ids
      %w[stream_name member_id] + (seats ? %w[connection_id seat] : [])
    end

    def columns_of_json
      %w[metadata] + (seats ? %w[state] : [])
    end
  end

  class << self
    def create
      @owner = Process.pid
      on_server { |server| server.exec("CREATE DATABASE #{NAME}") }
      admin.exec("CREATE EXTENSION citext")
      ActiveRecord::Migration.verbose = false
      establish
    end

    def drop
      return unless @owner == Process.pid

      ActiveRecord::Base.connection_handler.clear_all_connections!(:all)
      @admin&.close
      on_server { |server| server.exec("DROP DATABASE IF EXISTS #{NAME} WITH (FORCE)") }
    end

    # Points ActiveRecord at the database of this run; `settings` are added to database.yml's.
    def establish(record = ActiveRecord::Base, **settings)
      record.establish_connection(configuration(**settings))
    end

    # The settings of ActiveRecord, as database.yml would have them.
    def configuration(**settings)
      from_url = ActiveRecord::DatabaseConfigurations::ConnectionUrlResolver.new(ENV.fetch("DATABASE_URL")).to_hash
      { pool: 40, **from_url, database: NAME, **settings }
    end

    # The URL of the database of this run, for another process.
    def url
      from_url = ENV.fetch("DATABASE_URL")
      URI.parse(from_url).tap { |uri| uri.path = "/#{NAME}" }.to_s
    end

    # Runs one statement apart from ActiveRecord and gives its rows as Hashes of text.
    def sql(statement, *values)
      admin.exec_params(statement, values).to_a
    end

    # Another connection of our own, for a lock or a transaction; closed after the block.
    def connect
      connection = PG.connect(connection_options)
      others << connection
      yield connection
    ensure
      others.delete(connection)
      connection&.close unless connection&.finished?
    end

    # Gives an empty table of the shape.
    def table(**shape)
      shape = Shape.new(partitioned: @partitioned || false, **shape)
      return clear if shape == @shape

      @shape = nil
      admin.exec("DROP TABLE IF EXISTS #{TABLE}")
      MIGRATIONS.first(shape.seats ? 2 : 1).each { |migration| migration.new.migrate(:up) }
      types_of(shape).each { |column, type| change_type(column, type) }
      Pgbus::Native::Migrations::PartitionPresence.new.migrate(:up) if shape.partitioned
      @shape = shape
    end

    # With the table for itself: connections of the last example may still be leaving, each by statements that lock rows
    # in an order of their own.
    def clear
      admin.transaction do |connection|
        connection.exec("LOCK TABLE #{TABLE} IN EXCLUSIVE MODE")
        connection.exec("DELETE FROM #{TABLE}")
      end
    end

    # In the block every table is partitioned, unless it is said not to be.
    def partitioned
      @partitioned = true
      yield
    ensure
      @partitioned = false
    end

    # Says that an example changed the table itself, so that the next builds it anew.
    def table_changed
      @shape = nil
    end

    def add_seats
      table_changed
      MIGRATIONS.last.new.migrate(:up)
    end

    # In a forked child: lets go of the connections without a word to the server, which
    # would end the parent's sessions.
    def forget
      [*@admin, *others].each { |connection| connection.socket_io.reopen(IO::NULL) }
      @admin = nil
    end

    private

    # Those that `connect` has open.
    def others
      @others ||= []
    end

    # Waits for a lock of a failed example end in an error that names it, not in a hung suite.
    def admin
      @admin ||= PG.connect(connection_options).tap do |connection|
        connection.exec("SET lock_timeout = '10s'; SET timezone = 'UTC'; SET client_min_messages = 'error'")
      end
    end

    def on_server
      server = PG.connect(connection_options.except(:dbname).merge(dbname: maintenance_database))
      yield server
    ensure
      server&.close
    end

    def maintenance_database
      ActiveRecord::DatabaseConfigurations::ConnectionUrlResolver.new(ENV.fetch("DATABASE_URL")).to_hash[:database]
    end

    # ActiveRecord's settings under libpq's names, and only those that libpq knows.
    def connection_options
      settings = configuration.transform_keys({ database: :dbname, username: :user })
      settings.slice(*PG::Connection.conndefaults_hash.keys, :requiressl)
    end

    def types_of(shape)
      times = %w[joined_at last_seen_at].to_h { |column| [column, shape.times] }
      ids = shape.columns_of_ids.to_h { |column| [column, shape.ids] }
      json = shape.columns_of_json.to_h { |column| [column, shape.json] }
      times.merge(ids, json)
    end

    def change_type(column, type)
      default = { "json" => "'{}'", "jsonb" => "'{}'" }.fetch(type, "CURRENT_TIMESTAMP")
      alter = "ALTER TABLE #{TABLE} ALTER #{column}"
      admin.exec("#{alter} DROP DEFAULT, ALTER #{column} TYPE #{type} USING #{column}::#{type}")
      admin.exec("#{alter} SET DEFAULT #{default}") unless ids?(column)
    end

    def ids?(column)
      %w[stream_name member_id connection_id seat].include?(column)
    end
  end
end
