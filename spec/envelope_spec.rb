# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/event_stream"

RSpec.describe "Pgbus::Streams::Envelope" do
  let(:envelope) { Pgbus::Streams::Envelope }

  # What looks like a field, ends a line or does not, or is no text.
  hostile = ["\r", "\n", "\r\n", "\n\r", "\n\n", "\u2028", "\u2029", "\u0085", "\v", "\f", "\0", "\uFEFF", "data", ":",
             "data: forged", "id: 99", "event: forged", "retry: 1", ": comment", " ", "  ", "a", "é", "😀", "<p>",
             "\xFF", "\xC3", "\xE2\x80", "\xED\xA0\x80", "\xF0\x9F\x98"].map(&:b)

  # Text of bytes that are what its encoding says, or not.
  define_method(:random_text) do |random, encoding|
    Array.new(random.rand(0..12)) { hostile.sample(random:) }.join.force_encoding(encoding)
  end

  # What a client can get: its lines end with LF alone, and what is no UTF-8 is U+FFFD.
  def received(bytes)
    bytes.b.force_encoding(Encoding::UTF_8).scrub("\uFFFD").gsub("\r\n", "\n").tr("\r", "\n")
  end

  def parsed(frames)
    EventStream.new(frames)
  end

  it "has the signatures of pgbus" do
    parameters = %i[message comment connected retry_directive http_response_headers].to_h do |name|
      [name, envelope.method(name).parameters]
    end

    expect(parameters).to eq(
      message: [%i[keyreq id], %i[keyreq event], %i[keyreq data]], comment: [%i[req text]],
      connected: [%i[keyreq id]], retry_directive: [%i[req milliseconds]], http_response_headers: []
    )
  end

  it "writes an event with its id, its name and its payload" do
    expect(envelope.message(id: 7, event: "turbo-stream", data: "<p>hello</p>"))
      .to eq("id: 7\nevent: turbo-stream\ndata: <p>hello</p>\n\n")
  end

  it "writes each line of a payload as a data line" do
    expect(envelope.message(id: 7, event: "e", data: "a\nb\r\nc\rd\n\n"))
      .to eq("id: 7\nevent: e\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \ndata: \n\n")
  end

  {
    "an empty payload" => ["", ""], "nil" => [nil, ""], "a line end" => %W[\n \n], "two of them" => %W[\r\r \n\n],
    "a number" => [7, "7"], "a Symbol" => [:a, "a"], "spaces in front" => ["  a", "  a"], "a colon" => [": a", ": a"],
    "fields" => ["id: 1\n\ndata: x\n\n", "id: 1\n\ndata: x\n\n"], "U+2028" => ["a\u2028b", "a\u2028b"],
    "U+0085" => ["a\u0085b", "a\u0085b"], "NUL" => ["a\0b", "a\0b"], "a byte order mark" => ["\uFEFFa", "\uFEFFa"],
    "bytes that are no UTF-8" => ["a\xFFb", "a\uFFFDb"], "binary that is UTF-8" => ["é\n".b, "é\n"],
    "Latin-1" => ["é".encode("ISO-8859-1"), "é"], "UTF-16" => ["é\r\n😀".encode("UTF-16LE"), "é\n😀"],
    "ASCII that is none" => ["a\xE9".b.force_encoding("US-ASCII"), "a\uFFFD"]
  }.each do |kind, (data, expected)|
    it "brings #{kind} to the client" do
      frame = envelope.message(id: 7, event: "e", data:)

      expect(parsed(frame).events).to eq([EventStream::Event.new(type: "e", data: expected, id: "7")])
      expect(frame).to be_valid_encoding.and have_attributes(encoding: Encoding::UTF_8)
    end
  end

  it "leaves what it is given as it was" do
    texts = ["a\n", "a\xFF", "a".b].map(&:freeze)

    frames = texts.map { |text| envelope.message(id: 1, event: text, data: text) + envelope.comment(text) }

    expect(frames.size).to eq(3)
    expect(texts.map(&:encoding)).to eq([Encoding::UTF_8, Encoding::UTF_8, Encoding::BINARY])
  end

  [Encoding::UTF_8, Encoding::BINARY].each do |encoding|
    it "brings 5,000 random payloads in #{encoding} to the client, each as one event and nothing else" do
      random = Random.new(1)
      payloads = Array.new(5000) { random_text(random, encoding) }
      frames = payloads.each_with_index.map { |data, id| envelope.message(id:, event: "e", data:) }
      stream = parsed(frames.join)

      expect(stream.events.map(&:data)).to eq(payloads.map { |payload| received(payload) })
      expect(stream.events.map(&:id)).to eq((0...5000).map(&:to_s))
      expect(stream.events.map(&:type).uniq).to eq(["e"])
      expect(stream).to have_attributes(comments: [], unknown: [], retry: nil)
    end
  end

  [Encoding::UTF_8, Encoding::BINARY, Encoding::US_ASCII, Encoding::ISO_8859_1, Encoding::Windows_1252,
   Encoding::UTF_16LE, Encoding::UTF_16BE, Encoding::UTF_32LE, Encoding::EUC_JP, Encoding::Shift_JIS].each do |encoding|
    it "lets no text in #{encoding} leave its field" do
      random = Random.new(2)
      count = 0
      frames = Array.new(2000) do |id|
        event, data, text = Array.new(3) { random_text(random, encoding) }
        event = "e#{id}".encode(encoding) + event
        count += 1
        envelope.message(id:, event:, data:) + envelope.comment(text)
      end
      stream = parsed(frames.join)

      expect(stream.events.map(&:id)).to eq(Array.new(count, &:to_s))
      expect(stream.events.each_with_index.reject { |event, id| event.type.start_with?("e#{id}") }).to be_empty
      expect(stream.comments.size).to eq(count)
      expect(stream).to have_attributes(unknown: [], retry: nil)
    end
  end

  it "brings each frame to its end: another one after it is another one" do
    frames = envelope.retry_directive(2000) + envelope.comment("a") + envelope.message(id: 1, event: "e", data: "") +
             envelope.connected(id: "c") + envelope.message(id: 2, event: "f", data: "\r")
    stream = parsed(frames)

    expect(stream.events.map { |event| [event.type, event.data, event.id] })
      .to eq([["e", "", "1"], ["pgbus:connected", '{"connectionId":"c"}', "1"], %W[f \n 2]])
    expect(stream).to have_attributes(retry: 2000, comments: [" a"], unknown: [])
  end

  it "keeps an id on its line" do
    stream = parsed(envelope.message(id: "1\nevent: forged\r\rdata: x\n\n", event: "e", data: "a"))

    expect(stream.events).to eq([EventStream::Event.new(type: "e", data: "a", id: "1event: forgeddata: x")])
  end

  it "wants an id and a name" do
    [{ id: nil }, { id: "" }, { id: "\n" }, { event: nil }, { event: "" }, { event: "\r\n" }].each do |wrong|
      expect { envelope.message(**{ id: 1, event: "e", data: "a" }, **wrong) }.to raise_error(ArgumentError)
    end
  end

  it "writes a comment on one line, which no client takes for an event" do
    expect(envelope.comment("a\r\ndata: x\n\n")).to eq(": adata: x\n\n")
    expect(parsed(envelope.comment(nil))).to have_attributes(events: [], unknown: [])
  end

  describe ".connected" do
    it "tells a client its id, and is no place in the stream" do
      stream = parsed(envelope.message(id: 7, event: "e", data: "a") + envelope.connected(id: "0123456789abcdef"))

      expect(stream.events.last)
        .to have_attributes(type: "pgbus:connected", data: '{"connectionId":"0123456789abcdef"}')
      expect(stream.last_event_id).to eq("7")
    end

    it "keeps any id inside its JSON" do
      id = "\"\n\r\n\ndata: x\u2028\xFF"
      stream = parsed(envelope.connected(id:))

      expect(stream.events.map { |event| JSON.parse(event.data) }).to eq([{ "connectionId" => id.scrub }])
    end

    it "wants an id" do
      [nil, ""].each { |id| expect { envelope.connected(id:) }.to raise_error(ArgumentError) }
    end
  end

  describe ".retry_directive" do
    it "tells a client how long to wait" do
      expect(envelope.retry_directive(0)).to eq("retry: 0\n\n")
      expect(parsed(envelope.retry_directive(86_400_000)).retry).to eq(86_400_000)
    end

    [-1, 1.5, "5", nil, "1\ndata: x"].each do |wrong|
      it "refuses #{wrong.inspect}" do
        expect { envelope.retry_directive(wrong) }.to raise_error(ArgumentError)
      end
    end
  end

  it "has the head of a response that no proxy keeps back or changes" do
    first, *headers = envelope.http_response_headers.delete_suffix("\r\n\r\n").split("\r\n")

    expect(first).to eq("HTTP/1.1 200 OK")
    expect(headers.map(&:downcase)).to include("content-type: text/event-stream", "x-accel-buffering: no",
                                               "cache-control: no-cache, no-transform")
    expect(envelope.http_response_headers).to end_with("\r\n\r\n")
  end
end
