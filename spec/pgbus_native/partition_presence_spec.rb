# frozen_string_literal: true

require_relative "../support/mixed_calls"
require_relative "../support/partitions"

RSpec.describe "The migration that partitions the presence table", implementation: Implementation::AUTO do
  include MixedCalls
  include Partitions

  let(:migration) { Pgbus::Native::Migrations::PartitionPresence.new }

  before { SpecDatabase.table_changed }

  # What there is of a table, apart from how it is kept.
  def table(name = "pgbus_presence_members")
    { columns: columns(name), indexes: indexes(name), rows: sql("SELECT * FROM #{name} ORDER BY 1, 2, 6") }
  end

  def columns(name)
    sql(<<~SQL, name)
      SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid) AS "default"
      FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
      WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attnum
    SQL
  end

  def indexes(name)
    sql("SELECT pg_get_indexdef(indexrelid) AS index FROM pg_index WHERE indrelid = $1::regclass ORDER BY 1", name)
      .map { |row| row["index"].sub(" ON ONLY ", " ON ") }
  end

  def fill
    sql(<<~SQL)
      INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, seat, metadata, state, joined_at)
      SELECT 'room:' || n % 100, n, CASE WHEN n % 2 = 0 THEN 'c' || n END, 'left', '{"a": [1, "ü"]}', '{"b": null}',
             now() - n * interval '1 ms'
      FROM generate_series(1, 2000) n
    SQL
  end

  # The partitions, and how many rows each has.
  def rows_by_partition
    sql("SELECT tableoid::regclass::text AS partition, count(*) FROM pgbus_presence_members GROUP BY 1")
      .to_h { |row| [row["partition"], row["count"].to_i] }
  end

  it "keeps every row, column and index, there and back" do
    fill
    before = table
    migration.migrate(:up)

    expect(table).to eq(before)
    expect(rows_by_partition.keys).to match_array(Partitions::ALL)
    expect(indexes(Partitions::ALL.last).size).to eq(before[:indexes].size)

    migration.migrate(:down)
    expect(table).to eq(before)
    expect(rows_by_partition).to eq("pgbus_presence_members" => 2000)
    expect(sql("SELECT relname FROM pg_class WHERE relname LIKE 'pgbus_presence_members\\_%'")).to be_empty
  end

  it "keeps options, privileges and how the table is stored, there and back" do
    sql("ALTER TABLE pgbus_presence_members SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01)")
    sql("ALTER TABLE pgbus_presence_members SET UNLOGGED")
    sql("GRANT SELECT, INSERT ON pgbus_presence_members TO PUBLIC")
    kept = lambda do |name|
      sql("SELECT reloptions, relpersistence FROM pg_class WHERE oid = $1::regclass", name).first.values
    end
    grants = lambda do
      sql("SELECT unnest(relacl)::text AS acl FROM pg_class WHERE relname = 'pgbus_presence_members' ORDER BY 1")
    end
    before = kept.call("pgbus_presence_members")
    granted = grants.call
    migration.migrate(:up)

    expect(before).to eq(["{fillfactor=50,autovacuum_vacuum_scale_factor=0.01}", "u"])
    expect(Partitions::ALL.map { |partition| kept.call(partition) }).to all(eq(before))
    expect(grants.call).to eq(granted)

    migration.migrate(:down)
    expect(kept.call("pgbus_presence_members")).to eq(before)
    expect(grants.call).to eq(granted)
  end

  it "makes as many partitions as a subclass says" do
    Class.new(Pgbus::Native::Migrations::PartitionPresence) { define_method(:partitions) { 3 } }.new.migrate(:up)
    fill

    expect(rows_by_partition.keys).to match_array(Partitions::ALL.first(3))
  end

  it "partitions the table in the schema where it is" do
    sql("CREATE SCHEMA \"the tenant's\"")
    with_connection_settings(schema_search_path: "\"the tenant's\", public") { migration.migrate(:up) }

    expect(sql("SELECT DISTINCT relnamespace::regnamespace::text AS schema FROM pg_class
                WHERE relname LIKE 'pgbus_presence_members%'")).to eq([{ "schema" => "public" }])
  ensure
    sql("DROP SCHEMA IF EXISTS \"the tenant's\" CASCADE")
  end

  it "changes nothing where it fails" do
    fill
    sql("CREATE UNIQUE INDEX of_no_stream ON pgbus_presence_members (member_id, connection_id)")
    before = table

    expect { migration.migrate(:up) }.to raise_error(ActiveRecord::StatementInvalid, /unique constraint/)
    expect(table).to eq(before)
  end

  it "can be followed and undone by the one that adds seats", table: { seats: false } do
    presence.join(member_id: "7")
    migration.migrate(:up)
    SpecDatabase.add_seats
    presence_class.reset_schema_cache!
    presence.join(member_id: "7", connection_id: "c1")
    presence_of("room:43").join(member_id: "7", connection_id: "c1")
    expect(presence.members.map { |record| record["connection_id"] }).to eq([nil, "c1"])

    SpecDatabase::MIGRATIONS.last.new.migrate(:down)
    presence_class.reset_schema_cache!
    expect(rows.map { |row| row.values_at("stream_name", "member_id") }).to eq([%w[room:42 7]])
  end

  it "has calls wait for it, fail none and lose none, there and back", :slow do
    fill
    presence.seats?
    under_mixed_calls(threads: 8) do |errors, some_calls|
      %i[up down up].each do |direction|
        migration.migrate(direction)
        some_calls.call
      end

      expect(errors.call).to be_empty
    end
    expect(rows.count { |row| row["seat"] == "left" }).to eq(2000)
    expect(rows_by_partition.keys).to match_array(Partitions::ALL)
  end
end
