# frozen_string_literal: true

RSpec.shared_examples "bad input" do
  # Every call that takes text, each with a place for it.
  calls = {
    "the member of a join" => ->(presence, text) { presence.join(member_id: text) },
    "the member of a seat's join" => ->(presence, text) { presence.join(member_id: text, connection_id: "c1") },
    "the connection of a join" => ->(presence, text) { presence.join(member_id: "7", connection_id: text) },
    "the seat of a join" => ->(presence, text) { presence.join(member_id: "7", connection_id: "c1", seat: text) },
    "the member of a leave" => ->(presence, text) { presence.leave(member_id: text) },
    "the connection of a leave" => ->(presence, text) { presence.leave(connection_id: text) },
    "the member of a touch" => ->(presence, text) { presence.touch(member_id: text) },
    "the connection of a touch" => ->(presence, text) { presence.touch(connection_id: text) },
    "the connections of a touch" => ->(presence, text) { presence.touch(connection_id: ["c1", text]) },
    "the connection of a set_state" => ->(presence, text) { presence.set_state(connection_id: text, state: {}) },
    "the cutoff of a sweep" => ->(presence, text) { presence.sweep!(older_than: text) }
  }
  # And every call, for a stream of that name.
  calls_by_name = {
    "a join" => ->(presence) { presence.join(member_id: "7") },
    "a seat's join" => ->(presence) { presence.join(member_id: "7", connection_id: "c1") },
    "a leave" => ->(presence) { presence.leave(member_id: "7") },
    "a seat's leave" => ->(presence) { presence.leave(connection_id: "c1") },
    "a touch" => ->(presence) { presence.touch(member_id: "7") },
    "a seat's touch" => ->(presence) { presence.touch(connection_id: "c1") },
    "a set_state" => ->(presence) { presence.set_state(connection_id: "c1", state: {}) },
    "members" => lambda(&:members),
    "count" => lambda(&:count),
    "a sweep" => ->(presence) { presence.sweep!(older_than: "now") }
  }

  describe "a NUL byte" do
    calls.each do |place, call|
      it "is refused with an ArgumentError in #{place}" do
        expect { call.call(presence, "a\0b") }.to raise_error(ArgumentError, /null/)
        expect(rows).to be_empty
        expect(changes).to be_empty
      end
    end

    calls_by_name.each do |name, call|
      it "is refused with an ArgumentError in the stream's name for #{name}" do
        expect { call.call(presence_of("room\0:42")) }.to raise_error(ArgumentError, /null/)
        expect(rows).to be_empty
      end
    end

    it "is refused by the server in metadata and state" do
      presence.join(member_id: "7", connection_id: "c1")

      [{ a: "b\0c" }, { "a\0" => 1 }].each do |value|
        expect { presence.join(member_id: "8", metadata: value) }.to raise_error(PG::UntranslatableCharacter)
        expect { presence.join(member_id: "8", metadata: value, connection_id: "c1") }
          .to raise_error(PG::UntranslatableCharacter)
        expect { presence.set_state(connection_id: "c1", state: value) }.to raise_error(PG::UntranslatableCharacter)
      end
      expect(row).to include("member_id" => "7", "state" => "{}")
    end
  end

  describe "text that is not valid UTF-8" do
    calls.except("the cutoff of a sweep").each do |place, call|
      # Ruby's own, where it is Ruby that builds an Array literal of the text.
      error = place.match?(/connections? of a touch/) ? StandardError : PG::CharacterNotInRepertoire

      it "raises in #{place} and stores nothing" do
        ["a\xFFb", "\xC3", "\xED\xA0\x80", "a\xFFb".b].each do |text|
          expect { call.call(presence, text) }.to raise_error(error, /invalid byte sequence/)
        end
        expect(rows).to be_empty
        expect(changes).to be_empty
      end
    end

    calls_by_name.each do |name, call|
      it "raises in the stream's name for #{name} and stores nothing" do
        expect { call.call(presence_of("room\xFF")) }.to raise_error(PG::CharacterNotInRepertoire)
        expect(rows).to be_empty
      end
    end

    it "raises in the cutoff of a sweep" do
      expect { presence.sweep!(older_than: "now\xFF") }.to raise_error(PG::Error)
    end

    it "is refused by JSON in metadata and state" do
      presence.join(member_id: "7", connection_id: "c1")

      expect { presence.join(member_id: "8", metadata: { a: "\xFF" }) }.to raise_error(JSON::GeneratorError)
      expect { presence.set_state(connection_id: "c1", state: { a: "\xFF" }) }.to raise_error(JSON::GeneratorError)
      expect(row).to include("member_id" => "7", "state" => "{}")
    end
  end

  describe "text in another encoding" do
    {
      "ISO-8859-1" => "é".encode("ISO-8859-1"),
      "Windows-1252" => "€é".encode("Windows-1252"),
      "UTF-16LE" => "é😀".encode("UTF-16LE"),
      "UTF-32BE" => "é😀".encode("UTF-32BE"),
      "Shift_JIS" => "日本".encode("Shift_JIS"),
      "US-ASCII" => "plain".encode("US-ASCII")
    }.each do |encoding, text|
      it "is transcoded from #{encoding}" do
        room = presence_of(text)
        joined = room.join(member_id: text, connection_id: text, seat: text, metadata: { text => text })
        utf8 = text.encode("UTF-8")

        expect(joined).to include("id" => utf8, "connection_id" => utf8, "seat" => utf8, "metadata" => { utf8 => utf8 })
        expect(row).to include("stream_name" => utf8, "member_id" => utf8, "connection_id" => utf8, "seat" => utf8)
        expect(room.set_state(connection_id: text, state: { a: text })).to include("state" => { "a" => utf8 })
        expect(room.touch(connection_id: text)).to eq([utf8]) if text.encoding.ascii_compatible?
        expect(presence_of(utf8).leave(connection_id: text)).to include("id" => utf8)
      end

      it "is transcoded from #{encoding} for a member" do
        utf8 = text.encode("UTF-8")

        expect(presence.join(member_id: text)).to include("id" => utf8)
        presence.touch(member_id: text)
        expect(presence.leave(member_id: text)).to include("id" => utf8)
      end
    end

    it "is taken for UTF-8 where it is binary" do
      expect(presence.join(member_id: "é".b, connection_id: "ü".b, seat: "ß".b))
        .to include("id" => "é", "connection_id" => "ü", "seat" => "ß")
      expect(presence.touch(connection_id: ["ü".b])).to eq(["ü"])
    end

    it "raises where it has no UTF-8, and stores nothing" do
      undefined = (+"\x81").force_encoding("Windows-1252")

      expect { presence.join(member_id: undefined) }.to raise_error(PG::CharacterNotInRepertoire)
      expect(rows).to be_empty
    end

    on_the_gem do
      it "is transcoded in an Array of ids, each from its own encoding" do
        ids = ["é".encode("ISO-8859-1"), "ü", "日本".encode("UTF-16LE")]
        ids.each { |connection_id| presence.join(member_id: "7", connection_id:) }

        expect(presence.touch(connection_id: ids)).to contain_exactly("é", "ü", "日本")
      end
    end
  end

  describe "ids out of the ordinary" do
    ids = { "an empty id" => "", "a space" => " ", "spaces at both ends" => " a ", "the text NULL" => "NULL",
            "double quotes" => 'a"b"', "single quotes" => "'; DROP TABLE x; --", "backslashes" => "a\\b\\",
            "braces" => "{a}", "commas" => "a,b", "lines" => "a\nb\r\n", "a tab" => "\t", "placeholders" => "$1 %s ?",
            "emoji" => "👩‍👩‍👧 🏳️‍🌈", "a control character" => "a\u0001b", "ten thousand characters" => "x" * 1000,
            "a decomposed letter" => "e\u0301", "a byte order mark" => "\uFEFFa" }
    ids.each do |kind, id|
      it "are kept as they are: #{kind}" do
        room = presence_of("room#{id}")
        member = room.join(member_id: id)
        seat = room.join(member_id: id, connection_id: id, seat: id)

        expect(member["id"]).to eq(id)
        expect(seat).to include("id" => id, "connection_id" => id, "seat" => id)
        expect(room.members.map { |record| record.values_at("id", "connection_id") }).to eq([[id, nil], [id, id]])
        expect(room.touch(connection_id: [id, "#{id}x"])).to eq([id])
        expect(room.set_state(connection_id: id, state: { id => id })["state"]).to eq(id => id)
        expect(room.leave(connection_id: id)).to include("connection_id" => id)
        expect(room.leave(member_id: id)).to include("id" => id)
      end
    end

    it "are all found in one touch" do
      ids.each_value { |id| presence.join(member_id: "7", connection_id: id) }

      expect(presence.touch(connection_id: ids.values)).to match_array(ids.values)
    end

    it "may be frozen, and are not changed" do
      id = "ü".encode("ISO-8859-1").freeze
      presence.join(member_id: id, connection_id: id, seat: id, metadata: { id => id }.freeze)

      expect([id.encoding, id.bytes]).to eq([Encoding::ISO_8859_1, [0xFC]])
    end

    it "may be Strings of a class of the application" do
      id = Class.new(String).new("7")

      expect(presence.join(member_id: id)["id"]).to eq("7")
      expect(presence.leave(member_id: id)["id"]).to be_an_instance_of(String)
    end

    it "may be numbers and Symbols, and then find the same rows as Strings" do
      presence.join(member_id: 7, connection_id: :c1, seat: 3)

      expect(row).to include("member_id" => "7", "connection_id" => "c1", "seat" => "3")
      expect(presence.touch(connection_id: [:c1])).to eq(["c1"])
      expect(presence.leave(connection_id: "c1")).to include("id" => "7")
    end
  end

  describe "metadata" do
    it "may be a megabyte" do
      metadata = { "text" => "ü" * 500_000, "list" => (1..20_000).to_a }
      state = { "text" => "x" * 1_000_000 }
      joined = presence.join(member_id: "7", metadata:, connection_id: "c1")

      expect(joined["metadata"] == metadata).to be(true)
      expect(presence.set_state(connection_id: "c1", state:)["state"] == state).to be(true)
      expect(presence.members.first.values_at("metadata", "state") == [metadata, state]).to be(true)
    end

    nested = ->(levels) { levels.times.reduce(nil) { |inner, _| [inner].compact } }
    refused = { "NaN" => [Float::NAN, JSON::GeneratorError], "Infinity" => [Float::INFINITY, JSON::GeneratorError],
                "-Infinity" => [{ a: -Float::INFINITY }, JSON::GeneratorError],
                "broken text" => [["a\xFF"], JSON::GeneratorError],
                "101 levels" => [nested.call(101), JSON::NestingError] }
    refused.each do |kind, (value, error)|
      it "is refused where JSON refuses it: #{kind}; nothing is stored" do
        expect { presence.join(member_id: "7", metadata: value) }.to raise_error(error)
        expect { presence.join(member_id: "7", metadata: value, connection_id: "c1") }.to raise_error(error)
        expect(rows).to be_empty
        expect(changes).to be_empty
      end

      it "is refused as state where JSON refuses it: #{kind}; nothing is changed" do
        presence.join(member_id: "7", connection_id: "c1")
        before = rows

        expect { presence.set_state(connection_id: "c1", state: { a: value }) }.to raise_error(error)
        expect(rows).to eq(before)
      end
    end

    it "is refused where its to_json raises" do
      metadata = Object.new
      def metadata.to_json(*) = raise(IOError, "cannot")

      expect { presence.join(member_id: "7", metadata:) }.to raise_error(IOError, "cannot")
      expect(rows).to be_empty
    end

    it "may have 100 levels" do
      expect(presence.join(member_id: "7", metadata: nested.call(100))["metadata"]).to eq(nested.call(100))
    end
  end
end
