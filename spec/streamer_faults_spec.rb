# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/fault_proxy"
require_relative "support/fault_server"
require_relative "support/pgbouncer"
require_relative "support/streamer_helpers"

RSpec.describe "Faults of which Pgbus::Native::Streamer makes nothing", implementation: Implementation::AUTO do
  include StreamerHelpers

  # The longest time between two heartbeats of any of the clients.
  def longest_gap(clients)
    clients.flat_map { |client| client.heartbeats.each_cons(2).map { |one, other| other - one } }.max
  end

  describe "a database", :fault_server do
    def sql(...)
      server.sql(...)
    end

    # What another streamer broadcasts arrives, now or soon.
    def expect_to_hear_others(client)
      other = start_streamer
      wait_until("broadcasts of others arrive", within: 15) do
        other.broadcast("room:1", "from another one")
        client.got?("from another one")
      end
    end

    # The server is away while the block runs.
    def without_server
      server.stop("immediate")
      yield
    ensure
      server.start
    end

    it "that is gone for 10 s costs no client its connection; seats return by themselves", :slow do
      settings.streams_heartbeat_interval = 1
      # The seats are past it when the database is back.
      settings.ttl = ->(_stream) { 5 }
      all = request_many(20) { request }
      wait_for(*all)
      without_server do
        gone_at = now
        all += Array.new(3) { connect }
        expect { streamer.broadcast("room:1", "meanwhile") }.to raise_error(ActiveRecord::ConnectionNotEstablished)
        wait_until("10 s are over", within: 15) { now - gone_at > 10 }
      end
      wait_until("all seats are there", within: 20) { seats.sort == all.map(&:id).sort }

      expect(all.map(&:ended?)).to all(be(false))
      expect(all.map(&:data)).to all(be_empty)
      expect(longest_gap(all)).to be < 2.5
      expect(reported.map(&:first)).to all(eq(:join))
      # It is logged, but not for each connection and heartbeat.
      expect(log.string.lines.size).to be_between(1, 40)
      expect_to_hear_others(all.first)
    end

    it "that is not there yet when the streamer starts gives clients their seats later" do
      settings.streams_heartbeat_interval = 0.5
      client = nil
      without_server do
        client = connect
        expect(log.string.lines).not_to be_empty
      end
      wait_until("the seat is there", within: 20) { seats == [client.id] }
      wait_until("it is reported") { settings.changes.any? }

      expect(reported).to eq([[:join, client.id]])
    end

    it "that ends all sessions is connected to again" do
      client = connect
      server.terminate_sessions
      streamer.broadcast("room:1", "at once")
      wait_for_data(client, "at once")
      late = connect
      expect(seats).to contain_exactly(client.id, late.id)
      expect_to_hear_others(client)
      client.close

      wait_until("the seat has left") { seats.size == 1 }
    end

    it "behind a pooler that knows no LISTEN is listened to where streams_database_url says" do
      skip PgBouncer.unavailable if PgBouncer.unavailable

      bouncer = PgBouncer.new(Struct.new(:directory, :port).new(server.socket, server.port), mode: "transaction")
      closing << -> { bouncer.stop }
      SpecDatabase.establish(**server.settings(port: bouncer.port, prepared_statements: false))
      url = server.url
      settings.define_singleton_method(:streams_database_url) { url }
      client = connect

      expect(seats).to eq([client.id])
      expect_to_hear_others(client)
      client.close
      wait_until("the seat has left") { seats.empty? }
    end

    it "that answers nothing any more delays neither heartbeats nor connecting nor the shutdown", :slow do
      settings.streams_heartbeat_interval = 0.3
      FaultProxy.to(server.port) do |proxy|
        SpecDatabase.establish(**server.settings(port: proxy.port))
        client = connect
        proxy.swallow_everything
        late = request
        wait_until("who comes now is connected without a seat", within: 12) { late.connected? }
        client_gap = longest_gap([client])
        took = seconds { streamer.shutdown! }
        wait_until("all are closed") { client.ended? && late.ended? }

        expect([client, late].map { |each| each.data("pgbus:shutdown").size }).to eq([1, 1])
        expect(client_gap).to be < 1
        expect(took).to be < 5.5
      end
    end
  end

  describe "clients" do
    it "that vanish without a word leave" do
      settings.streams_heartbeat_interval = 0.5
      settings.streams_write_deadline_ms = 1000
      other = connect
      vanished = Array.new(5) { connect }
      vanished.each(&:vanish)

      wait_until("their seats have left") { seats == [other.id] }
      wait_until("they have left") { streamer.registry.size == 1 }
      expect(accepted_descriptors(address).size).to eq(1)
      expect(longest_gap([other])).to be < 1.5
      expect(vanished.map(&:ended?)).to all(be(false))
    end

    it "that send something are listened to no more than others" do
      client = connect
      client.write("GET / HTTP/1.1\r\n\r\n\0\xFF#{"x" * 1000}")
      streamer.broadcast("room:1", "all the same")

      wait_for_data(client, "all the same")
      expect(client).not_to be_ended
    end

    it "that read slowly have their frames whole, and in order" do
      settings.streams_heartbeat_interval = 0.2
      client, other = Array.new(2) { connect_narrow }
      client.stop_reading
      data = Array.new(10) { |number| "#{number} #{"x" * 50_000}" }
      data.each { |html| streamer.broadcast("room:1", html) }
      wait_for_data(other, *data)
      wait_until("there were heartbeats, too") { other.heartbeats.size > 2 }
      client.read_again

      wait_for_data(client, *data)
      expect(client.data == data).to be(true)
      expect(client.stream).to have_attributes(unknown: [], comments: all(match(/heartbeat/)))
    end

    it "that are cut off within a frame get nothing after it" do
      settings.streams_write_deadline_ms = 300
      client = connect_narrow
      client.stop_reading
      took = seconds do
        streamer.broadcast("room:1", "x" * 200_000)
        streamer.broadcast("room:1", "the next")
        wait_until("it is cut off") { streamer.registry.size.zero? }
      end
      streamer.shutdown!
      client.read_again
      wait_until("it is closed") { client.ended? }

      expect(took).to be_between(0.3, 3)
      expect(client.body).to match(/\n\nevent: turbo-stream\ndata: x+\z/)
      expect(rows).to be_empty
    end

    it "that have read half a frame at the shutdown get no other into it" do
      client = connect_narrow
      client.stop_reading
      streamer.broadcast("room:1", "x" * 200_000)
      shutting_down = in_thread { streamer.shutdown! }
      wait_until("it has begun, or is over") { !shutting_down.alive? || rows.empty? }
      client.read_again
      wait_until("it is closed") { client.ended? }
      rest = client.body.split("\n\n", 2).last

      expect(rest).to match(/\Aevent: turbo-stream\ndata: x+(\z|\n\nevent: pgbus:shutdown\n.*\n\n\z)/)
    end

    # Comes, and goes at once or when it is connected.
    def come_and_go(count)
      come = request_many(count) { |number| request("room:#{number % 20}") }
      hasty, patient = come.partition.with_index { |_client, number| number.even? }
      hasty.each { |client| client.close(reset: client.object_id.odd?) }
      wait_for(*patient)
      patient.each(&:close)
      wait_until("all have left") { streamer.registry.size.zero? && rows.empty? }
    end

    def connection_objects
      3.times { GC.start }
      ObjectSpace.each_object(Pgbus::Web::Streamer::Connection).count
    end

    it "that come and go in a flood leave no descriptor, seat, object or memory behind" do
      settings.streams_heartbeat_interval = 0.5
      come_and_go(400)
      objects = connection_objects
      open_ones = descriptors.size
      growths = Array.new(4) do
        before = memory
        2.times { come_and_go(300) }
        settings.changes.clear
        expect(connection_objects).to be <= objects + 20 # a few are still on some thread's stack
        memory - before
      end

      # What leaks does so each time. It is 5 KB for each client.
      expect(growths.min).to be < 3_000_000
      expect(accepted_descriptors(address)).to be_empty
      expect(descriptors.size).to be <= open_ones + 5
      streamer.shutdown!
      expect(rows).to be_empty
    end

    it "that would be too many are refused, until somebody leaves" do
      settings.streams_max_connections = 3
      first, = Array.new(3) { connect }
      refused = request
      wait_until("it has an answer") { refused.status.positive? }
      first.close
      wait_until("somebody has left") { streamer.registry.size == 2 }

      expect(refused.status).to eq(503)
      expect(connect).to be_connected
    end

    it "that would be too many by far, all at once, are refused" do
      settings.streams_max_connections = 100
      # Otherwise the server's threads would wait for more from those who are refused.
      headers = { "Connection" => "close" }
      all = request_many(1000) { |number| request("room:#{number % 20}", headers:) }
      wait_until("all have an answer") { all.all? { |client| client.status.positive? } }
      accepted, refused = all.partition { |client| client.status == 200 }
      wait_for(*accepted)

      # Each of the server's threads may have seen the last place.
      expect(accepted.size).to be_between(100, 108)
      expect(refused.map(&:status).uniq).to eq([503])
      expect(streamer.registry.size).to eq(accepted.size)
      expect(seats).to match_array(accepted.map(&:id))
    end
  end

  describe "all of it at once", :slow do
    # Comes and goes for so many seconds; the clients that stay.
    def come_and_go_for(seconds, places, random)
      over = now + seconds
      open_ones = []
      while now < over
        open_ones << request("room:#{random.rand(5)}", at: places.sample(random:))
        open_ones.delete_at(random.rand(open_ones.size)).close(reset: random.rand(2).zero?) if open_ones.size > 10
        sleep 0.002
      end
      open_ones
    end

    # Ends sessions, and deletes seats, until the block's thread is done.
    def trouble(threads)
      while threads.any?(&:alive?)
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5")
        sql("DELETE FROM pgbus_presence_members WHERE random() < 0.2")
        threads.first.join(0.3)
      end
    end

    it "leaves each client that is there its connection and its seat, and no other seat" do
      settings.streams_heartbeat_interval = 0.5
      StreamerProcess.run(streams_heartbeat_interval: 0.5) do |puma|
        places = [address, puma.socket]
        threads = Array.new(3) { |seed| in_thread { come_and_go_for(4, places, Random.new(seed)) } }
        trouble(threads)
        there = threads.flat_map(&:value)
        wait_for(*there)
        wait_until("each has its seat") { seats.sort == there.map(&:id).sort }
        beats = there.first.heartbeats.size
        wait_until("there were more heartbeats") { there.first.heartbeats.size > beats + 2 }
        expect(seats).to match_array(there.map(&:id))
        expect(there.map(&:ended?)).to all(be(false))
        wait_until("they hear each other", within: 15) do
          5.times { |number| streamer.broadcast("room:#{number}", "the end") }
          there.all? { |client| client.got?("the end") }
        end
        streamer.shutdown!
        expect(puma.stop).to be_truthy
        expect(rows).to be_empty
      end
    end
  end
end
