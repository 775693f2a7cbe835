# frozen_string_literal: true

RSpec.shared_examples "records" do
  let(:record) { presence_class::Record }

  describe "Record.build" do
    let(:row) { { "member_id" => "7", "metadata" => '{"a": 1}', "joined_at" => :joined, "last_seen_at" => :seen } }

    it "makes a record of a member's row" do
      expect(record.build(row))
        .to eq("id" => "7", "metadata" => { "a" => 1 }, "joined_at" => :joined, "last_seen_at" => :seen)
    end

    it "takes the columns of a seat where the row has them, nil or not" do
      seat = { "connection_id" => "c1", "seat" => "left", "state" => '{"typing": true}' }
      no_seat = { "connection_id" => nil, "seat" => nil, "state" => nil }

      expect(record.build({ **row, **seat }))
        .to include("connection_id" => "c1", "seat" => "left", "state" => { "typing" => true })
      expect(record.build({ **row, **no_seat })).to include("connection_id" => nil, "seat" => nil, "state" => {})
    end

    it "takes a row whose metadata is a Hash already" do
      expect(record.build({ **row, "metadata" => { "b" => 2 } })["metadata"]).to eq("b" => 2)
    end
  end

  describe "Record.parse_json" do
    it "gives a Hash back as it is" do
      hash = { a: 1 }

      expect(record.parse_json(hash)).to be(hash)
    end

    it "makes {} of nil and of an empty String" do
      expect(record.parse_json(nil)).to eq({})
      expect(record.parse_json("")).to eq({})
      expect(log_lines).to be_empty
    end

    it "reads JSON" do
      expect(record.parse_json('{"a": [1, 1.0, null, true, "ü"]}')).to eq("a" => [1, 1.0, nil, true, "ü"])
      expect(record.parse_json("null")).to be_nil
      expect(record.parse_json("[1]")).to eq([1])
      expect(record.parse_json('"text"')).to eq("text")
    end

    ["{", "nul", "[1,]", "01", '"open', "{\"a\": 1}}", "#{"[" * 102}#{"]" * 102}"].each do |text|
      it "makes {} of #{text[0, 10].inspect}, with a line for whoever debugs" do
        expect(record.parse_json(text)).to eq({})
        expect(log_lines.size).to eq(1)
        expect(log_lines.first).to include(text[0, 200].inspect)
      end
    end

    it "logs the first 200 characters, not bytes, and no more" do
      record.parse_json("{#{"ü" * 300}")

      expect(log_lines.join.scrub.scan(/{ü+/).map(&:size).max).to eq(200)
    end

    it "logs nothing where debugging is off, or there is no logger" do
      implementation.pgbus.logger.level = Logger::INFO
      expect(record.parse_json("{")).to eq({})
      implementation.pgbus.logger = nil
      expect(record.parse_json("{")).to eq({})

      expect(log_lines).to be_empty
    end
  end
end
