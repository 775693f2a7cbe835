# frozen_string_literal: true

# The words that the examples are written in.
module PresenceHelpers
  # At the level of an example group.
  module Groups
    # What the gem promises beyond the plain Ruby code, or in which it differs from it.
    def on_the_gem(&)
      class_eval(&) if metadata[:implementation]&.gem?
    end

    # How the plain Ruby code differs there.
    def on_plain_ruby(&)
      class_eval(&) unless metadata[:implementation]&.gem?
    end
  end

  RSpec.shared_context "with an implementation" do
    let(:implementation) { |example| example.metadata[:implementation] }
    let(:presence_class) { implementation.presence_class }
    let(:stream) { SpecStream.new("room:42") }
    let(:presence) { presence_class.new(stream) }

    around { |example| implementation.use { example.run } }

    before do |example|
      skip implementation.unavailable if implementation.unavailable

      SpecDatabase.table(**example.metadata.fetch(:table, {}))
      implementation.pgbus.start_over
      presence_class.reset_schema_cache!
    end
  end

  # Presence of another stream than `stream`.
  def presence_of(name)
    presence_class.new(SpecStream.new(name))
  end

  # What was reported so far: [stream name, change] pairs in order.
  def changes
    configuration = implementation.pgbus.configuration
    Array.new(configuration.changes.size) { configuration.changes.pop }
         .each { |change| configuration.changes << change }
  end

  # The lines that were logged so far.
  def log_lines
    implementation.pgbus.log_lines
  end

  def sql(...)
    SpecDatabase.sql(...)
  end

  # Rows of the table as Hashes of text, of every stream unless told which.
  def rows(stream_name = nil)
    sql(<<~SQL, stream_name)
      SELECT * FROM pgbus_presence_members WHERE stream_name = coalesce($1, stream_name)
      ORDER BY stream_name, member_id
    SQL
  end

  # The one row of the table.
  def row
    expect(rows.size).to eq(1)
    rows.first
  end

  # Puts a row into the table as it is, behind Presence's back. JSON columns take text.
  def insert_row(stream_name: stream.name, member_id: "7", **columns)
    columns = { stream_name:, member_id:, **columns }
    places = Array.new(columns.size) { |index| "$#{index + 1}" }
    sql("INSERT INTO pgbus_presence_members (#{columns.keys.join(", ")}) VALUES (#{places.join(", ")})",
        *columns.values)
  end

  # Makes rows look as if they had not been heard of for so many seconds. `columns` choose the rows.
  def age(seconds, **columns)
    conditions = columns.keys.each_with_index.map { |column, index| "AND #{column} = $#{index + 2}" }
    sql(<<~SQL, seconds, *columns.values)
      UPDATE pgbus_presence_members SET last_seen_at = now() - make_interval(secs => $1)
      WHERE true #{conditions.join(" ")}
    SQL
  end

  # Column of a row, as ActiveRecord's own connection gives it.
  def as_active_record_gives(column)
    ActiveRecord::Base.connection.raw_connection.exec("SELECT #{column} FROM pgbus_presence_members").getvalue(0, 0)
  end

  # Points ActiveRecord at the database with other settings for the time of the block.
  def with_connection_settings(**settings)
    SpecDatabase.establish(**settings)
    yield
  ensure
    SpecDatabase.establish
  end

  # What Rails does around a transactional test, for all its threads.
  def pin_connection
    pool = ActiveRecord::Base.connection_pool
    return pool.pin_connection!(true) if pool.respond_to?(:pin_connection!)

    # Rails 7.1
    pool.lock_thread = true
    pool.connection.begin_transaction(joinable: false, _lazy: false)
  end

  def unpin_connection
    pool = ActiveRecord::Base.connection_pool
    return pool.unpin_connection! if pool.respond_to?(:unpin_connection!)

    pool.connection.rollback_transaction
    pool.lock_thread = false
  end

  # Holds the row locks, or the table's, of the statement until the block ends.
  def while_locked(statement = "LOCK TABLE pgbus_presence_members")
    SpecDatabase.connect do |connection|
      connection.exec("BEGIN")
      connection.exec(statement)
      yield connection
    end
  end

  # How many sessions wait for a lock, or run a statement, in our database.
  def blocked_sessions
    sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").size
  end
end

RSpec.configure do |config|
  config.include_context "with an implementation", :implementation
end
