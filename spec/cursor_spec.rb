# frozen_string_literal: true

require "pgbus_native/streams"

RSpec.describe "Pgbus::Streams::Cursor" do
  let(:cursor) { Pgbus::Streams::Cursor }

  def parse(since = nil, header = nil)
    cursor.parse(query_since: since, last_event_id: header)
  end

  it "has the signature of pgbus" do
    expect(cursor.method(:parse).parameters).to eq([%i[keyreq query_since], %i[keyreq last_event_id]])
    expect(cursor::InvalidCursor).to be < ArgumentError
    expect(cursor::MAX_MSG_ID).to eq(9_223_372_036_854_775_807)
  end

  {
    [nil, nil] => 0, ["", ""] => 0, [" ", "\t\n"] => 0, ["5", nil] => 5, [nil, "6"] => 6, %w[5 6] => 6,
    ["5", ""] => 5, %w[x 6] => 6, [5, nil] => 5, [nil, 6] => 6, [5, 0] => 0, ["007", nil] => 7,
    ["9223372036854775807", nil] => (2**63) - 1
  }.each do |(since, header), expected|
    it "makes #{expected} of since #{since.inspect} and Last-Event-ID #{header.inspect}" do
      expect(parse(since, header)).to eq(expected)
    end
  end

  ["-1", "+1", "1.0", "1e3", "0x1", "1_0", " 1", "1 ", "1\n", "a", "\u0661", "\xFF", "1\0", "9223372036854775808",
   "9" * 10_000, -1, 2**63, 1.5, ["1"], { "a" => "1" }, "1\r\n2"].each do |wrong|
    it "refuses #{wrong.inspect[0, 30]}" do
      expect { parse(wrong) }.to raise_error(cursor::InvalidCursor)
      expect { parse("5", wrong) }.to raise_error(cursor::InvalidCursor)
    end
  end
end
