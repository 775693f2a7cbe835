# frozen_string_literal: true

require_relative "../support/scripts"

RSpec.describe "The migrations of the presence table" do
  include Scripts

  before do
    SpecDatabase.table_changed
    SpecDatabase.sql("DROP TABLE IF EXISTS pgbus_presence_members")
  end

  let(:create) { Pgbus::Native::Migrations::CreatePresenceMembers.new }
  let(:members) do
    { "stream_name" => ["character varying", "f"], "member_id" => ["character varying", "f"],
      "metadata" => %w[jsonb f], "joined_at" => ["timestamp(6) without time zone", "f"],
      "last_seen_at" => ["timestamp(6) without time zone", "f"] }
  end
  let(:add_seats) { Pgbus::Native::Migrations::AddPresenceSeats.new }

  def columns
    SpecDatabase.sql(<<~SQL).to_h { |row| [row["name"], row.values_at("type", "nullable")] }
      SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, NOT a.attnotnull AS nullable
      FROM pg_attribute a WHERE a.attrelid = 'pgbus_presence_members'::regclass AND a.attnum > 0 AND NOT a.attisdropped
      ORDER BY a.attnum
    SQL
  end

  def indexes
    SpecDatabase.sql("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'pgbus_presence_members'")
                .to_h { |row| [row["indexname"], row["indexdef"][/\((stream_name.*)\z/, 0]] }
  end

  it "create it" do
    create.migrate(:up)

    expect(columns).to eq(members)
    expect(indexes).to eq("idx_pgbus_presence_members_pk" => "(stream_name, member_id)",
                          "idx_pgbus_presence_members_sweep" => "(stream_name, last_seen_at)")
  end

  it "add seats, keeping the members" do
    create.migrate(:up)
    SpecDatabase.sql("INSERT INTO pgbus_presence_members (stream_name, member_id) VALUES ('room', '7')")
    add_seats.migrate(:up)

    expect(columns).to eq(members.merge("connection_id" => ["character varying", "t"],
                                        "seat" => ["character varying", "t"], "state" => %w[jsonb f]))
    expect(indexes).to eq(
      "idx_pgbus_presence_members_pk" => "(stream_name, member_id) WHERE (connection_id IS NULL)",
      "idx_pgbus_presence_members_sweep" => "(stream_name, last_seen_at)",
      "idx_pgbus_presence_members_seat" => "(stream_name, connection_id) WHERE (connection_id IS NOT NULL)"
    )
    expect(SpecDatabase.sql("SELECT member_id, connection_id, seat, state FROM pgbus_presence_members"))
      .to eq([{ "member_id" => "7", "connection_id" => nil, "seat" => nil, "state" => "{}" }])
  end

  it "take the seats away again, and their rows with them" do
    create.migrate(:up)
    before = [columns, indexes]
    add_seats.migrate(:up)
    SpecDatabase.sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id)
                      VALUES ('room', '7', NULL), ('room', '7', 'c1'), ('room', '8', 'c2')")
    add_seats.migrate(:down)

    expect([columns, indexes]).to eq(before)
    expect(SpecDatabase.sql("SELECT member_id FROM pgbus_presence_members")).to eq([{ "member_id" => "7" }])
  end

  it "take the table away again" do
    create.migrate(:up)
    create.migrate(:down)

    expect(SpecDatabase.sql("SELECT to_regclass('pgbus_presence_members') AS found")).to eq([{ "found" => nil }])
  end

  it "fill in times, metadata and state of rows made by hand" do
    create.migrate(:up)
    add_seats.migrate(:up)
    SpecDatabase.sql("INSERT INTO pgbus_presence_members (stream_name, member_id) VALUES ('room', '7')")

    expect(SpecDatabase.sql("SELECT metadata, state, last_seen_at = joined_at AS same,
                             now() - joined_at < '1 minute' AS recent FROM pgbus_presence_members"))
      .to eq([{ "metadata" => "{}", "state" => "{}", "same" => "t", "recent" => "t" }])
  end

  it "make the times what ActiveRecord's datetime_type says" do
    # In a process of its own: ActiveRecord looks at the setting once.
    ruby(<<~RUBY).lines
      require "active_record"
      require "active_record/connection_adapters/postgresql_adapter"
      require "pgbus_native/migrations/create_presence_members"
      ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.datetime_type = :timestamptz
      ActiveRecord::Base.establish_connection
      Pgbus::Native::Migrations::CreatePresenceMembers.new.migrate(:up)
    RUBY

    expect(columns.values_at("joined_at", "last_seen_at").map(&:first)).to all(match(/\Atimestamp.* with time zone\z/))
  end
end
