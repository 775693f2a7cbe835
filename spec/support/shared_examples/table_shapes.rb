# frozen_string_literal: true

# Rails may have made the times timestamp(6) or timestamptz; a table made by hand may have
# other types still.
RSpec.shared_examples "any table" do
  [{ times: "timestamp" }, { times: "timestamp(6)" }, { times: "timestamptz" }, { ids: "text" }, { json: "json" },
   { ids: "citext" }, { ids: "varchar(40)" }, { ids: "text", json: "json", times: "timestamptz" }].each do |table|
    context "with #{table.map { |columns, type| "#{type} #{columns}" }.join(", ")}", table: do
      it "takes members and seats" do
        member = presence.join(member_id: "Ada", metadata: { a: [1, 2.5, nil] })
        seat = presence.join(member_id: "Ada", connection_id: "c1", seat: "left", metadata: { b: {} })

        expect(member).to include("id" => "Ada", "metadata" => { "a" => [1, 2.5, nil] }, "joined_at" => Time)
        expect(seat).to include("id" => "Ada", "metadata" => { "b" => {} }, "seat" => "left", "state" => {})
        expect(presence.join(member_id: "Ada", metadata: {})["joined_at"]).to eq(member["joined_at"])
        expect(presence.members.map { |record| record["connection_id"] }).to eq([nil, "c1"])
        expect(presence.count).to eq(2)
      end

      it "lets them leave" do
        expect(presence.join(member_id: "Ada", connection_id: "c1")).to eq(presence.leave(connection_id: "c1"))
        expect(presence.join(member_id: "Ada")).to eq(presence.leave(member_id: "Ada"))
        expect(rows).to be_empty
      end

      it "touches, expires and sweeps" do
        presence.join(member_id: "Ada")
        %w[c1 c2].each { |connection_id| presence.join(member_id: "Ada", connection_id:) }
        age(100)
        presence.touch(member_id: "Ada")

        expect(presence.touch(connection_id: %w[c1 c3])).to eq(["c1"])
        expect(presence_class.expire_seats!(ttl_for: ->(_) { 50 }, min_ttl: 50))
          .to match([include("connection_id" => "c2", "stream_name" => "room:42")])
        expect(presence.sweep!(older_than: "infinity")).to eq(1)
        expect(row["connection_id"]).to eq("c1")
      end
    end
  end

  [{ ids: "text" }, { json: "json" }, { ids: "citext" }, { times: "timestamptz" }].each do |types|
    context "without seats, with #{types.map { |columns, type| "#{type} #{columns}" }.join}",
            table: { seats: false, **types } do
      it "takes, refreshes and loses members" do
        joined = presence.join(member_id: "Ada", metadata: { a: 1 })
        presence.touch(member_id: "Ada")

        expect(presence.members).to match([joined.merge("last_seen_at" => Time)])
        expect(presence.leave(member_id: "Ada")).to include("id" => "Ada", "metadata" => { "a" => 1 })
        presence.join(member_id: "Ada")
        expect(presence.sweep!(older_than: "infinity")).to eq(1)
      end
    end
  end

  context "with citext ids", table: { ids: "citext" } do
    # New sessions, whose statements have never met a table of other types.
    around { |example| with_connection_settings { example.run } }

    it "finds members and seats whatever the case" do
      presence.join(member_id: "Ada", metadata: { a: 1 })
      presence.join(member_id: "ADA", metadata: { a: 2 })
      presence_of("ROOM:42").join(member_id: "b", connection_id: "C1")

      expect(presence.members.map { |record| record["id"] }).to eq(%w[Ada b])
      expect(presence.set_state(connection_id: "c1", state: { a: 1 })).to include("connection_id" => "C1")
      expect(presence.leave(member_id: "aDA")).to include("id" => "Ada", "metadata" => { "a" => 2 })
    end
  end

  context "with jsonb columns" do
    it "merges state" do
      presence.join(member_id: "7", connection_id: "c1")

      expect(presence.set_state(connection_id: "c1", state: { a: 1 })["state"]).to eq("a" => 1)
    end
  end

  context "with json columns", table: { json: "json" } do
    on_the_gem do
      it "merges state" do
        presence.join(member_id: "7", connection_id: "c1")
        presence.set_state(connection_id: "c1", state: { a: 1, b: 2 })

        expect(presence.set_state(connection_id: "c1", state: { b: 3 })["state"]).to eq("a" => 1, "b" => 3)
      end
    end

    on_plain_ruby do
      it "cannot merge state (the gem can)" do
        presence.join(member_id: "7", connection_id: "c1")

        expect { presence.set_state(connection_id: "c1", state: { a: 1 }) }.to raise_error(PG::UndefinedFunction)
      end
    end
  end

  it "goes on when the table's columns change their types under a running process" do
    presence.join(member_id: "7", connection_id: "c1")
    presence.members
    SpecDatabase.table(times: "timestamptz", ids: "text", json: "json")
    record = presence.join(member_id: "7", metadata: { a: 1 }, connection_id: "c1")
    expect(presence.members).to eq([record])
    SpecDatabase.table

    expect(presence.join(member_id: "8", connection_id: "c1")).to include("id" => "8")
    expect(presence.count).to eq(1)
  end
end
