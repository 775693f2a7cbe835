# frozen_string_literal: true

# Stored JSON reads as Ruby's JSON.parse reads it. In a json column the text is what was
# written; in a jsonb column PostgreSQL has written it anew.
RSpec.shared_examples "reading JSON" do
  # As JSON.parse has it, or {} where it refuses. Floats beyond range warn; that is no matter here.
  def as_ruby_reads(text)
    warning = $VERBOSE
    $VERBOSE = nil
    JSON.parse(text)
  rescue JSON::ParserError
    {}
  ensure
    $VERBOSE = warning
  end

  # What Presence reads back, once as metadata and once as state.
  def stored_and_read(text)
    sql("DELETE FROM pgbus_presence_members")
    insert_row(connection_id: "c1", metadata: text, state: text)
    [text_stored, *presence.members.first.values_at("metadata", "state")]
  end

  def text_stored
    rows.first["metadata"]
  end

  # inspect tells what == does not: 1 from 1.0, 0.0 from -0.0, and the order of keys.
  def expect_as_ruby_reads(text)
    stored, metadata, state = stored_and_read(text)
    expected = as_ruby_reads(stored)

    expect(metadata.inspect).to eq(expected.inspect)
    expect(state.inspect).to eq(expected.inspect)
    expect(Marshal.dump(metadata)).to eq(Marshal.dump(expected))
  end

  numbers = %w[0 -0 1 -1 1.0 -0.0 0.0 1e0 1E5 1e+5 1.5e-7 1e22 1e23 1e400 -1e400 1e-400 5e-324 2.2250738585072011e-308
               1.7976931348623157e308 1.7976931348623159e308 9007199254740993 9007199254740993.0 0.1 0.30000000000000004
               123456789.123456789123456789 9223372036854775807 9223372036854775808 -9223372036854775808
               -9223372036854775809 18446744073709551615 18446744073709551616 123456789012345678901234567890
               4611686018427387903 4611686018427387904 100000000000000000000.5]
  texts = ["null", "true", "false", '"text"', '""', "[]", "{}", "[[]]", '{"":{}}', "[1,[2,{\"a\":[null]}]]",
           '{"a":1,"b":2,"a":3}', " \n\t[ 1 , 2 ]\r ", '"ü😀"', '"\u00fc\ud83d\ude00"', '"\"\\\/\b\f\n\r\t"',
           '{"\u0061":1,"a b":2}', '"\u2028"', '{"json_class":"String"}', '{"__proto__":1}',
           "{\"long\": \"#{"x" * 10_000}\"}", "[#{(1..2000).to_a.join(",")}]"]

  context "with jsonb columns" do
    [*numbers, *texts].each do |text|
      it("reads #{text[0, 40].inspect} as Ruby does") { expect_as_ruby_reads(text) }
    end
  end

  context "with json columns", table: { json: "json" } do
    [*numbers, *texts, '"\u0000"', '"\ud83d"', '"\ude00"', '["\ud83dx"]', '{"\ud83d":1}'].each do |text|
      it("reads #{text[0, 40].inspect} as Ruby does") { expect_as_ruby_reads(text) }
    end

    it "reads numbers of any length and precision as Ruby does" do
      random = Random.new(42)
      digits = ->(from, to) { Array.new(random.rand(from..to)) { random.rand(10) }.join }
      floats = Array.new(500) do
        "#{["-", ""].sample(random:)}#{random.rand(1..9)}#{digits.call(0, 25)}.#{digits.call(1, 25)}" \
          "e#{random.rand(-330..300)}"
      end

      expect_as_ruby_reads("[#{floats.join(",")}]")
    end
  end

  it "keeps integers beyond 64 bits exact on the way in and out" do
    metadata = { "big" => 2**200, "small" => -(2**200), "in" => [2**64, -(2**63) - 1] }

    expect(presence.join(member_id: "7", metadata:)["metadata"]).to eq(metadata)
    expect(presence.members.first["metadata"]).to eq(metadata)
  end

  it "reads a Float as a Float though it is whole" do
    value = presence.join(member_id: "7", metadata: { "one" => 1.0 }).dig("metadata", "one")

    expect(value).to be_a(Float)
    expect(value).to eq(1.0)
  end

  it "gives UTF-8 Strings, valid and free to change" do
    record = presence.join(member_id: "ü", metadata: { "ä" => "ö" }, connection_id: "é", seat: "ß")
    strings = [*record.values_at("id", "connection_id", "seat"), *record["metadata"].to_a.flatten]

    expect(strings).to eq(%w[ü é ß ä ö])
    expect(strings.map(&:encoding).uniq).to eq([Encoding::UTF_8])
    expect(strings).to all(be_valid_encoding)
    expect(record.values_at("id", "seat") + [record.dig("metadata", "ä")]).to all(satisfy { |string| !string.frozen? })
  end

  it "reads 100 levels of nesting" do
    text = "#{"[" * 100}#{"]" * 100}"
    insert_row(metadata: text)

    expect(presence.members.first["metadata"]).to eq(JSON.parse(text))
    expect(log_lines).to be_empty
  end

  # json 3 takes the 101st.
  it "makes {} of 102 levels, with one line for whoever debugs, and reads the other rows" do
    text = "#{"[" * 102}#{"]" * 102}"
    insert_row(member_id: "deep", metadata: text)
    insert_row(member_id: "flat", metadata: '{"a": 1}')
    metadata = presence.members.to_h { |record| record.values_at("id", "metadata") }

    expect(metadata).to eq("deep" => {}, "flat" => { "a" => 1 })
    expect(log_lines.size).to eq(1)
    expect(log_lines.first).to include(text[0, 200]).and(satisfy { |line| !line.include?(text[0, 201]) })
  end
end
