# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/streamer_helpers"

RSpec.describe "Pgbus::Native::Streamer in Puma's processes", :slow, implementation: Implementation::AUTO do
  include StreamerHelpers

  before { skip PumaCluster.unavailable if PumaCluster.unavailable }

  # So many clients, each on a stream of its own, with their seats.
  def come(puma, count)
    Array.new(count) { |number| request("room:#{number}", at: puma.socket) }.tap do |clients|
      wait_for(*clients)
      expect(seats).to match_array(clients.map(&:id))
    end
  end

  def expect_farewell(clients)
    wait_until("all are closed", within: 40) { clients.all?(&:ended?) }
    expect(clients.map { |client| client.data("pgbus:shutdown") }.uniq).to eq([['{"reason":"worker_restart"}']])
  end

  {
    "a single process" => ["workers 0", {}],
    "a cluster" => ["", {}],
    "a cluster with a preloaded app" => ["preload_app!", {}],
    "a cluster that was forked from a process with a streamer" => ["preload_app!", { in_master: true }]
  }.each do |kind, (configuration, settings)|
    it "is shut down by SIGTERM to #{kind}" do
      StreamerProcess.run(configuration, **settings) do |puma|
        clients = come(puma, 12)
        took = seconds { expect(puma.stop).to be_truthy }

        expect_farewell(clients)
        expect(rows).to be_empty
        expect(took).to be < 8
      end
    end
  end

  it "is shut down by SIGTERM though clients do not read" do
    StreamerProcess.run do |puma|
      slow, *clients = come(puma, 3)
      slow.stop_reading(buffer: 4096)
      puma.broadcast("room:0", "x" * 12_000_000)
      took = seconds { expect(puma.stop).to be_truthy }

      expect_farewell(clients)
      expect(rows).to be_empty
      expect(took).to be < 8
    end
  end

  it "is shut down worker by worker in a phased restart, and the new ones have their own" do
    StreamerProcess.run("") do |puma|
      before = puma.workers
      clients = come(puma, 12)
      puma.signal(:USR1)
      expect_farewell(clients)
      wait_until("two other workers serve", within: 30) { (puma.workers - before).size == 2 }
      expect(rows).to be_empty

      expect_farewell(come(puma, 6).tap { puma.stop })
      expect(rows).to be_empty
    end
  end

  it "that was killed has its seats expired by another process's heartbeat" do
    settings.streams_heartbeat_interval = 0.3
    settings.ttl = ->(_stream) { 2 }
    StreamerProcess.run(streams_heartbeat_interval: 0.3, seconds: 2) do |puma|
      theirs = come(puma, 5)
      ours = connect
      wait_until("they have sat for longer than their ttl") { theirs.all? { |client| client.heartbeats.size > 9 } }
      expect(seats.size).to eq(6)
      puma.workers.each { |pid| Process.kill(:KILL, pid) }
      killed_at = now
      wait_until("their seats have expired") { seats == [ours.id] }
      expect(now - killed_at).to be_between(1, 5)
      wait_until("it is reported") { reported.size == 6 }

      expect(reported.drop(1)).to match_array(theirs.map { |client| [:leave, client.id] })
      expect(theirs.map { |client| client.data("pgbus:shutdown") }.uniq).to eq([[]])
    end
  end

  it "in a worker that was killed has its seats expired by another worker's" do
    StreamerProcess.run("", streams_heartbeat_interval: 0.3, seconds: 2) do |puma|
      wait_until("there are two workers") { puma.workers.size == 2 }
      clients = come(puma, 4)
      wait_until("each worker has clients") do
        clients << connect(at: puma.socket)
        puma.workers.none? { |pid| accepted_descriptors(puma.socket, pid).empty? }
      end
      Process.kill(:KILL, puma.workers.first)
      wait_until("its clients are closed") { clients.any?(&:ended?) }
      alive = clients.reject(&:ended?)
      wait_until("its seats have expired") { seats.size == alive.size }

      expect(seats).to match_array(alive.map(&:id))
      expect(alive).not_to be_empty
    end
  end
end
