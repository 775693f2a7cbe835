# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/scripts"
require_relative "support/streamer_helpers"
require_relative "support/subprocess"

RSpec.describe "Pgbus::Native::Streamer", implementation: Implementation::AUTO do
  include StreamerHelpers

  # What a client has after the frame that says that it is connected.
  def events(client)
    client.stream.events.drop_while { |event| event.type != "pgbus:connected" }.drop(1)
  end

  # Rows that look as `age(1000)` has made them.
  def untouched
    sql("SELECT 1 FROM pgbus_presence_members WHERE last_seen_at < now() - interval '900 s'")
  end

  # Files that have the numbers of those descriptors are still the same after the block.
  def expect_to_keep_places_of(numbers)
    files = Array.new(descriptors.size + 50) { File.open(__FILE__) }
    expect(files.map(&:fileno) & numbers).to match_array(numbers)
    yield
    expect(files.map { |file| file.read(10) }.uniq).to eq(["# frozen_s"])
  ensure
    files&.each(&:close)
  end

  StreamerHelpers::TRANSPORTS.each do |transport, needs|
    describe "to a client on #{transport}", needs do
      it "joins its seat, has it in the registry, and says so with its id" do
        client = connect("room:1", user: "7", seat: "tab-1", since: 5, transport:)

        expect(client.status).to eq(200)
        expect(presence_of("room:1").members).to match([a_hash_including(
          "id" => "7", "connection_id" => client.id, "seat" => "tab-1", "metadata" => { "name" => "user 7" }
        )])
        expect(streamer.registry.lookup(client.id)).to have_attributes(
          id: client.id, stream_name: "room:1", seat: "tab-1", context: "7", last_msg_id_sent: 5
        )
      end

      it "says so in a frame without an id" do
        client = connect(transport:)

        expect(client.body).to end_with("\n\nevent: pgbus:connected\ndata: {\"connectionId\":\"#{client.id}\"}\n\n")
        expect(client.stream).to have_attributes(last_event_id: "", unknown: [], retry: 2000)
        expect(client.id).to match(/\A[0-9a-f]{16}\z/)
      end

      it "broadcasts" do
        client = connect(transport:)
        streamer.broadcast("room:1", "<p>\n1</p>")
        streamer.broadcast("room:1", "x" * 300_000)
        wait_for_data(client, "<p>\n1</p>", "x" * 300_000)

        expect(events(client).map(&:type)).to eq(%w[turbo-stream turbo-stream])
        expect(client.stream).to have_attributes(last_event_id: "", unknown: [])
      end

      it "sends heartbeats" do
        settings.streams_heartbeat_interval = 0.3
        client = connect(transport:)

        wait_until("three heartbeats have come") { client.heartbeats.size >= 3 }
        expect(client.stream).to have_attributes(events: have_attributes(size: 1), unknown: [])
      end

      it "has the seat leave when the client closes" do
        # What a web server writes on, it finds closed when it writes.
        settings.streams_heartbeat_interval = 0.5 if transport == :body
        clients = Array.new(2) { connect(transport:) }
        clients.first.close

        wait_until("the seat has left", within: 5) { seats == [clients.last.id] }
        wait_until("the connection has left", within: 5) { streamer.registry.size == 1 }
        wait_until("it is reported") { reported.include?([:leave, clients.first.id]) }
        expect(streamer.registry.lookup(clients.first.id)).to be_nil
      end

      it "cuts a client off that stops reading, and delays no other one" do
        settings.streams_write_deadline_ms = 2000
        other, slow = Array.new(2) { connect(transport:) }
        slow.stop_reading
        longest = 0
        wait_until("the client is cut off", within: 30) do
          html = "#{rand} #{"x" * 250_000}"
          longest = [longest, seconds do
            streamer.broadcast("room:1", html)
            wait_until("the other one has it") { other.got?(html) }
          end].max
          streamer.registry.lookup(slow.id).nil?
        end

        expect(longest).to be < 1
        wait_until("its seat has left") { seats == [other.id] }
        slow.read_again
        wait_until("it is closed") { slow.ended? }
      end

      it "says farewell at the shutdown, and closes" do
        clients = Array.new(2) { connect(transport:) }
        took = seconds { streamer.shutdown! }

        wait_until("all are closed") { clients.all?(&:ended?) }
        expect(clients.map { |client| events(client).map { |event| [event.type, JSON.parse(event.data), event.id] } })
          .to eq([[["pgbus:shutdown", { "reason" => "worker_restart" }, ""]]] * 2)
        expect([rows, streamer.registry.size]).to eq([[], 0])
        expect(took).to be < 5
      end
    end
  end

  describe "the descriptor" do
    %i[tcp unix].each do |transport|
      it "of a client on #{transport} is taken over: there is one, and none when the client has gone" do
        address(transport)
        clients = Array.new(10) { connect(transport:) }

        expect(accepted_descriptors(address(transport)).values.uniq.size).to eq(10)
        expect(accepted_descriptors(address(transport)).size).to eq(10)
        clients.each(&:close)
        wait_until("no descriptor is left") { accepted_descriptors(address(transport)).empty? }
      end

      it "of a client on #{transport} is closed once: who gets its number keeps it" do
        clients = Array.new(10) { connect(transport:) }
        connections = registered
        numbers = accepted_descriptors(address(transport)).keys
        clients.each(&:close)
        wait_until("no descriptor is left") { streamer.registry.size.zero? && (descriptors.keys & numbers).empty? }

        expect_to_keep_places_of(numbers) do
          connections.each(&:close)
          connections.clear
          3.times { GC.start }
          streamer.shutdown!
        end
      end
    end

    it "is no longer that of Ruby's IO, which is closed" do
      near, far = UNIXSocket.pair
      register(near)

      expect(near).to be_closed
      expect(far.wait_readable(10) && far.readpartial(100)).to start_with("event: pgbus:connected\n")
    ensure
      far.close
    end

    it "of a client on TLS is let go, too" do
      clients = Array.new(5) { connect(transport: :tls) }
      expect(accepted_descriptors(address(:tls)).values.uniq.size).to eq(5)
      clients.each(&:close)

      wait_until("no descriptor is left") { accepted_descriptors(address(:tls)).empty? }
    end

    it "is not handed to a program that is started" do
      connect
      inodes = accepted_descriptors(address).values
      pid = spawn("sleep", "60")
      wait_until("it runs") { File.readlink("/proc/#{pid}/exe").end_with?("sleep", "coreutils") }

      expect(descriptors(pid).values & inodes).to be_empty
    ensure
      Process.kill(:KILL, pid)
      Process.wait(pid)
    end

    it "is not kept by a forked child, so that the client of a parent that is killed learns it" do
      server = TCPServer.new("127.0.0.1", 0)
      told, tell = IO.pipe
      parent = fork do
        register(server.accept, streamer: start_streamer, stream_name: "news")
        tell.puts(fork { sleep })
        sleep
      end
      client = TCPSocket.new("127.0.0.1", server.addr[1])
      expect(client.readline("\n\n")).to include("pgbus:connected")
      child = told.gets.to_i
      Process.kill(:KILL, parent)
      expect(client.wait_readable(10)).to be(client)
      expect(client.read).to eq("")
    ensure
      [parent, child].compact.each { |pid| Process.kill(:KILL, pid) }
      Process.wait(parent)
      [server, client, told, tell].compact.each(&:close)
    end

    it "that a forked child has inherited keeps no client waiting for the end" do
      settings.streams_write_deadline_ms = 300
      slow, reading = Array.new(2) { connect }
      pid = fork { sleep }
      slow.stop_reading
      wait_until("the client is cut off") do
        streamer.broadcast("room:1", "x" * 1_000_000)
        streamer.registry.lookup(slow.id).nil?
      end
      slow.read_again
      wait_until("who was cut off learns it") { slow.ended? }
      streamer.shutdown!
      wait_until("who was sent away learns it") { reading.ended? }
      expect(reading.data("pgbus:shutdown").size).to eq(1)
    ensure
      Process.kill(:KILL, pid)
      Process.wait(pid)
    end
  end

  describe "connecting" do
    # Opens a stream and waits for its frame on this thread, so that what follows comes right after it.
    def connect_here(stream)
      token = Pgbus::Streams::SignedName.sign(stream)
      client = RawClient.new(address).request("/#{token}", headers: { "X-User" => "7" })
      id = client.body_until("event: pgbus:connected\n") && client.body_until("\n\n")[/:"(.*)"/, 1]
      yield id
    ensure
      client&.close
    end

    it "is in this order: the seat, the registry, the frame" do
      address
      found = in_threads(10) do |thread|
        Array.new(10) do |round|
          connect_here("room:#{thread % 3}") do |id|
            there = streamer.registry.lookup(id)
            listed = streamer.registry.connections_for("room:#{thread % 3}").any? { |connection| connection.id == id }
            sitting = presence_of("room:#{thread % 3}").members.any? { |record| record["connection_id"] == id }
            [round, there&.id == id, listed, sitting]
          end
        end
      end.flatten(1)

      expect(found.map { |_round, *all| all }).to eq([[true, true, true]] * 100)
    end

    it "waits for the seat: while the join is held up there is no frame, nor anything in the registry" do
      connect("plain")
      client = nil
      while_locked do
        client = request
        wait_until("the join waits for the lock") { blocked_sessions == 1 }
        wait_until("the opening has come") { client.stream.comments.any? }
        # Somebody else connects, and is not held up.
        connect("plain")

        expect(client).not_to be_connected
        expect(streamer.registry.connections_for("room:1")).to be_empty
        expect(registered.map(&:stream_name)).to eq(%w[plain plain])
        expect(streamer.registry.size).to eq(3)
      end
      wait_for(client)

      expect(streamer.registry.connections_for("room:1").map(&:id)).to eq([client.id])
      expect(seats).to eq([client.id])
    end

    it "joins a thousand clients that come at once in a few statements" do
      clients = nil
      counting("INSERT") do |count|
        while_locked do
          clients = request_many(1000) { |number| request("room:#{number % 10}", user: number.to_s) }
          wait_until("all are accepted", within: 20) { streamer.registry.size == 1000 }
          expect(registered).to be_empty
        end
        wait_for(*clients)

        expect(count.call).to be_between(1, 10)
      end
      expect(seats).to match_array(clients.map(&:id))
      wait_until("all are reported") { reported.size == 1000 }
      expect(reported).to match_array(clients.map { |client| [:join, client.id] })
    end

    it "joins a stream's seats and reports them" do
      client = connect("room:9", user: "8", seat: "tab")

      expect(row).to include("stream_name" => "room:9", "member_id" => "8", "connection_id" => client.id,
                             "seat" => "tab", "metadata" => '{"name": "user 8"}')
      wait_until("it is reported") { settings.changes.any? }
      expect(settings.changes.map { |change| change.first(2) })
        .to eq([["room:9", { type: :join, connection_id: client.id, seat: "tab", member_id: "8" }]])
    end

    it "asks for no member where the stream has no presence, and joins none" do
      settings.member = ->(_context) { raise "asked" }
      client = connect("chat:1")

      expect(rows).to be_empty
      expect(log.string).to be_empty
      expect(streamer.registry.connections_for("chat:1").map(&:id)).to eq([client.id])
    end

    it "asks with the context of the connection" do
      asked = Thread::Queue.new
      settings.member = ->(context) { (asked << context) && nil }
      connect(user: "7")
      connect(user: nil)

      expect(Array.new(asked.size) { asked.pop }).to eq(["7", nil])
    end

    it "joins no seat for a context that is no member's" do
      connect(user: nil)

      expect([rows, log.string]).to eq([[], ""])
    end

    it "takes a member without metadata, and ids that are no Strings" do
      settings.member = ->(_context) { { id: 7 } }
      client = connect

      expect(presence_of("room:1").members)
        .to match([a_hash_including("id" => "7", "connection_id" => client.id, "metadata" => {})])
    end

    it "leaves no seat for a client that has gone before its join was done" do
      address
      while_locked do
        client = request
        wait_until("the join waits for the lock") { blocked_sessions == 1 }
        client.close
        wait_until("the connection has left") { streamer.registry.size.zero? }
      end
      wait_until("nothing is under way") { busy_sessions.zero? }

      wait_until("there is no seat") { rows.empty? }
      expect(registered).to be_empty
    end

    def busy_sessions
      sql("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
           AND pid <> pg_backend_pid()").size
    end

    describe "where the join fails" do
      # The client is there all the same, and gets what is broadcast.
      def expect_life_without_a_seat(client)
        streamer.broadcast("room:1", "to all")
        wait_for_data(client, "to all")
        expect(streamer.registry.lookup(client.id)).not_to be_nil
      end

      it "is logged and lives on without a seat, where the table is gone; the seat comes with the table" do
        settings.streams_heartbeat_interval = 0.5
        SpecDatabase.table_changed
        sql("DROP TABLE pgbus_presence_members")
        client = connect

        expect(log.string).to include("pgbus_presence_members")
        expect_life_without_a_seat(client)
        SpecDatabase.table
        presence_class.reset_schema_cache!
        wait_until("the seat is joined") { seats == [client.id] }
      end

      it "is logged and lives on without a seat, where the table has no seats", table: { seats: false } do
        client = connect

        wait_until("it is logged") { log.string.include?("seat") }
        expect_life_without_a_seat(client)
        expect(rows).to be_empty
      end

      it "is logged and lives on without a seat, where the member cannot be had" do
        settings.member = ->(_context) { raise "no such user" }
        client = connect

        wait_until("it is logged") { log.string.include?("no such user") }
        expect_life_without_a_seat(client)
      end

      {
        "an id with NUL" => { id: "a\0b" }, "an id that is no UTF-8" => { id: "\xFF" },
        "metadata that is no JSON" => { id: "8", metadata: { number: Float::NAN } },
        "metadata that PostgreSQL does not take" => { id: "8", metadata: { "text" => "\0" } },
        "something else than a member" => 8
      }.each do |kind, wrong|
        it "concerns nobody else, for #{kind}" do
          settings.member = ->(context) { context == "wrong" ? wrong : { id: context } }
          right = wrong_one = nil
          while_locked do
            right = Array.new(2) { request(user: "7") }
            wrong_one = request(user: "wrong")
            right += Array.new(2) { request(user: "7") }
            wait_until("all are accepted") { streamer.registry.size == 5 }
          end
          wait_for(wrong_one, *right)

          expect(seats).to match_array(right.map(&:id))
          wait_until("it is logged") { log.string.lines.any? }
          expect_life_without_a_seat(wrong_one)
        end
      end
    end
  end

  describe "the registry" do
    it "finds connections by their id and by their stream, as long as they are there" do
      first, second, third = %w[room:1 room:1 room:2].map { |stream| connect(stream) }
      registry = streamer.registry

      expect(registry.size).to eq(3)
      expect(registered.map(&:id)).to contain_exactly(first.id, second.id, third.id)
      expect(registry.connections_for("room:1").map(&:id)).to contain_exactly(first.id, second.id)
      expect(registry.connections_for("room:3")).to eq([])
      expect(registry.lookup("0000000000000000")).to be_nil
      first.close
      wait_until("it has left") { registry.size == 2 }
      expect(registry.connections_for("room:1").map(&:id)).to eq([second.id])
      second.close
      wait_until("it has left") { registry.size == 1 }
      expect(registry.connections_for("room:1")).to eq([])
      expect(registered.map(&:id)).to eq([third.id])
    end

    it "has an id once" do
      client = connect
      near, far = UNIXSocket.pair

      expect { register(near, id: client.id) }.to raise_error(IOError)
      expect(near).not_to be_closed
      # Others come and go meanwhile; this file has no second descriptor.
      wait_until("its copy is closed") { descriptors.values.count(descriptors[near.fileno]) == 1 }
      streamer.broadcast("room:1", "to the first")
      wait_for_data(client, "to the first")
      expect([streamer.registry.size, seats]).to eq([1, [client.id]])
    ensure
      [near, far].each(&:close)
    end

    %i[tcp tls].each do |transport|
      it "lets a connection on #{transport} be written to by whoever finds it there, as long as it is there" do
        message = Struct.new(:msg_id, :payload)
        client = connect(since: 5, transport:)
        connection = streamer.registry.lookup(client.id)
        written = connection.enqueue([message.new(5, "old"), message.new(6, "new")])
        commented = connection.write_comment("hello")
        wait_until("both have come") { client.stream.comments.include?(" hello") }
        client.close
        wait_until("it is dead") { connection.dead? }

        expect([written.map(&:msg_id), commented, connection.last_msg_id_sent]).to eq([[6], :ok, 6])
        expect(events(client).map { |event| [event.type, event.data, event.id] }).to eq([%w[turbo-stream new 6]])
        expect(connection.write_comment("too late")).to eq(:closed)
      end
    end

    it "lets a connection be closed by whoever finds it there" do
      client = connect
      streamer.registry.lookup(client.id).close
      wait_until("it is closed") { client.ended? }
      wait_until("the seat has left") { rows.empty? }

      expect(streamer.registry.size).to eq(0)
    end
  end

  describe "heartbeats" do
    it "come once per interval, spread over it instead of in one burst" do
      settings.streams_heartbeat_interval = 2
      clients = request_many(50) { |number| request("room:#{number}") }
      wait_for(*clients)
      wait_until("each has three", within: 10) { clients.all? { |client| client.heartbeats.size >= 3 } }
      gaps = clients.flat_map { |client| client.heartbeats.each_cons(2).map { |one, other| other - one } }
      tenths = clients.map { |client| (client.heartbeats[1] % 2 * 5).floor }

      expect(gaps).to all(be_between(1.4, 3))
      expect(clients.map { |client| client.heartbeats.first - client.arrivals.first.first }).to all(be < 3)
      expect(tenths.uniq.size).to be >= 7
    end

    it "touch all seats in a statement for a thousand or so, however many streams there are" do
      settings.streams_heartbeat_interval = 2
      counting("UPDATE") do |count|
        wait_for(*request_many(1500) { |number| request("room:#{number % 500}") })
        age(1000)
        before = count.call
        wait_until("all seats have been touched") { untouched.empty? }

        expect(count.call - before).to be_between(2, 4)
      end
    end

    it "bring the seat of a live connection back, and only those" do
      settings.streams_heartbeat_interval = 0.5
      first, second, gone = Array.new(3) { |number| connect(user: number.to_s, seat: "tab-#{number}") }
      gone.close
      wait_until("it has left") { seats.size == 2 }
      before = rows
      sql("DELETE FROM pgbus_presence_members WHERE connection_id = $1", first.id)

      wait_until("the seat is back") { seats.size == 2 }
      changing = %w[joined_at last_seen_at]
      expect(rows.map { |row| row.except(*changing) }).to match_array(before.map { |row| row.except(*changing) })
      expect(second).to be_connected
    end

    it "expire the seats of others past their stream's ttl, and report each once" do
      settings.streams_heartbeat_interval = 0.3
      settings.ttl = ->(stream) { stream == "room:slow" ? 3600 : 2 }
      # Two of them look for what is past its ttl.
      others = start_streamer
      client = connect
      insert_row(stream_name: "room:ghost", connection_id: "ghost")
      insert_row(stream_name: "room:slow", connection_id: "slow")
      insert_row(stream_name: "room:ghost", member_id: "no seat")
      age(3, stream_name: "room:ghost")
      age(1000, stream_name: "room:slow")
      wait_until("the seat has expired") { seats("room:ghost").empty? }
      beats = client.heartbeats.size
      wait_until("there were more heartbeats") { client.heartbeats.size >= beats + 5 }

      expect(seats).to contain_exactly(client.id, "slow")
      expect(rows("room:ghost").pluck("member_id")).to eq(["no seat"])
      expect(reported("room:ghost")).to eq([[:leave, "ghost"]])
      expect(others.registry.size).to eq(0)
    end

    it "go on while Ruby computes" do
      settings.streams_heartbeat_interval = 0.2
      script = <<~'RUBY'
        require "socket"
        socket = TCPSocket.new("127.0.0.1", ENV.fetch("PORT"))
        socket.write("GET /#{ENV.fetch("TOKEN")} HTTP/1.1\r\nHost: app\r\n\r\n")
        while (line = socket.gets)
          puts Process.clock_gettime(Process::CLOCK_MONOTONIC) if line.match?(/heartbeat/)
        end
      RUBY
      environment = { "PORT" => address.to_s, "TOKEN" => Pgbus::Streams::SignedName.sign("plain") }
      Subprocess.run(script, environment:) do |process|
        process.line
        numbers = Array.new(3_000_000) { rand }
        began = now
        took = seconds { numbers.sort! } # in which no other thread of Ruby gets a turn
        times = []
        times << process.line.to_f until times.any? { |time| time > began + took }

        expect(took).to be > 0.4
        expect(times.count { |time| time.between?(began, began + took) }).to be >= (took / 0.2 / 2).floor
      end
    end
  end

  describe "leaving" do
    it "is noticed when a client is reset" do
      client = connect
      client.close(reset: true)
      wait_until("the seat has left", within: 5) { rows.empty? }

      expect(streamer.registry.size).to eq(0)
    end

    it "of many at once takes a few statements" do
      clients = request_many(500) { |number| request("room:#{number % 50}") }
      wait_for(*clients)
      counting("DELETE") do |count|
        clients.each(&:close)
        wait_until("all have left") { rows.empty? && streamer.registry.size.zero? }

        expect(count.call).to be < 250
      end
      wait_until("all are reported") { reported.size == 1000 }
    end

    it "comes to who is idle: nothing was written for so long, not even a heartbeat" do
      settings.streams_idle_timeout = 1
      settings.streams_heartbeat_interval = 2
      busy = connect("plain:busy")
      idle = connect("plain:idle")
      wait_until("the idle one is closed", within: 6) do
        streamer.broadcast("plain:busy", "x")
        idle.ended?
      end
      stayed = !busy.ended?

      expect(idle.ended_at - idle.arrivals.last.first).to be_between(0.9, 3.5)
      expect(stayed).to be(true)
      wait_until("the other one is closed, too", within: 6) { busy.ended? }
      expect(busy.ended_at - busy.arrivals.last.first).to be_between(0.9, 3.5)
    end

    it "does not come to who gets heartbeats" do
      settings.streams_idle_timeout = 1
      settings.streams_heartbeat_interval = 0.3
      client = connect
      wait_until("there were heartbeats for longer") { client.heartbeats.size >= 7 }

      expect(client).not_to be_ended
    end

    it "bounds what is kept for clients that do not read" do
      settings.streams_write_deadline_ms = 60_000
      slow = Array.new(10) { |number| connect("plain:#{number}").tap { |client| client.stop_reading(buffer: 4096) } }
      html = "x" * 1_000_000
      streamer.broadcast("nobody", html) # what it takes to broadcast at all is taken before
      GC.start
      before = memory
      20.times { slow.size.times { |number| streamer.broadcast("plain:#{number}", html) } }
      GC.start

      # Of the 200 MB each client may keep the frame that is being written, 1 MB behind it and one more frame.
      expect(memory - before).to be < 80_000_000
    end

    it "does not come to who reads a large frame while others follow it" do
      client = connect
      data = ["x" * 20_000_000] + Array.new(50) { |number| "#{number} #{"y" * 1000}" }
      data.each { |html| streamer.broadcast("room:1", html) }
      wait_until("all of it has come", within: 20) { client.ended? || client.data.size == 51 }

      expect(client.data == data).to be(true)
      expect(client).not_to be_ended
    end
  end

  { "this process" => -> { address }, "another process" => -> { other.socket } }.each do |where, place|
    describe "broadcast to clients of #{where}", :other_process do
      let(:at) { instance_exec(&place) }

      it "reaches the clients of its stream, once, in order, and no others" do
        clients = Array.new(3) { connect("room:1", at:) }
        elsewhere = connect("room:2", at:)
        data = Array.new(100) { |number| "<p>#{number}</p>" }
        data.each { |html| streamer.broadcast("room:1", html) }
        streamer.broadcast("room:2", "the end")
        wait_for_data(elsewhere, "the end")
        wait_for_data(clients, data.last)

        expect(clients.map(&:data)).to eq([data] * 3)
        expect(elsewhere.data).to eq(["the end"])
        expect(events(clients.first).map { |event| [event.type, event.id] }.uniq).to eq([["turbo-stream", ""]])
      end

      it "has the name of its event" do
        client = connect(at:)
        streamer.broadcast("room:1", "a", event: "chat")
        streamer.broadcast("room:1", "b", event: :cursor)
        streamer.broadcast("room:1", "c")
        wait_for_data(client, "c")

        expect(events(client).map { |event| [event.type, event.data] })
          .to eq([%w[chat a], %w[cursor b], %w[turbo-stream c]])
      end

      it "may be larger than NOTIFY allows, and stays in its place" do
        client = connect(at:)
        data = [7_000, 7_990, 8_000, 8_001, 20_000, 3, 5_000_000, 1].map { |size| "é#{"x" * size}" }
        data.each { |html| streamer.broadcast("room:1", html) }
        wait_until("all of it has come", within: 20) { client.data.size == data.size }

        expect(client.data == data).to be(true)
      end

      it "may have any characters" do
        client = connect(at:)
        text = [*0..0x2FFF, 0xFFFD, 0xFFFF, 0x1F600].map { |code| [code].pack("U") }.join.delete("\r\n")
        data = [text, "'\"\\\\x00\\u0000 \u0000 $1 {\"a\":1}", "", " leading", "data: x"]
        data.each { |html| streamer.broadcast("room:1", html) }
        wait_until("all of it has come") { client.data.size == data.size }

        expect(client.data).to eq(data)
        expect(client.stream.unknown).to be_empty
      end

      it "is text: bytes that are none become U+FFFD" do
        client = connect(at:)
        streamer.broadcast("room:1", "a\xFFb".b, event: "c\xFFd".b)
        wait_until("it has come") { events(client).any? }

        expect(events(client).map { |event| [event.type, event.data] }).to eq([%W[c\uFFFDd a\uFFFDb]])
      end

      it "may be for a stream of any name" do
        name = "room:é \"'\\ 日本 \u{1F600}\n"
        client = connect(name, at:)
        streamer.broadcast(name, "to it")
        wait_for_data(client, "to it")

        expect(client.data).to eq(["to it"])
        expect(seats(name)).to eq([client.id])
      end

      it "lets no line end inject a field" do
        client = connect(at:)
        evil = "a\rid: 9\r\nevent: forged\n\nretry: 1\n\ndata: forged\r\r"
        streamer.broadcast("room:1", evil)
        streamer.broadcast("room:1", "b", event: "chat\nid: 9\r\rdata: forged\n\n")
        streamer.broadcast("room:1", "c")
        wait_for_data(client, "c")

        expect(events(client).map(&:data)).to eq([evil.gsub(/\r\n|\r/, "\n"), "b", "c"])
        expect(client.stream).to have_attributes(last_event_id: "", unknown: [], retry: 2000)
        expect(events(client).map(&:type).values_at(0, 2)).to eq(%w[turbo-stream turbo-stream])
      end

      it "passes over those that are excluded" do
        first, second, third = Array.new(3) { connect(at:) }
        streamer.broadcast("room:1", "not to the first", exclude: first.id)
        streamer.broadcast("room:1", "to the third", exclude: [first.id, second.id, "0000000000000000"])
        streamer.broadcast("room:1", "to all", exclude: [])
        wait_for_data([first, second, third], "to all")

        expect([first, second, third].map(&:data))
          .to eq([["to all"], ["not to the first", "to all"], ["not to the first", "to the third", "to all"]])
      end

      it "is seen by those whom a filter lets see it, in its place" do
        Pgbus::Streams.filters.register(:staff) { |context| context.to_s.start_with?("staff") }
        staff, guest, nobody = ["staff 1", "guest", nil].map { |user| connect(user:, at:) }
        40.times { |number| streamer.broadcast("room:1", number.to_s, visible_to: (:staff if number.odd?)) }
        streamer.broadcast("room:1", "the end")
        wait_for_data([staff, guest, nobody], "the end")
        even = Array.new(20) { |number| (2 * number).to_s }

        expect(staff.data).to eq([*Array.new(40, &:to_s), "the end"])
        expect([guest, nobody].map(&:data)).to eq([[*even, "the end"]] * 2)
      end

      it "with a label that nobody knows is seen by nobody" do
        client = connect(at:)
        streamer.broadcast("room:1", "secret", visible_to: :"nobody knows it")
        streamer.broadcast("room:1", "the end")
        wait_for_data(client, "the end")

        expect(client.data).to eq(["the end"])
      end
    end
  end

  describe "broadcast" do
    it "reaches whoever is told that he is connected, also by a streamer that has just started" do
      5.times do
        newcomer = start_streamer
        ours, theirs = UNIXSocket.pair
        closing << -> { theirs.close }
        register(ours, streamer: newcomer, stream_name: "news")
        expect(theirs.readline("\n\n")).to include("pgbus:connected")

        streamer.broadcast("news", "hello")
        expect(theirs.wait_readable(10)).to be(theirs)
        expect(theirs.readline("\n\n")).to include("hello")
        newcomer.shutdown!
      end
    end
  end

  describe "broadcast", :other_process do
    it "reaches this process from another one" do
      clients = [connect, connect(at: other.socket)]
      other.broadcast("room:1", "from there")
      wait_for_data(clients, "from there")

      expect(clients.map(&:data)).to eq([["from there"]] * 2)
    end

    it "asks a filter once for each connection that has to be asked, and no other" do
      asked = Thread::Queue.new
      Pgbus::Streams.filters.register(:asked_once) { |context| (asked << context) && context == "7" }
      seven, eight, nine = %w[7 8 9].map { |user| connect(user:) }
      connect("room:2", user: "elsewhere")
      streamer.broadcast("room:1", "to all")
      streamer.broadcast("room:1", "to seven", visible_to: :asked_once, exclude: nine.id)
      streamer.broadcast("room:3", "to nobody", visible_to: :asked_once)
      streamer.broadcast("room:1", "the end")
      wait_for_data([seven, eight, nine], "the end")

      expect(Array.new(asked.size) { asked.pop }).to contain_exactly("7", "8")
      expect([seven, eight, nine].map(&:data))
        .to eq([["to all", "to seven", "the end"], ["to all", "the end"], ["to all", "the end"]])
    end

    it "is not seen where the filter raises, which is logged, and is seen by the others" do
      Pgbus::Streams.filters.register(:raising) { |context| context == "7" || raise("what is #{context}?") }
      seven, eight = %w[7 8].map { |user| connect(user:) }
      streamer.broadcast("room:1", "secret", visible_to: :raising)
      streamer.broadcast("room:1", "the end")
      wait_for_data([seven, eight], "the end")

      expect([seven, eight].map(&:data)).to eq([["secret", "the end"], ["the end"]])
      expect(log.string).to include("what is 8?")
    end

    it "keeps its place behind one whose filter is slow" do
      Pgbus::Streams.filters.register(:slow) { sleep(0.02) }
      client = connect
      20.times { |number| streamer.broadcast("room:1", number.to_s, visible_to: (:slow if number.odd?)) }
      wait_for_data(client, "19")

      expect(client.data).to eq(Array.new(20, &:to_s))
    end

    it "does not wait for ever behind one whose filter hangs" do
      settings.streams_write_deadline_ms = 100
      release = Thread::Queue.new
      closing << -> { release.close }
      Pgbus::Streams.filters.register(:hanging) { release.pop || true }
      client = connect
      streamer.broadcast("room:1", "secret", visible_to: :hanging)
      streamer.broadcast("room:1", "the end")
      wait_for_data(client, "the end")

      expect(client.data).to eq(["the end"])
      wait_until("it is logged") { log.string.include?("a filter takes too long") }
    end

    it "by a streamer that is shut down reaches nobody" do
      client = connect(at: other.socket)
      streamer.shutdown!

      expect { streamer.broadcast("room:1", "too late") }.to raise_error(IOError, /shut down/)
      start_streamer.broadcast("room:1", "the end")
      wait_for_data(client, "the end")
      expect(client.data).to eq(["the end"])
    end

    it "from several threads keeps the order of each, everywhere" do
      clients = [connect, connect(at: other.socket)]
      in_threads(4) { |thread| 50.times { |number| streamer.broadcast("room:1", "#{thread} #{number}") } }
      wait_until("all of them have come") { clients.all? { |client| client.data.size == 200 } }

      clients.each do |client|
        expect(client.data.group_by(&:to_i).values).to match_array(Array.new(4) do |thread|
          Array.new(50) { |number| "#{thread} #{number}" }
        end)
      end
    end

    it "in a transaction happens after its commit", :after_commit do
      clients = [connect, connect(at: other.socket)]
      ActiveRecord::Base.transaction do
        ActiveRecord::Base.connection.execute("SELECT 1")
        streamer.broadcast("room:1", "inside", event: "chat")
        ActiveRecord::Base.transaction(requires_new: true) { streamer.broadcast("room:1", "nested") }
        in_thread { streamer.broadcast("room:1", "outside") }.join
        wait_for_data(clients, "outside")
        expect(clients.map(&:data)).to eq([["outside"]] * 2)
      end
      wait_for_data(clients, "nested")

      expect(clients.map { |client| events(client).map(&:data) }).to eq([%w[outside inside nested]] * 2)
    end

    it "in a transaction does not happen where that is rolled back", :after_commit do
      clients = [connect, connect(at: other.socket)]
      ActiveRecord::Base.transaction do
        streamer.broadcast("room:1", "of it")
        raise ActiveRecord::Rollback
      end
      ActiveRecord::Base.transaction do
        ActiveRecord::Base.transaction(requires_new: true) do
          streamer.broadcast("room:1", "of a part of it")
          raise ActiveRecord::Rollback
        end
        streamer.broadcast("room:1", "of the other part")
      end
      wait_for_data(clients, "of the other part")

      expect(clients.map(&:data)).to eq([["of the other part"]] * 2)
    end
  end

  describe "on_change" do
    it "is called on one thread of its own, in order for each stream" do
      settings.streams_heartbeat_interval = 0.3
      settings.ttl = ->(_stream) { 60 }
      insert_row(stream_name: "room:ghost", connection_id: "ghost")
      age(100)
      clients = request_many(60) { |number| request("room:#{number % 3}") }
      wait_for(*clients)
      clients.each(&:close)
      wait_until("all is reported") { settings.changes.size == 121 }

      thread, *others = settings.changes.map(&:last).uniq
      expect([thread.alive?, thread == Thread.current, others]).to eq([true, false, []])
      by_client = reported.group_by(&:last).transform_values { |changes| changes.map(&:first) }
      expect(by_client).to eq(clients.to_h { |client| [client.id, %i[join leave]] }.merge("ghost" => [:leave]))
    end

    it "that raises is logged, and the next one is called" do
      settings.on_change = ->(_stream, change) { raise "the callback of #{change[:type]}" if change[:type] == :join }
      first = connect
      first.close
      second = connect

      wait_until("all is reported") { reported.size == 3 }
      expect(reported).to contain_exactly([:join, first.id], [:leave, first.id], [:join, second.id])
      wait_until("it is logged") { log.string.scan("the callback of join").size == 2 }
    end

    it "that takes long delays nobody" do
      gate = Thread::Queue.new
      settings.on_change = ->(*) { gate.pop }
      settings.streams_heartbeat_interval = 0.3
      address
      closing << -> { gate.close }
      clients = Array.new(3) { connect }
      streamer.broadcast("room:1", "to all")
      wait_for_data(clients, "to all")
      wait_until("there are heartbeats") { clients.all? { |client| client.heartbeats.size > 1 } }
      clients.first.close
      wait_until("the seat has left") { seats.size == 2 }

      expect(settings.changes.size).to eq(1)
    end

    it "may look at the stream, and broadcast" do
      settings.on_change = lambda do |stream, change|
        ids = presence_of(stream).members.pluck("connection_id")
        streamer.broadcast(stream, "#{change[:type]} #{ids.include?(change[:connection_id])}")
      end
      client = connect
      wait_for_data(client, "join true")
      connect.close
      wait_for_data(client, "leave false")

      expect(client.data).to eq(["join true", "join true", "leave false"])
    end
  end

  describe "shutdown!" do
    it "has all seats leave in one statement, and reports them" do
      clients = request_many(300) { |number| request("room:#{number}") }
      wait_for(*clients)
      insert_row(stream_name: "room:1", connection_id: "another process's")
      counting("DELETE") do |count|
        streamer.shutdown!

        expect(count.call).to eq(1)
      end
      expect(seats).to eq(["another process's"])
      wait_until("all are reported") { reported.count { |type, _id| type == :leave } == 300 }
      wait_until("all are closed") { clients.all?(&:ended?) }
    end

    it "is over within 5 s though clients do not read" do
      settings.streams_write_deadline_ms = 60_000
      clients = Array.new(10) { connect }
      clients.drop(1).each { |client| client.stop_reading(buffer: 4096) }
      streamer.broadcast("room:1", "x" * 12_000_000)
      wait_until("one has it") { clients.first.data.any? }

      expect(seconds { streamer.shutdown! }).to be < 5.5
      wait_until("it is told") { clients.first.data("pgbus:shutdown").any? && clients.first.ended? }
      expect([rows, accepted_descriptors(address)]).to eq([[], {}])
    end

    it "is over within 5 s though the database hangs" do
      clients = Array.new(3) { connect }
      while_locked do
        expect(seconds { streamer.shutdown! }).to be < 5.5
        wait_until("all are closed") { clients.all?(&:ended?) }
      end
      expect(clients.map { |client| client.data("pgbus:shutdown").size }).to eq([1, 1, 1])
      expect(accepted_descriptors(address)).to be_empty
    end

    it "takes those along whose join is held up" do
      address
      client = nil
      while_locked do
        client = request
        wait_until("the join waits for the lock") { blocked_sessions == 1 }
        expect(seconds { streamer.shutdown! }).to be < 5.5
        wait_until("it is closed") { client.ended? }
        wait_until("the join is cancelled") { blocked_sessions.zero? }
      end
      expect([client.connected?, rows]).to eq([nil, []])
    end

    it "lets nobody register afterwards" do
      connect
      port = address
      streamer.shutdown!
      near, far = UNIXSocket.pair

      expect { register(near) }.to raise_error(StandardError)
      expect(streamer.registry.size).to eq(0)
      late = request(at: port)
      wait_until("a client is sent away") { late.ended? }
      expect(rows).to be_empty
    ensure
      [near, far].each(&:close)
    end

    it "may be called again, and by several at once" do
      connect
      in_threads(4) { streamer.shutdown! }

      expect(seconds { streamer.shutdown! }).to be < 1
      expect(rows).to be_empty
    end

    it "of one that has nothing to do is quick" do
      idle = start_streamer

      expect(seconds { idle.shutdown! }).to be < 1
    end
  end

  describe "Pgbus::Web::Streamer.current" do
    after { Pgbus::Web::Streamer.reset! }

    it "is one for the process, until it is reset" do
      current = Pgbus::Web::Streamer.current
      client = connect(at: serve(streamer: current))

      expect(current).to be_a(Pgbus::Native::Streamer)
      expect(in_threads(4) { Pgbus::Web::Streamer.current }).to all(be(current))
      Pgbus::Web::Streamer.reset!
      wait_until("its clients are told") { client.data("pgbus:shutdown").any? && client.ended? }
      expect(Pgbus::Web::Streamer.current).not_to be(current)
      expect(connect(at: serve(streamer: Pgbus::Web::Streamer.current))).to be_connected
    end

    it "is what StreamApp takes" do
      server = PumaServer.new(Pgbus::Web::StreamApp.new)
      closing << -> { server.stop }
      client = connect(at: server.address)

      expect(Pgbus::Web::Streamer.current.registry.lookup(client.id)).not_to be_nil
    end

    # Registers a connection in this process and gives what its client has until its frame, and who is there.
    def connect_in_child
      near, far = UNIXSocket.pair
      register(near, streamer: Pgbus::Web::Streamer.current, id: "c" * 16, stream_name: "room:2", context: "child")
      raise "nothing came" unless far.wait_readable(10)

      [far.readpartial(1000), presence_of("room:2").members.pluck("connection_id")]
    end

    it "is a forked child's own, which ends without a word to the parent's clients" do
      current = Pgbus::Web::Streamer.current
      client = connect(at: serve(streamer: current))
      child = fork_child(exit_by: :exit) do
        own = Pgbus::Web::Streamer.current
        [own.equal?(current), own.registry.size, *connect_in_child, own.registry.size]
      end

      expect(child.value).to eq([false, 0, "event: pgbus:connected\ndata: {\"connectionId\":\"#{"c" * 16}\"}\n\n",
                                 ["c" * 16], 1])
      expect(seats).to eq([client.id])
      current.broadcast("room:1", "after it")
      wait_for_data(client, "after it")
      expect(client.data("pgbus:shutdown")).to be_empty
    end

    it "is shut down when the process ends" do
      script = <<~'RUBY'
        require "logger"
        require "pgbus_native/streams"
        require "socket"
        require "support/streamer_settings"

        Pgbus.configuration = StreamerSettings.new
        Pgbus.logger = Logger.new($stderr)
        near, far = UNIXSocket.pair
        Pgbus::Web::Streamer.current.register(Pgbus::Web::Streamer::Connection.new(
          id: "0123456789abcdef", stream_name: "room:1", io: near, since_id: 0, write_deadline_ms: 1000, context: "7",
          writer: Pgbus::Web::Streamer::IoWriter
        ))
        spawn("cat", in: far) # a client that outlives this process
        far.close
        sleep 0.01 until Pgbus::Web::Streamer.current.registry.lookup("0123456789abcdef")
        exit
      RUBY

      expect(Subprocess.lines(script)).to include("event: pgbus:connected", "event: pgbus:shutdown")
      expect(rows).to be_empty
    end

    describe "where pgbus is loaded" do
      include Scripts

      # Says whose the current streamer is.
      setup = <<~'RUBY'
        require "active_record"
        require "logger"
        def whose_streamer = puts(Pgbus::Web::Streamer.current.class)
        def connect_database = ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
      RUBY

      it "stays pgbus's own unless the app asks for the native one" do
        result = ruby(<<~RUBY)
          #{setup}
          require "pgbus_native/streams"
          Pgbus::Web::Streamer.current = "pgbus's"
          whose_streamer
        RUBY

        expect(result.lines).to eq(["String"])
      end

      {
        "before it is loaded" => 'require "pgbus_native"; %s; require "pgbus_native/streams"',
        "after it is loaded" => 'require "pgbus_native/streams"; %s'
      }.each do |time, order|
        it "is the native one where the app asks for it #{time}" do
          result = ruby(<<~RUBY)
            #{setup}
            #{format(order, "Pgbus::Native.configure { |config| config.streamer = true }")}
            connect_database
            Pgbus.logger = Logger.new($stderr)
            whose_streamer
            Pgbus::Web::Streamer.reset!
          RUBY

          expect(result.lines).to eq(["Pgbus::Native::Streamer"])
        end
      end

      it "is the native one where there is no pgbus" do
        Gem::Specification.find_by_name("pgbus")
        skip "pgbus is installed here, and a process without it cannot be had"
      rescue Gem::MissingSpecError
        result = ruby(<<~RUBY, pgbus: false)
          #{setup}
          require "pgbus_native/streams"
          module Pgbus
            class << self
              attr_accessor :configuration, :logger
            end
          end
          Pgbus.configuration = Struct.new(:connects_to).new
          Pgbus.logger = Logger.new($stderr)
          connect_database
          whose_streamer
        RUBY
        expect(result.lines).to eq(["Pgbus::Native::Streamer"])
      end
    end
  end

  # Without native connections nobody hears other processes, but everything else is the same.
  describe "on ActiveRecord's connections", implementation: Implementation::ACTIVE_RECORD do
    it "joins, keeps and takes away seats" do
      settings.streams_heartbeat_interval = 0.5
      clients = request_many(50) { |number| request("room:#{number % 5}", seat: ("tab" if number.even?)) }
      wait_for(*clients)
      expect(seats).to match_array(clients.map(&:id))
      lost, gone, *others = clients
      sql("DELETE FROM pgbus_presence_members WHERE connection_id = $1", lost.id)
      age(1000)
      gone.close
      wait_until("the seats have been touched") do
        seats.size == 49 && untouched.empty?
      end
      streamer.broadcast("room:2", "to those there")
      wait_for_data(clients[2], "to those there")

      expect(seats).to match_array([lost, *others].map(&:id))
      expect(log.string).to include("broadcasts of other processes do not arrive")
      streamer.shutdown!
      expect(rows).to be_empty
    end

    it "gives all a seat but the one whose member is at fault" do
      wrong = { id: "8", metadata: { "text" => "\0" } }
      settings.member = ->(context) { context == "wrong" ? wrong : { id: context } }
      clients = request_many(20) { |number| request(user: number == 7 ? "wrong" : "7") }
      wait_for(*clients)

      expect(seats).to match_array((clients.map(&:id) - [clients[7].id]))
    end
  end

  describe "in a transactional test" do
    before do
      ActiveRecord::Base.connection.execute("SELECT 1")
      pin_connection
    end

    after do
      finish
      unpin_connection
      expect(rows).to be_empty # rubocop:disable RSpec/ExpectInHook -- whatever the example did
    end

    # As ActiveRecord's connection sees them.
    def seats_in_test
      ActiveRecord::Base.connection.select_values("SELECT connection_id FROM pgbus_presence_members ORDER BY 1")
    end

    it "keeps seats on the test's connection, so that they go with its rollback" do
      first, second = Array.new(2) { connect }

      expect(seats_in_test).to eq([first.id, second.id].sort)
      expect(rows).to be_empty
      first.close
      wait_until("the seat has left") { seats_in_test == [second.id] }
    end

    it "touches them there, and brings them back there" do
      settings.streams_heartbeat_interval = 0.3
      client = connect
      ActiveRecord::Base.connection.execute("DELETE FROM pgbus_presence_members")

      wait_until("the seat is back") { seats_in_test == [client.id] }
      expect(rows).to be_empty
    end

    it "broadcasts at once, since the test's transaction never commits" do
      client = connect
      streamer.broadcast("room:1", "in a test")
      wait_for_data(client, "in a test")

      expect(client.data).to eq(["in a test"])
    end

    it "broadcasts after the commit of a transaction within the test's", :after_commit do
      settings.streams_heartbeat_interval = 0.2
      client = connect
      ActiveRecord::Base.transaction do
        streamer.broadcast("room:1", "inside")
        beats = client.heartbeats.size
        wait_until("time has passed") { client.heartbeats.size > beats + 1 }
        expect(client.data).to be_empty
      end
      wait_for_data(client, "inside")
    end
  end
end
