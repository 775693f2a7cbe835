# frozen_string_literal: true

RSpec.shared_examples "joining" do
  let(:server_time) { Time.parse(sql("SELECT now() AS now").first["now"]) }

  shared_examples "a member's join" do
    it "writes one row and returns its record" do
      record = presence.join(member_id: "7", metadata: { name: "Ada", admin: true })

      expect(record).to match("id" => "7", "metadata" => { "name" => "Ada", "admin" => true },
                              "joined_at" => be_within(60).of(server_time), "last_seen_at" => record["joined_at"])
      expect(row).to include("stream_name" => "room:42", "member_id" => "7")
      expect(JSON.parse(row["metadata"])).to eq("name" => "Ada", "admin" => true)
    end

    it "stores an empty Hash where no metadata is given" do
      expect(presence.join(member_id: "7")["metadata"]).to eq({})
    end

    it "refreshes the row of a member who is there already: joined_at stays, the rest is new" do
      first = presence.join(member_id: "7", metadata: { a: 1, b: 2 })
      age(100)
      second = presence.join(member_id: "7", metadata: { a: 3 })

      expect(second["joined_at"]).to eq(first["joined_at"])
      expect(second["last_seen_at"]).to be > first["last_seen_at"]
      expect(second["metadata"]).to eq("a" => 3)
      expect(row["metadata"]).to eq('{"a": 3}')
    end

    it "keeps streams apart" do
      presence.join(member_id: "7", metadata: { in: "first" })
      presence_of("room:43").join(member_id: "7", metadata: { in: "second" })

      expect(presence.members.map { |record| record["metadata"] }).to eq([{ "in" => "first" }])
      expect(presence.count).to eq(1)
    end

    it "reports nothing" do
      presence.join(member_id: "7")

      expect(changes).to be_empty
    end

    it "turns an id that is not a String into one" do
      expect([7, :ada, 1.5].map { |id| presence.join(member_id: id)["id"] }).to eq(%w[7 ada 1.5])
    end

    it "gives a new Hash that belongs to the caller" do
      records = [presence.join(member_id: "7"), presence.join(member_id: "7")]

      expect(records.map(&:class)).to eq([Hash, Hash])
      expect(records.first).not_to be(records.last)
      expect(records.first).not_to be_frozen
      expect { records.first["id"] << "8" }.not_to(change { records.last })
    end
  end

  shared_examples "the block of a join" do
    it "is given the record, once the row is written and reported" do
      seen = nil
      returned = presence.join(**call) { |record| seen = [record, rows.size, changes.size] && nil }

      expect(returned).to include("id" => "7")
      presence.join(**call) do |record|
        seen = [record, rows.size, changes.size]
        nil
      end
      expect(seen).to match([include("id" => "7"), 1, call.key?(:connection_id) ? 2 : 0])
    end

    it "has its HTML broadcast, after it has run" do
      broadcast_in_block = nil
      presence.join(**call) do
        broadcast_in_block = stream.broadcasts.dup
        "<p>joined</p>"
      end

      expect(broadcast_in_block).to be_empty
      expect(stream.broadcasts).to eq(["<p>joined</p>"])
    end

    it "has a SafeBuffer broadcast as well" do
      presence.join(**call) { ActiveSupport::SafeBuffer.new("<p>joined</p>") }

      expect(stream.broadcasts).to eq(["<p>joined</p>"])
    end

    it "broadcasts only a String, and no empty one" do
      [nil, "", :html, 1, ["<p>"], { html: "<p>" }].each { |html| presence.join(**call) { html } }

      expect(stream.broadcasts).to be_empty
    end

    it "may raise: the error is the caller's, the row stays and nothing is broadcast" do
      expect { presence.join(**call) { raise IOError, "no template" } }.to raise_error(IOError, "no template")

      expect(rows.size).to eq(1)
      expect(stream.broadcasts).to be_empty
    end

    it "may leave by break, throw or next" do
      broken = presence.join(**call) { break :broken }
      thrown = catch(:out) { presence.join(**call) { throw :out, :thrown } }
      record = presence.join(**call) { next "<p>next</p>" }

      expect([broken, thrown, record["id"]]).to eq([:broken, :thrown, "7"])
      expect(stream.broadcasts).to eq(["<p>next</p>"])
    end

    it "may use presence itself" do
      presence.join(**call) { |record| "#{presence.count} here, #{presence.members.first["id"] == record["id"]}" }

      expect(stream.broadcasts).to eq(["1 here, true"])
    end

    it "does not change what is returned, though the record is the same object" do
      yielded = nil
      returned = presence.join(**call) do |record|
        yielded = record
        "<p>"
      end

      expect(returned).to be(yielded)
    end
  end

  context "with a table without seats", table: { seats: false } do
    it_behaves_like "a member's join"

    it "has no place for a seat" do
      expect { presence.join(member_id: "7", connection_id: "c1") }.to raise_error(PG::UndefinedColumn)
      expect(changes).to be_empty
    end

    it "inserts a member once the table has been migrated, though the process still believes in the old one" do
      presence.join(member_id: "7", metadata: { a: 1 })
      SpecDatabase.add_seats
      record = presence.join(member_id: "7", metadata: { a: 2 })
      presence.join(member_id: "8")

      expect(record).to include("id" => "7", "metadata" => { "a" => 2 })
      expect(rows.map { |row| [row["member_id"], row["connection_id"]] }).to eq([["7", nil], ["8", nil]])
      expect(presence.seats?).to be(true)
    end

    it "retries once only: without the unique index the server's error is raised" do
      sql("DROP INDEX idx_pgbus_presence_members_pk")
      SpecDatabase.table_changed

      expect { presence.join(member_id: "7") }.to raise_error(PG::InvalidColumnReference, /ON CONFLICT/)
      expect(rows).to be_empty
    end
  end

  context "with a member" do
    it_behaves_like "a member's join"

    it "gives a record without the columns of a seat" do
      expect(presence.join(member_id: "7").keys).to eq(%w[id metadata joined_at last_seen_at])
      expect(row).to include("connection_id" => nil, "seat" => nil, "state" => "{}")
    end

    it "takes no seat without a connection" do
      presence.join(member_id: "7", seat: "left")

      expect(row["seat"]).to be_nil
    end

    it "leaves the seats of the same member alone" do
      presence.join(member_id: "7", connection_id: "c1", metadata: { tab: 1 })
      presence.join(member_id: "7", metadata: { tab: 0 })

      expect(rows.map { |row| [row["connection_id"], row["metadata"]] })
        .to contain_exactly(["c1", '{"tab": 1}'], [nil, '{"tab": 0}'])
    end

    it_behaves_like "the block of a join" do
      let(:call) { { member_id: "7" } }
    end
  end

  context "with a connection" do
    it "writes one seat and returns its record" do
      record = presence.join(member_id: "7", metadata: { name: "Ada" }, connection_id: "c1", seat: "left")

      expect(record).to match(
        "id" => "7", "metadata" => { "name" => "Ada" }, "joined_at" => be_within(60).of(server_time),
        "last_seen_at" => record["joined_at"], "connection_id" => "c1", "seat" => "left", "state" => {}
      )
      expect(row).to include("member_id" => "7", "connection_id" => "c1", "seat" => "left", "state" => "{}")
    end

    it "leaves a nil seat null" do
      expect(presence.join(member_id: "7", connection_id: "c1")).to include("seat" => nil)
      expect(row["seat"]).to be_nil
    end

    it "keeps an empty seat empty" do
      expect(presence.join(member_id: "7", connection_id: "c1", seat: "")).to include("seat" => "")
      expect(row["seat"]).to eq("")
    end

    it "overwrites member, metadata and seat of a connection that is there; joined_at and state stay" do
      first = presence.join(member_id: "7", metadata: { a: 1, b: 2 }, connection_id: "c1", seat: "left")
      presence.set_state(connection_id: "c1", state: { typing: true })
      age(100)
      second = presence.join(member_id: "8", metadata: { a: 3 }, connection_id: "c1")

      expect(second).to include("id" => "8", "metadata" => { "a" => 3 }, "connection_id" => "c1", "seat" => nil,
                                "state" => { "typing" => true }, "joined_at" => first["joined_at"])
      expect(second["last_seen_at"]).to be > first["last_seen_at"]
      expect(row["member_id"]).to eq("8")
    end

    it "gives each tab of a member a row" do
      2.times { |tab| presence.join(member_id: "7", connection_id: "c#{tab}") }

      expect(rows.map { |row| row["connection_id"] }).to contain_exactly("c0", "c1")
      expect(presence.count).to eq(2)
    end

    it "keeps the same connection id on two streams apart" do
      presence.join(member_id: "7", connection_id: "c1")
      presence_of("room:43").join(member_id: "8", connection_id: "c1")

      expect(rows.size).to eq(2)
    end

    it "is reported as a join, each time" do
      2.times { presence.join(member_id: 7, connection_id: :c1, seat: 3) }

      expect(changes).to eq(
        [["room:42", { type: :join, connection_id: "c1", seat: "3", member_id: "7" }]] * 2
      )
    end

    it "is reported once the row is there to be seen by others" do
      rows_at_report = nil
      implementation.pgbus.configuration.on_presence_change = ->(*) { rows_at_report = rows.size }
      presence.join(member_id: "7", connection_id: "c1")

      expect(rows_at_report).to eq(1)
    end

    it "passes on what the report raises: the row stays and the block is not run" do
      implementation.pgbus.configuration.on_presence_change = ->(*) { raise IOError, "no listener" }
      ran = false

      expect { presence.join(member_id: "7", connection_id: "c1") { ran = true } }
        .to raise_error(IOError, "no listener")
      expect([rows.size, ran]).to eq([1, false])
    end

    it "turns ids and seat that are not Strings into Strings" do
      record = presence.join(member_id: 7, connection_id: 12, seat: :left)

      expect(record).to include("id" => "7", "connection_id" => "12", "seat" => "left")
    end

    it "is a member's join where the connection is false" do
      expect(presence.join(member_id: "7", connection_id: false)).not_to include("connection_id")
      expect(row["connection_id"]).to be_nil
    end

    it_behaves_like "the block of a join" do
      let(:call) { { member_id: "7", connection_id: "c1", seat: "left" } }
    end
  end

  describe "metadata" do
    let(:ada) { Struct.new(:name) { def to_json(*) = JSON.generate({ name: }) }.new("Ada") }

    it "is whatever JSON.generate takes" do
      [
        { "a" => 1, b: nil, 3 => [true, false], nil => {} }, [], [1, [2, { x: 3 }]], "text", "", 1, -1.5, true, false,
        nil, :symbol, Time.at(0).utc, ada, { deep: [ada] }, { "ü" => "😀\u0001\"\\/" }, 2**100, [0.1, 1e20, 1.0]
      ].each do |metadata|
        stored = sql("SELECT $1::jsonb AS json", JSON.generate(metadata)).first["json"]

        expect(presence.join(member_id: "7", metadata:)["metadata"]).to eq(JSON.parse(stored))
        expect(presence.join(member_id: "7", metadata:, connection_id: "c")["metadata"]).to eq(JSON.parse(stored))
      end
    end

    it "may be nil, which is stored as JSON's null" do
      expect(presence.join(member_id: "7", metadata: nil)["metadata"]).to be_nil
      expect(row["metadata"]).to eq("null")
    end
  end
end
