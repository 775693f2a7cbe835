# frozen_string_literal: true

RSpec.shared_examples "setting the state of a seat" do
  before { presence.join(member_id: "7", metadata: { name: "Ada" }, connection_id: "c1", seat: "left") }

  it "merges at the top level: keys not given keep their values" do
    presence.set_state(connection_id: "c1", state: { typing: true, cursor: { x: 1, y: 2 } })
    record = presence.set_state(connection_id: "c1", state: { "cursor" => { "x" => 3 }, selected: [1] })

    expect(record).to include("id" => "7", "metadata" => { "name" => "Ada" }, "connection_id" => "c1",
                              "seat" => "left")
    expect(record["state"]).to eq("typing" => true, "cursor" => { "x" => 3 }, "selected" => [1])
    expect(JSON.parse(row["state"])).to eq(record["state"])
  end

  it "keeps a key whose value is nil" do
    presence.set_state(connection_id: "c1", state: { typing: true })

    expect(presence.set_state(connection_id: "c1", state: { typing: nil })["state"]).to eq("typing" => nil)
  end

  it "leaves the state as it is for an empty Hash" do
    presence.set_state(connection_id: "c1", state: { typing: true })

    expect(presence.set_state(connection_id: "c1", state: {})["state"]).to eq("typing" => true)
  end

  it "refreshes last_seen_at and leaves joined_at" do
    age(100)
    before = presence.members.first
    after = presence.set_state(connection_id: "c1", state: { typing: true })

    expect(after["last_seen_at"]).to be > before["last_seen_at"] + 90
    expect(after["joined_at"]).to eq(before["joined_at"])
  end

  it "gives nil where there is no such seat" do
    presence_of("room:43").join(member_id: "7", connection_id: "c2")
    presence.join(member_id: "c3")

    expect(%w[c2 c3].map { |connection_id| presence.set_state(connection_id:, state: { a: 1 }) }).to eq([nil, nil])
    expect(rows.map { |row| row["state"] }).to all(eq("{}"))
  end

  it "reports and broadcasts nothing" do
    implementation.pgbus.start_over
    presence.set_state(connection_id: "c1", state: { typing: true })

    expect(changes).to be_empty
    expect(stream.broadcasts).to be_empty
  end

  it "takes a Hash of any class and nothing but a Hash" do
    state = ActiveSupport::HashWithIndifferentAccess.new(typing: true)

    expect(presence.set_state(connection_id: "c1", state:)["state"]).to eq("typing" => true)
    [nil, "{}", [], [%w[a b]], 1, Struct.new(:a).new(1)].each do |other|
      expect { presence.set_state(connection_id: "c1", state: other) }
        .to raise_error(ArgumentError, /#{Regexp.escape(other.class.to_s)}/)
    end
  end

  it "takes a connection id that is not a String" do
    presence.join(member_id: "7", connection_id: "12")

    expect(presence.set_state(connection_id: 12, state: { a: 1 })).to include("connection_id" => "12")
    expect(presence.set_state(connection_id: :c1, state: { a: 1 })).to include("connection_id" => "c1")
  end

  it "loses no key when several set theirs at once" do
    in_threads(8) { |number| presence.set_state(connection_id: "c1", state: { "key#{number}": number }) }

    expect(presence.members.first["state"]).to eq(Array.new(8) { |number| ["key#{number}", number] }.to_h)
  end
end
