# frozen_string_literal: true

RSpec.shared_examples "leaving" do
  shared_examples "the block of a leave" do
    it "is given the record, once the row is gone and reported" do
      seen = nil
      presence.leave(**call) do |record|
        seen = [record["id"], rows.size, changes.size]
        nil
      end

      expect(seen).to eq(["7", 0, call.key?(:connection_id) ? 1 : 0])
    end

    it "has its HTML broadcast, but only a String and no empty one" do
      [nil, "", :html, 1, "<p>left</p>"].each do |html|
        presence.join(**join)
        presence.leave(**call) { html }
      end

      expect(stream.broadcasts).to eq(["<p>left</p>"])
    end

    it "is not run where nobody was there" do
      presence.leave(**call)

      expect { |block| presence.leave(**call, &block) }.not_to yield_control
      expect(stream.broadcasts).to be_empty
    end

    it "may raise: the error is the caller's, and the row is gone" do
      expect { presence.leave(**call) { raise IOError, "no template" } }.to raise_error(IOError, "no template")

      expect(rows).to be_empty
    end
  end

  shared_examples "a member's leave" do
    it "deletes the row and returns the record it had" do
      joined = presence.join(member_id: "7", metadata: { name: "Ada" })

      expect(presence.leave(member_id: "7")).to eq(joined)
      expect(rows).to be_empty
    end

    it "gives nil for one who is not there" do
      presence_of("room:43").join(member_id: "7")

      expect(presence.leave(member_id: "7")).to be_nil
      expect(rows.size).to eq(1)
    end

    it "takes an id that is not a String" do
      presence.join(member_id: "7")

      expect(presence.leave(member_id: 7)).to include("id" => "7")
    end

    it "reports nothing" do
      presence.join(member_id: "7")
      presence.leave(member_id: "7")

      expect(changes).to be_empty
    end
  end

  it "takes exactly one of member and connection" do
    [{}, { member_id: "7", connection_id: "c1" }, { member_id: nil, connection_id: nil }].each do |call|
      expect { presence.leave(**call) }.to raise_error(ArgumentError, /member_id: or connection_id:/)
    end
  end

  context "with a table without seats", table: { seats: false } do
    it_behaves_like "a member's leave"

    it "finds that a table has just got seats, and leaves them alone" do
      presence.join(member_id: "7")
      SpecDatabase.add_seats
      insert_row(member_id: "7", connection_id: "c1")
      presence.leave(member_id: "7")

      expect(row["connection_id"]).to eq("c1")
    end
  end

  context "with a member" do
    it_behaves_like "a member's leave"

    it "leaves the seats of the same member alone" do
      presence.join(member_id: "7", connection_id: "c1")
      presence.join(member_id: "7")
      presence.leave(member_id: "7")

      expect(row["connection_id"]).to eq("c1")
      expect(presence.leave(member_id: "7")).to be_nil
    end

    it_behaves_like "the block of a leave" do
      let(:join) { { member_id: "7" } }
      let(:call) { { member_id: "7" } }
      before { presence.join(**join) }
    end

    on_the_gem do
      it "leaves seats alone whatever was probed" do
        presence.join(member_id: "7", connection_id: "c1")
        allow(presence_class).to receive_messages(seats_supported?: false, seats_supported_now?: false)

        expect(presence.leave(member_id: "7")).to be_nil
        expect(row["connection_id"]).to eq("c1")
      end
    end

    on_plain_ruby do
      it "deletes a seat where the probe was wrong (the gem does not)" do
        presence.join(member_id: "7", connection_id: "c1")
        allow(presence_class).to receive_messages(seats_supported?: false, seats_supported_now?: false)
        presence.leave(member_id: "7")

        expect(rows).to be_empty
      end
    end
  end

  context "with a connection" do
    before { presence.join(member_id: "7", metadata: { name: "Ada" }, connection_id: "c1", seat: "left") }

    it "deletes the seat and returns the record it had" do
      presence.set_state(connection_id: "c1", state: { typing: true })

      expect(presence.leave(connection_id: "c1")).to include(
        "id" => "7", "metadata" => { "name" => "Ada" }, "connection_id" => "c1", "seat" => "left",
        "state" => { "typing" => true }
      )
      expect(rows).to be_empty
    end

    it "leaves the member's own row and the other seats alone" do
      presence.join(member_id: "7")
      presence.join(member_id: "7", connection_id: "c2")
      presence.leave(connection_id: "c1")

      expect(rows.map { |row| row["connection_id"] }).to contain_exactly(nil, "c2")
    end

    it "is reported as a leave" do
      changes_before = changes
      presence.leave(connection_id: :c1)

      expect(changes - changes_before)
        .to eq([["room:42", { type: :leave, connection_id: "c1", seat: "left", member_id: "7" }]])
    end

    it "gives nil and reports nothing for a connection that is not there" do
      expect { expect(presence.leave(connection_id: "c2")).to be_nil }.not_to(change { changes })
      expect(rows.size).to eq(1)
    end

    it "never takes the member's own row for a connection of that name" do
      presence.join(member_id: "c2")

      expect(presence.leave(connection_id: "c2")).to be_nil
    end

    it_behaves_like "the block of a leave" do
      let(:join) { { member_id: "7", connection_id: "c1" } }
      let(:call) { { connection_id: "c1" } }
      before { implementation.pgbus.start_over }
    end
  end
end
