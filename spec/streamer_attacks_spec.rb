# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/streamer_helpers"

# What was found by somebody who looked for it.
RSpec.describe "Attacks on Pgbus::Native::Streamer", implementation: Implementation::AUTO do
  include StreamerHelpers

  # What a web server has that does TLS itself, as far as the streamer knows it.
  let(:wrapped_class) do
    Class.new do
      def initialize(socket) = @socket = socket
      def to_io = @socket
      def write(bytes) = @socket.write(bytes)
      def close = @socket.close
    end
  end

  # Has the streamer take a connection on one end of a pair; the client at the other one.
  def take(**options)
    near, far = UNIXSocket.pair
    register(block_given? ? yield(near) : near, **options)
    clients.add(far)
  end

  def connections
    streamer.registry.connections_for("room:1")
  end

  # As in transactional tests, or where the native client cannot serve the database.
  def leave_seats_to_ruby
    allow(Pgbus::Native::Route).to receive(:background_database)
  end

  describe "by the application's code" do
    it "that raises no StandardError but something else: the next callback is called" do
      settings.on_change = ->(*) { raise NotImplementedError, "to be done" }
      2.times { connect }
      wait_until("both are reported") { reported.size == 2 }
      wait_until("both are logged") { log.string.scan("NotImplementedError: to be done").size == 2 }

      expect { streamer.shutdown! }.not_to raise_error
    end

    it "that raises such things in a filter: nobody sees that broadcast, and the stream goes on" do
      Pgbus::Streams.filters.register(:unfinished) { |_context| raise NotImplementedError, "to be done" }
      client = connect("plain:1")
      2.times { streamer.broadcast("plain:1", "secret", visible_to: :unfinished) }
      streamer.broadcast("plain:1", "public")
      wait_for_data(client, "public")

      expect(client.data).to eq(["public"])
    end

    it "that shuts the streamer down while others do: none of them waits for the other" do
      callers = Thread::Queue.new
      settings.on_change = lambda do |*|
        callers << true
        wait_until("another one is at it") { streamer.registry.size.zero? }
        streamer.shutdown!
      end
      connect
      callers.pop

      expect(seconds { in_threads(2) { streamer.shutdown! } }).to be < 2
    end

    it "that closes a connection which is written from Ruby: it is gone at the next heartbeat" do
      settings.streams_heartbeat_interval = 0.3
      client = take { |socket| wrapped_class.new(socket) }
      wait_for(client)
      connections.first.close
      wait_until("the client is told") { client.ended? }
      wait_until("its seat has left") { seats.empty? }

      expect(streamer.registry.size).to eq(0)
    end

    it "that interrupts a thread which has just given a connection to the hub: nothing is left of it" do
      allow(Pgbus::Native::Streamer::TakenSocket).to receive(:replace).and_raise(Timeout::Error)
      near, far = UNIXSocket.pair
      client = clients.add(far)
      expect { register(near, stream_name: "plain:1") }.to raise_error(Timeout::Error)
      near.close
      wait_until("the client is told") { client.ended? }

      expect(streamer.registry.size).to eq(0)
    end

    it "whose configuration says for ever" do
      settings.streams_idle_timeout = Float::INFINITY
      settings.streams_write_deadline_ms = 1e22
      settings.streams_heartbeat_interval = 1.7e19
      client = connect_narrow("plain:1")
      client.stop_reading
      streamer.broadcast("plain:1", "x" * 1_000_000)
      client.read_again
      wait_until("it has come") { client.got?("x\n\n") }

      expect(connect("plain:1")).to be_connected
    end
  end

  describe "by a database whose seats are kept from Ruby" do
    before { leave_seats_to_ruby }

    it "and whose client speaks of its absence in another encoding than UTF-8" do
      text = "Server nicht verfügbar".encode("ISO-8859-1").b
      allow(Pgbus::Native::Route).to receive(:run).and_raise(ActiveRecord::ConnectionNotEstablished, text)

      expect(connect("room:1")).to be_connected
      expect(log.string).to include("seats cannot be kept")
    end

    it "and which cannot take one of them: the others have theirs" do
      settings.member = ->(context) { { id: context, metadata: {} } }
      allow(Pgbus::Native::Route).to receive(:run).and_wrap_original do |run, statement, params|
        raise PG::ProgramLimitExceeded, "too big" if params.flatten.include?("huge")

        run.call(statement, params)
      end
      all = request_many(5) { |number| request("room:1", user: number.zero? ? "huge" : number.to_s) }
      wait_for(*all)

      expect(seats).to match_array(all.drop(1).map(&:id))
    end
  end

  describe "by a database that hangs" do
    it "while the application turns to another one: clients of both are connected" do
      address
      while_locked do
        first = request
        wait_until("its join waits") { blocked_sessions == 1 }
        SpecDatabase.establish(application_name: "another", variables: { lock_timeout: "100ms" })
        second = connect
        wait_for(first, second, within: 10)
      end
      expect(seconds { streamer.shutdown! }).to be < 2
    ensure
      SpecDatabase.establish
    end
  end

  describe "by processes" do
    it "that are forked from one: each hears the others" do
      settings = { heartbeat: 5.0, write_deadline: 5.0, idle_timeout: 5.0, heartbeat_frame: "", shutdown_frame: "" }
      broadcast = Pgbus::Native::Broadcast.new("room", "x", [], nil)
      name = -> { Pgbus::Native::Hub.new(settings).message(broadcast).first.split.first }
      names = [name.call, *Array.new(2) { fork_child { name.call } }.map(&:value), name.call]

      expect(names.uniq).to eq(names)
    end

    it "that are stopped for a while: their clients get no heap of heartbeats" do
      settings.streams_heartbeat_interval = 0.1
      near, far = UNIXSocket.pair
      near.write(Pgbus::Streams::Envelope.http_response_headers)
      child = fork do
        SpecDatabase.forget
        register(near, streamer: start_streamer, stream_name: "plain:1")
        sleep
      end
      near.close
      client = clients.add(far)
      wait_until("it has heartbeats") { client.heartbeats.size > 3 }
      Process.kill(:STOP, child)
      stopped_at = now
      wait_until("it would have had 20") { now - stopped_at > 2 }
      before = client.body.scan("heartbeat").size
      Process.kill(:CONT, child)
      wait_until("it has heartbeats again") { client.body.scan("heartbeat").size > before }

      expect(client.body.scan("heartbeat").size - before).to be < 10
    ensure
      Process.kill(:KILL, child)
      Process.wait(child)
    end
  end

  describe "by clients" do
    it "that vanish without a word, on sockets whose TLS the web server does" do
      settings.streams_heartbeat_interval = 0.5
      settings.streams_write_deadline_ms = 1000
      vanished = Array.new(3) { connect(transport: :tls) }
      vanished.each(&:vanish)

      wait_until("they have left", within: 15) { streamer.registry.size.zero? && seats.empty? }
      expect(vanished.map(&:ended?)).to all(be(false))
    end

    it "of whom many do not read at the end, on sockets that are written from Ruby", :slow do
      settings.streams_write_deadline_ms = 60_000
      stuck = Class.new(wrapped_class) { def write(_bytes) = sleep }
      100.times { |number| take(stream_name: "plain:#{number}") { |socket| stuck.new(socket) } }

      expect(seconds { streamer.shutdown! }).to be < 6
    end
  end
end
