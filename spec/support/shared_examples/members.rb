# frozen_string_literal: true

RSpec.shared_examples "listing and counting" do
  # A member of each age in seconds since joining.
  def join_long_ago(**members)
    members.each do |member_id, seconds|
      insert_row(member_id: member_id.to_s)
      sql("UPDATE pgbus_presence_members SET joined_at = now() - make_interval(secs => $1) WHERE member_id = $2",
          seconds, member_id.to_s)
    end
  end

  it "gives [] and 0 for a stream with nobody" do
    presence_of("room:43").join(member_id: "7")

    expect(presence.members).to eq([])
    expect(presence.count).to be(0)
  end

  it "lists the oldest joined_at first, whoever was seen last" do
    join_long_ago(young: 10, old: 1000, middle: 500)
    presence.touch(member_id: "old")

    expect(presence.members.map { |record| record["id"] }).to eq(%w[old middle young])
  end

  it "gives every seat and every member's own row, all with the columns of a seat" do
    presence.join(member_id: "7", metadata: { name: "Ada" })
    presence.join(member_id: "7", connection_id: "c1", seat: "left")
    presence.set_state(connection_id: "c1", state: { typing: true })

    expect(presence.members).to match(
      [
        { "id" => "7", "metadata" => { "name" => "Ada" }, "joined_at" => Time, "last_seen_at" => Time,
          "connection_id" => nil, "seat" => nil, "state" => {} },
        { "id" => "7", "metadata" => {}, "joined_at" => Time, "last_seen_at" => Time,
          "connection_id" => "c1", "seat" => "left", "state" => { "typing" => true } }
      ]
    )
    expect(presence.count).to eq(2)
  end

  it "lists and counts one stream only" do
    presence.join(member_id: "7")
    presence_of("room:4").join(member_id: "8")
    presence_of("room:42x").join(member_id: "9")

    expect(presence.members.map { |record| record["id"] }).to eq(["7"])
    expect(presence.count).to eq(1)
  end

  it "lists and counts thousands" do
    sql("INSERT INTO pgbus_presence_members (stream_name, member_id, metadata, joined_at)
         SELECT 'room:42', n, jsonb_build_object('n', n), now() + make_interval(secs => n)
         FROM generate_series(1, 3000) n")

    expect(presence.count).to eq(3000)
    expect(presence.members.map { |record| record["metadata"]["n"] }).to eq((1..3000).to_a)
  end

  it "gives records that belong to the caller" do
    presence.join(member_id: "7", metadata: { name: "Ada" })
    presence.members.first["metadata"]["name"] << " Lovelace"
    presence.members << :more

    expect(presence.members.map { |record| record["metadata"] }).to eq([{ "name" => "Ada" }])
  end

  context "with a table without seats", table: { seats: false } do
    it "gives records without the columns of a seat" do
      presence.join(member_id: "7", metadata: { name: "Ada" })

      expect(presence.members).to match(
        [{ "id" => "7", "metadata" => { "name" => "Ada" }, "joined_at" => Time, "last_seen_at" => Time }]
      )
      expect(presence.count).to eq(1)
    end
  end
end
