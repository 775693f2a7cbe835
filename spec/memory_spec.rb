# frozen_string_literal: true

require_relative "support/subprocess"
require "open3"

# What a process that goes on for ever must not do: grow, or hold on to what the garbage collector moves.
RSpec.describe "Presence and memory", :slow, implementation: Implementation::AUTO do
  # Calls of every kind, on all the ways that calls go.
  calls = <<~'RUBY'
    require "support/numbered_calls"

    # The stand-in keeps every change for the examples to look at.
    def (Pgbus.configuration).notify_presence_change(*) = nil

    # Of these many, so many numbers each.
    def on_threads(count, numbers)
      Array.new(count) { |name| Thread.new { NumberedCalls.new(presence_of("t#{name}"), "t#{name}").calls(numbers) } }
           .sum(&:value)
    end

    def on_fibers(count, numbers)
      require "async"
      Async do |task|
        Array.new(count) { |name| task.async { NumberedCalls.new(presence_of("f#{name}"), "f#{name}").calls(numbers) } }
             .sum(&:wait)
      end.wait
    rescue LoadError
      on_threads(count, numbers)
    end

    # Each raises.
    def refused(numbers)
      presence = presence_of("refused")
      numbers.each do |number|
        case number % 4
        when 0 then presence.join(member_id: "a\0b")
        when 1 then presence.join(member_id: "a\xFF")
        when 2 then presence.sweep!(older_than: "no time")
        else presence.join(member_id: "7", metadata: { a: "\0" })
        end
        raise "not refused"
      rescue ArgumentError, PG::Error
        next
      end.size
    end

    # Some of them are given up.
    def given_up(numbers)
      presence = presence_of("given up")
      numbers.each do |number|
        Timeout.timeout(0.0001 * (number % 10)) { presence.join(member_id: number % 10) }
      rescue Timeout::Error, Timeout::ExitException
        next
      end.size
    end

    # Bigger than a page, and of a stream with many rows.
    def large(numbers)
      presence = presence_of("large")
      numbers.each do |number|
        presence.join(member_id: number % 200, metadata: { text: "x" * (number * 37 % 5_000), list: [1.5, nil, "ü"] * 20 })
        presence.members if (number % 20).zero?
      end.size
    end

    def expired(numbers)
      presence = presence_of("expired")
      numbers.each do |number|
        presence.join(member_id: number, connection_id: number)
        Pgbus::Streams::Presence.expire_seats!(ttl_for: ->(name) { name == "expired" ? 0 : 1000 }, min_ttl: 0)
      end.size
    end

    def kilobytes
      4.times { GC.start }
      File.read("/proc/self/status")[/VmRSS:\s*(\d+)/, 1].to_i
    end
  RUBY

  before { skip "no /proc to read the size of a process from" unless File.exist?("/proc/self/status") }

  it "does not grow with the number of calls, 200,000 of them" do
    # As Ruby processes with threads are commonly run; otherwise each thread's memory counts.
    lines = Subprocess.lines(<<~RUBY, within: 240, environment: { "MALLOC_ARENA_MAX" => "2" })
      #{calls}
      def round(share)
        on_threads(8, 0...(20_000 * share)) + on_fibers(50, 0...(400 * share)) + refused(0...(12_000 * share)) +
          given_up(0...(2_000 * share)) + large(0...(4_500 * share)) + expired(0...(1_500 * share))
      end

      # Until pools, threads, batches and the allocator's arenas have the sizes that they keep.
      2.times { round(0.3) }
      2.times do
        before = kilobytes
        made = round(0.5)
        puts made, kilobytes - before
      end
    RUBY

    rounds = lines.map(&:to_i).each_slice(2)
    expect(rounds.map(&:first)).to eq([100_000, 100_000])
    # What leaks does so in each round; an allocator that takes another arena does it in one of them.
    expect(rounds.map(&:last).min).to be < 1_024
  end

  # Every allocation collects garbage: what is not held where the collector looks is gone at once.
  it "answers rightly under GC.stress" do
    lines = Subprocess.lines(<<~'RUBY', within: 120)
      require "support/numbered_calls"
      presence = presence_of("room:42")
      metadata = { "text" => "ü" * 50, "list" => [1, 2.5, nil, true, "x", [], {}], "deep" => { "a" => { "b" => [[1]] } },
                   "big" => 10**30, "wide" => 5.times.to_h { |number| ["key#{number}", number] } }
      3.times { |number| presence.join(member_id: number, connection_id: "c#{number}", seat: "s", metadata:) }
      caller = NumberedCalls.new(presence_of("stress"), "stress")
      caller.calls(0...8)

      GC.stress = true
      members = presence.members
      joined = presence.join(member_id: "0", connection_id: "c0", seat: "s", metadata:)
      touched = presence.touch(connection_id: %w[c0 c1 c2])
      count = presence.count
      refused = begin
        presence.join(member_id: "a\xFF")
      rescue PG::CharacterNotInRepertoire => e
        e.message
      end
      caller.calls(8...16)
      expired = Pgbus::Streams::Presence.expire_seats!(ttl_for: ->(name) { name == "room:42" ? 0 : 1000 }, min_ttl: 0)
      GC.stress = false

      p members.map { |record| record["metadata"] } == [metadata] * 3, joined["metadata"] == metadata
      p touched.sort, count, refused[0, 5], expired.size
    RUBY

    expect(lines).to eq(["true", "true", '["c0", "c1", "c2"]', "3", '"ERROR"', "3"])
  end

  it "answers rightly while the collector moves objects" do
    lines = Subprocess.lines(<<~'RUBY', within: 120)
      require "support/numbered_calls"
      GC.auto_compact = true
      compacting = Thread.new { loop { GC.compact && sleep(0.02) } }
      threads = Array.new(4) do |name|
        Thread.new { NumberedCalls.new(presence_of("t#{name}"), "t#{name}").calls(0...1500) }
      end
      p threads.sum(&:value)
      compacting.kill.join

      presence = presence_of("room:42")
      100.times { |number| presence.join(member_id: number, metadata: { "id" => number, "list" => ["ü", nil, 1.5] }) }
      kept = presence.members
      GC.verify_compaction_references(expand_heap: true, toward: :empty)
      p kept == presence.members, kept.map { |record| record["metadata"]["id"] }.sort == (0...100).to_a
    RUBY

    expect(lines).to eq(%w[6000 true true])
  end

  it "passes valgrind with what cargo tests: nothing lost, nothing read that was never written" do
    skip "no valgrind on this machine" unless system("valgrind", "--version", out: IO::NULL, err: IO::NULL)
    skip "no cargo on this machine" unless system("cargo", "--version", out: IO::NULL, err: IO::NULL)

    out, status = Timeout.timeout(300) { Open3.capture2e(File.join(__dir__, "support/valgrind")) }
    expect(status).to be_success, out
  end
end
