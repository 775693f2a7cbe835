# frozen_string_literal: true

require_relative "support/numbered_calls"

# Many callers on few connections.
RSpec.describe "Presence for a crowd", implementation: Implementation::AUTO do
  def caller_of(name)
    NumberedCalls.new(presence_of(name), name)
  end

  def connections
    Pgbus::Native.stats[:connections]
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  it "answers 64 threads on a pool of 4, each with its own rows", :slow do
    made = in_threads(64, within: 60) { |name| caller_of("room#{name}").calls(0...400) }

    expect(made).to eq([400] * 64)
    expect(connections).to be <= 4
    wait_until("no connection is in use") { Pgbus::Native.stats[:busy].zero? }
  end

  it "serves 64 threads alike: none waits for ever while others are served", :slow do
    enough = false
    made = Array.new(64, 0)
    threads = Array.new(64) { |name| in_thread { made[name] = caller_of("room#{name}").calls_until { enough } } }
    sleep 3
    enough = true
    threads.each { |thread| expect(thread.join(10)).to be(thread) }
    threads.each(&:value)

    expect(made.min).to be > made.sum / 64 / 4
  end

  it "gives each of 64 threads what it asked for, errors too, from statements that they share" do
    # Every eighth has an id that is no text.
    outcomes = in_threads(64) do |name|
      id = (name % 8).zero? ? "#{name}\xFF" : name.to_s
      Array.new(10) { join_or_error(id, name) }.uniq
    end

    expect(outcomes).to eq(Array.new(64) { |name| [(name % 8).zero? ? PG::CharacterNotInRepertoire : name.to_s] })
    expect(rows.size).to eq(56)
  end

  def join_or_error(id, connection_id)
    presence.join(member_id: id, connection_id:)["id"]
  rescue PG::Error => e
    e.class
  end

  it "has 64 threads write one row, one after the other" do
    in_threads(64) do |name|
      5.times { |round| presence.join(member_id: name, connection_id: "c1", metadata: { round: }) }
    end

    expect(row["metadata"]).to eq('{"round": 4}')
  end

  it "ends every call in time where statements time out" do
    with_connection_settings(variables: { statement_timeout: "400ms" }) do
      presence.count
      while_locked do
        started = now
        ended = in_threads(60) do |name|
          presence.join(member_id: name)
        rescue PG::QueryCanceled, ActiveRecord::ConnectionNotEstablished
          now - started
        end
        # Of the longest wait for a connection, 5 s, and the statement's time.
        expect(ended).to all(be < 7)
      end
      expect(presence.count).to eq(0)
    end
  end

  describe "of fibers" do
    before do
      require "async"
    rescue LoadError => e
      skip e.message
    end

    # Runs the block in a reactor on a thread of its own.
    def in_a_reactor(&)
      thread = Thread.new do
        Thread.current.report_on_exception = false
        implementation.use { Async(&).wait }
      end
      expect(thread.join(60)).to be(thread)
      thread.value
    end

    it "answers 500 of them, each with its own rows", :slow do
      made = in_a_reactor do |task|
        Array.new(500) { |name| task.async { caller_of("room#{name}").calls(0...40) } }.map(&:wait)
      end

      expect(made).to eq([40] * 500)
      expect(connections).to be <= 4
    end

    it "lets other fibers run meanwhile, never for long without" do
      presence.join(member_id: "7")
      longest = 0
      in_a_reactor do |task|
        busy = true
        ticker = task.async do
          last = now
          while busy
            task.sleep(0.002)
            longest = [longest, now - last].max
            last = now
          end
        end
        Array.new(100) { |name| task.async { caller_of("room#{name}").calls(0...16) } }.each(&:wait)
        busy = false
        ticker.wait
      end

      expect(longest).to be < 0.5
    end

    it "answers 500 of them while 16 threads call too", :slow do
      threads = Array.new(16) { |name| in_thread { caller_of("thread#{name}").calls(0...200) } }
      made = in_a_reactor do |task|
        Array.new(500) { |name| task.async { caller_of("fiber#{name}").calls(0...8) } }.map(&:wait)
      end

      expect(made).to eq([8] * 500)
      threads.each { |thread| expect(thread.join(30)).to be(thread) }
      expect(threads.map(&:value)).to eq([200] * 16)
    end

    it "serves several reactors at once", :slow do
      reactors = Array.new(4) do |number|
        Thread.new do
          Async do |task|
            Array.new(50) { |name| task.async { caller_of("#{number}.#{name}").calls(0...40) } }.map(&:wait)
          end.wait
        end
      end
      reactors.each { |thread| expect(thread.join(60)).to be(thread) }

      expect(reactors.map(&:value)).to eq([[40] * 50] * 4)
    end
  end
end
