# frozen_string_literal: true

RSpec.shared_examples "touching" do
  # Ids of the rows heard of within the last minute.
  def fresh
    sql("SELECT coalesce(connection_id, member_id) AS id FROM pgbus_presence_members
         WHERE last_seen_at > now() - interval '1 minute'").pluck("id")
  end

  it "takes exactly one of member and connection" do
    [{}, { member_id: "7", connection_id: "c1" }, { member_id: nil, connection_id: nil },
     { member_id: "7", connection_id: [] }].each do |call|
      expect { presence.touch(**call) }.to raise_error(ArgumentError, /member_id: or connection_id:/)
    end
  end

  context "with a table without seats", table: { seats: false } do
    it "refreshes last_seen_at of the member and of nobody else, and nothing but that" do
      presence.join(member_id: "7", metadata: { a: 1 })
      presence.join(member_id: "8")
      presence_of("room:43").join(member_id: "7")
      age(100)
      before = rows("room:42").first
      presence.touch(member_id: 7)

      expect(sql("SELECT stream_name, member_id FROM pgbus_presence_members
                  WHERE last_seen_at > now() - interval '1 minute'"))
        .to eq([{ "stream_name" => "room:42", "member_id" => "7" }])
      expect(rows("room:42").first.except("last_seen_at")).to eq(before.except("last_seen_at"))
    end

    it "does nothing for one who is not there" do
      expect { presence.touch(member_id: "7") }.not_to raise_error
      expect(rows).to be_empty
    end

    it "finds that a table has just got seats, and leaves them alone" do
      presence.join(member_id: "7")
      SpecDatabase.add_seats
      insert_row(member_id: "7", connection_id: "c1")
      age(100)
      presence.touch(member_id: "7")

      expect(fresh).to eq(["7"])
    end
  end

  context "with a member" do
    it "refreshes the member's own row, not the seats of the member" do
      presence.join(member_id: "7")
      presence.join(member_id: "7", connection_id: "c1")
      age(100)
      presence.touch(member_id: "7")

      expect(fresh).to eq(["7"])
    end

    it "reports and broadcasts nothing" do
      presence.join(member_id: "7")
      presence.touch(member_id: "7")

      expect(changes).to be_empty
      expect(stream.broadcasts).to be_empty
    end

    on_the_gem do
      it "leaves seats alone whatever was probed" do
        presence.join(member_id: "7", connection_id: "c1")
        age(100)
        allow(presence_class).to receive_messages(seats_supported?: false, seats_supported_now?: false)
        presence.touch(member_id: "7")

        expect(fresh).to be_empty
      end
    end
  end

  context "with connections" do
    before do
      %w[c1 c2 c3].each { |connection_id| presence.join(member_id: "7", connection_id:, seat: "left") }
      presence_of("room:43").join(member_id: "7", connection_id: "other")
      presence.join(member_id: "c1")
      age(100)
      implementation.pgbus.start_over
    end

    it "refreshes one seat and returns its id in an Array" do
      expect(presence.touch(connection_id: "c1")).to eq(["c1"])
      expect(fresh).to eq(["c1"])
    end

    it "refreshes many seats and returns the ids that it found" do
      expect(presence.touch(connection_id: %w[c1 c3 gone other])).to contain_exactly("c1", "c3")
      expect(fresh).to contain_exactly("c1", "c3")
    end

    it "names each seat once, however often it is asked for" do
      expect(presence.touch(connection_id: %w[c1 c1 c1])).to eq(["c1"])
    end

    it "gives [] for no ids, and for ids that are not there" do
      expect(presence.touch(connection_id: [])).to eq([])
      expect(presence.touch(connection_id: ["gone"])).to eq([])
      expect(presence.touch(connection_id: "gone")).to eq([])
      expect(fresh).to be_empty
    end

    it "takes ids that are not Strings" do
      presence.join(member_id: "7", connection_id: "12")

      expect(presence.touch(connection_id: :c1)).to eq(["c1"])
      expect(presence.touch(connection_id: 12)).to eq(["12"])
      expect(presence.touch(connection_id: [12, :c2])).to contain_exactly("12", "c2")
    end

    it "changes nothing but last_seen_at" do
      presence.set_state(connection_id: "c1", state: { typing: true })
      before = rows.map { |row| row.except("last_seen_at") }
      presence.touch(connection_id: %w[c1 c2 c3])

      expect(rows.map { |row| row.except("last_seen_at") }).to match_array(before)
    end

    it "reports and broadcasts nothing" do
      presence.touch(connection_id: %w[c1 c2])

      expect(changes).to be_empty
      expect(stream.broadcasts).to be_empty
    end

    it "touches thousands in one call" do
      sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id)
           SELECT 'room:42', n, 'tab' || n FROM generate_series(1, 5000) n")
      ids = Array.new(5000) { |number| "tab#{number + 1}" }

      expect(presence.touch(connection_id: ids)).to match_array(ids)
    end
  end
end
