# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/certificate_authority"
require_relative "support/event_stream"
require_relative "support/puma_server"
require_relative "support/raw_client"
require_relative "support/streaming_body"
require "tmpdir"

RSpec.describe "Connections of Pgbus::Web::Streamer" do
  let(:pair) { UNIXSocket.pair }
  let(:near) { pair.first }
  let(:far) { pair.last }
  let(:attributes) { { id: "0123456789abcdef", stream_name: "room:1", since_id: 5, context: "user", seat: "tab" } }
  let(:message) { Struct.new(:msg_id, :payload) }
  let(:connection) { connection_on(near) }

  after { pair.each { |socket| socket.close unless socket.closed? } }

  def connection_on(io, write_deadline_ms: 5000, **others)
    writer = Pgbus::Web::Streamer::IoWriter
    Pgbus::Web::Streamer::Connection.new(io:, writer:, write_deadline_ms:, **attributes, **others)
  end

  def connection_on_body(write_deadline_ms: 5000, body: bounded_body(write_deadline_ms))
    Pgbus::Web::Streamer::FalconConnection.new(body:, write_deadline_ms:, **attributes)
  end

  def bounded_body(deadline_ms)
    queue = queue_class.new(deadline_ms)
    Protocol::HTTP::Body::Writable.new(queue:)
  end

  def queue_class
    Pgbus::Web::StreamApp.const_get(:BodyQueue)
  end

  def messages(*ids)
    ids.map { |id| message.new(id, "payload #{id}") }
  end

  # What the block returned, and after how many seconds; fails if it does not return at all.
  def timed(&)
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    thread = Thread.new(&)
    raise "still not back after 20 s" unless thread.join(20)

    [thread.value, Process.clock_gettime(Process::CLOCK_MONOTONIC) - started]
  ensure
    thread&.kill
  end

  # All that the client gets until the connection is closed.
  def received
    connection.close
    EventStream.new(far.read)
  end

  it "has the signatures of pgbus" do
    streamer = Pgbus::Web::Streamer
    optional = [%i[key context], %i[key seat]]

    expect(streamer::Connection.instance_method(:initialize).parameters)
      .to eq(%i[id stream_name io since_id writer write_deadline_ms].map { |name| [:keyreq, name] } + optional)
    expect(streamer::FalconConnection.instance_method(:initialize).parameters)
      .to eq(%i[id stream_name body since_id write_deadline_ms].map { |name| [:keyreq, name] } + optional)
    expect(streamer::IoWriter.method(:write).parameters)
      .to eq([%i[req connection], %i[req bytes], %i[keyreq deadline_ms]])
  end

  {
    "on a socket" => [-> { connection }, {}], "on a body" => [-> { connection_on_body }, { streaming_body: true }]
  }.each do |kind, (made, needs)|
    it "knows what it was made with, #{kind}", needs do
      expect(instance_exec(&made)).to have_attributes(
        id: "0123456789abcdef", stream_name: "room:1", last_msg_id_sent: 5, context: "user", seat: "tab",
        presence_member: nil, dead?: false, mutex: Mutex
      )
    end

    it "keeps a member for the streamer, #{kind}", needs do
      made_here = instance_exec(&made)
      made_here.presence_member = { id: 7 }

      expect(made_here.presence_member).to eq({ id: 7 })
    end

    it "writes messages above the cursor, and moves it, #{kind}", needs do
      made_here = instance_exec(&made)
      written = made_here.enqueue(messages(4, 5, 6, 6, 8, 7))

      expect(written.map(&:msg_id)).to eq([6, 8])
      expect(made_here.last_msg_id_sent).to eq(8)
      expect(made_here.enqueue(messages(8))).to be_empty
    end

    it "writes nothing when it is dead, #{kind}", needs do
      made_here = instance_exec(&made)
      made_here.mark_dead!

      expect([made_here.write_comment("a"), made_here.write_sentinel(": b\n\n"), made_here.enqueue(messages(9))])
        .to eq([:closed, :closed, []])
      expect(made_here.last_msg_id_sent).to eq(5)
    end

    it "may be closed again, #{kind}", needs do
      made_here = instance_exec(&made)
      2.times { expect(made_here.close).to be_nil }

      expect(made_here).to be_dead
      expect(made_here.write_comment("a")).to eq(:closed)
    end

    it "counts the seconds since something was written, #{kind}", needs do
      made_here = instance_exec(&made)
      wait_until("it has been idle") { made_here.idle_for > 0.5 }
      made_here.write_comment("a")

      expect(made_here.idle_for).to be_between(0, 0.5)
    end
  end

  describe "on a socket" do
    it "writes events, comments and other frames" do
      connection.enqueue(messages(6))
      connection.write_comment("heartbeat")
      connection.write_sentinel(Pgbus::Streams::Envelope.connected(id: connection.id))

      stream = received

      expect(stream).to have_attributes(comments: [" heartbeat"], unknown: [])
      expect(stream.events.map { |event| [event.type, event.data, event.id] })
        .to eq([["turbo-stream", "payload 6", "6"],
                ["pgbus:connected", '{"connectionId":"0123456789abcdef"}', "6"]])
    end

    it "gives an event the name that it has" do
      typed = Struct.new(:msg_id, :payload, :event)
      connection.enqueue([typed.new(6, "a", "chat"), typed.new(7, "b", nil)])

      expect(received.events.map(&:type)).to eq(%w[chat turbo-stream])
    end

    it "says closed when the client has gone, and is dead then" do
      far.close

      expect(connection.enqueue(messages(6, 7))).to be_empty
      expect(connection).to have_attributes(dead?: true, last_msg_id_sent: 5)
    end

    it "writes a frame larger than the socket's buffer while the client reads" do
      reader = Thread.new { far.read }

      expect(connection.write_comment("x" * 5_000_000)).to eq(:ok)
      connection.close
      expect(reader.value).to eq(": #{"x" * 5_000_000}\n\n")
    end

    it "waits no longer than its deadline for a client that does not read, and is dead then" do
      impatient = connection_on(near, write_deadline_ms: 100)
      result, took = timed { impatient.write_comment("x" * 5_000_000) }

      expect([result, impatient.dead?]).to eq([:blocked, true])
      expect(took).to be_between(0.1, 10)
    end

    it "does not wait longer for a client that reads a little now and then" do
      impatient = connection_on(near, write_deadline_ms: 200)
      reader = Thread.new { loop { far.readpartial(65_536) && sleep(0.01) } }
      result, took = timed { impatient.write_comment("x" * 50_000_000) }
      reader.kill

      expect(result).to eq(:blocked)
      expect(took).to be_between(0.2, 5)
    end

    it "takes another deadline for a batch of messages" do
      patient = connection_on(near, write_deadline_ms: 60_000)
      large = [message.new(6, "x" * 5_000_000)]
      written, took = timed { patient.enqueue(large, deadline_ms: 50) }

      expect(written).to be_empty
      expect(took).to be_between(0.05, 10)
      expect(patient).to have_attributes(dead?: true, last_msg_id_sent: 5)
    end

    it "writes nothing after half a frame" do
      impatient = connection_on(near, write_deadline_ms: 50)
      impatient.write_comment("x" * 5_000_000)
      impatient.write_comment("after it")
      impatient.close

      expect(far.read).to match(/\A: x+\z/)
    end

    it "is dead when its thread is killed within a frame" do
      thread = Thread.new { connection.write_comment("x" * 5_000_000) }
      wait_until("it is writing") { connection.mutex.locked? && thread.status == "sleep" }
      thread.kill.join

      expect(connection).to be_dead
      expect(connection.write_comment("a")).to eq(:closed)
    end

    it "never mixes frames of several threads" do
      reader = Thread.new { far.read }
      Array.new(8) do |number|
        Thread.new { 50.times { |n| connection.write_comment("#{number}:#{n}:#{number.to_s * 20_000}") } }
      end.each(&:join)
      connection.close
      comments = EventStream.new(reader.value).comments.map { |comment| comment.strip.split(":") }

      expect(comments.map { |number, n, _| [number.to_i, n.to_i] }).to match_array([*0..7].product([*0..49]))
      expect(comments).to all(satisfy { |number, _, text| text == number * 20_000 })
    end

    it "closes the socket once, after the frame that is being written" do
      writing = Thread.new { connection.write_comment("x" * 1_000_000) }
      wait_until("it is writing") { connection.mutex.locked? }
      closing = Thread.new { connection.close }
      read = far.read
      closing.join

      expect(writing.value).to eq(:ok)
      expect(read).to eq(": #{"x" * 1_000_000}\n\n")
      expect(near).to be_closed
    end

    it "does not close a socket that somebody has closed" do
      near.close

      expect(connection.write_comment("a")).to eq(:closed)
      expect(connection.close).to be_nil
    end

    it "runs beside other fibers under a scheduler" do
      require "async"
      order = []
      Sync do |task|
        writing = task.async do
          connection.write_comment("x" * 2_000_000)
          order << :written
        end
        task.async do
          order << :meanwhile
          loop { far.readpartial(65_536) }
        rescue EOFError
          nil
        end
        writing.wait
        connection.close
      end

      expect(order).to eq(%i[meanwhile written])
    end
  end

  describe "on a socket whose TLS is Puma's" do
    # The server's end of a TLS connection, and the client.
    def tls_connection(**)
      Dir.mktmpdir do |folder|
        certificate = CertificateAuthority.new("app").self_signed
        paths = [certificate.pem, certificate.key].each_with_index.map do |pem, number|
          "#{folder}/#{number}".tap { |path| File.write(path, pem) }
        end
        sockets = Thread::Queue.new
        server = PumaServer.new(->(env) { [-1, {}, []].tap { sockets << env["rack.hijack"].call } }, tls: paths)
        client = RawClient.new(server.address, tls: true).request("/")
        yield connection_on(sockets.pop(timeout: 10), **), client
      ensure
        client&.close
        server&.stop
      end
    end

    it "writes frames" do
      tls_connection do |connection, client|
        connection.write_sentinel(Pgbus::Streams::Envelope.http_response_headers)

        expect(connection.write_comment("x" * 100_000)).to eq(:ok)
        expect(client.body_until("\n\n")).to eq(": #{"x" * 100_000}\n\n")
        connection.close
      end
    end

    it "waits no longer than its deadline for a client that does not read" do
      tls_connection(write_deadline_ms: 100) do |connection, _client|
        result, took = timed { connection.write_comment("x" * 20_000_000) }

        expect([result, connection.dead?]).to eq([:blocked, true])
        expect(took).to be_between(0.1, 10)
        connection.close
      end
    end

    it "says closed when the client has gone" do
      tls_connection do |connection, client|
        client.close
        wait_until("it is noticed") { connection.write_comment("a") == :closed }

        expect(connection).to be_dead
        expect(connection.close).to be_nil
      end
    end
  end

  describe "on a streaming body", :streaming_body do
    it "writes frames, and ends the body after what is in it when it is closed" do
      connection = connection_on_body
      connection.write_comment("a")
      connection.enqueue(messages(6))
      connection.close
      stream = EventStream.new(connection.io.join)

      expect(stream).to have_attributes(comments: [" a"], unknown: [])
      expect(stream.events.map(&:id)).to eq(["6"])
    end

    it "is dead when the server has closed the body" do
      connection = connection_on_body
      connection.io.close

      expect(connection).to be_dead
      expect(connection.write_comment("a")).to eq(:closed)
    end

    it "is dead with the server's error, too, whenever that comes" do
      connection = connection_on_body
      allow(connection.io).to receive(:write).and_wrap_original do |original, frame|
        connection.io.close(Class.new(StandardError).new("reset")) # after it was looked at, before it is written to
        original.call(frame)
      end

      expect(connection.write_comment("a")).to eq(:closed)
      expect(connection).to be_dead
    end

    it "passes on an error that is the caller's" do
      connection = connection_on_body
      allow(connection.io).to receive(:write).and_raise(TypeError)

      expect { connection.write_comment("a") }.to raise_error(TypeError)
      expect(connection).to be_dead
    end

    it "keeps a bounded number of frames for a client that does not read, and waits no longer than its deadline" do
      connection = connection_on_body(write_deadline_ms: 100)
      length = queue_class::LENGTH
      results = Array.new(length) { connection.write_comment("a") }
      result, took = timed { connection.write_comment("one too many") }

      expect([results.tally, result]).to eq([{ ok: length }, :blocked])
      expect(took).to be_between(0.1, 10)
      expect(connection).to be_dead
    end

    it "goes on when the client reads in time" do
      connection = connection_on_body
      reader = Thread.new { connection.io.join }
      count = queue_class::LENGTH * 10
      results = Array.new(count) { connection.write_comment("a") }
      connection.close

      expect(results.uniq).to eq([:ok])
      expect(EventStream.new(reader.value).comments.size).to eq(count)
    end

    it "stops waiting when the server closes the body" do
      connection = connection_on_body(write_deadline_ms: 60_000)
      queue_class::LENGTH.times { connection.write_comment("a") }
      waiting = Thread.new { connection.write_comment("one too many") }
      wait_until("it waits") { waiting.status == "sleep" }
      connection.io.close

      expect(waiting.join(10)&.value).to eq(:closed)
    end

    it "means a closed body to pgbus's own connection when it is full" do
      body = bounded_body(10)
      queue_class::LENGTH.times { body.write("a") }

      expect { body.write("a") }.to raise_error(Protocol::HTTP::Body::Writable::Closed)
    end
  end
end
