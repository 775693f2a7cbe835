# frozen_string_literal: true

require_relative "support/numbered_calls"
require_relative "support/subprocess"

# Ruby wants a thread back that waits for PostgreSQL.
RSpec.describe "Presence when a call is interrupted", implementation: Implementation::AUTO do
  calls = {
    "join" => ->(presence) { presence.join(member_id: "new") },
    "join of a seat" => ->(presence) { presence.join(member_id: "new", connection_id: "new") },
    "leave" => ->(presence) { presence.leave(member_id: "7") },
    "leave of a seat" => ->(presence) { presence.leave(connection_id: "c1") },
    "touch" => ->(presence) { presence.touch(member_id: "7") },
    "touch of seats" => ->(presence) { presence.touch(connection_id: ["c1"]) },
    "set_state" => ->(presence) { presence.set_state(connection_id: "c1", state: { a: 1 }) },
    "members" => lambda(&:members),
    "count" => lambda(&:count),
    "sweep!" => ->(presence) { presence.sweep!(older_than: "now") },
    "expire_seats!" => ->(presence) { presence.class.expire_seats!(ttl_for: ->(_) { 0 }, min_ttl: 0) }
  }
  enough = Class.new(StandardError)

  # How a thread is told to stop.
  ways = {
    "Thread#kill" => lambda(&:kill),
    "Thread#raise" => ->(thread) { thread.raise(enough, "enough") }
  }

  # Statements on the table that the server works on, the asking one apart.
  def running_statements
    sql("SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
         AND pid <> pg_backend_pid() AND query ILIKE '%pgbus_presence_members%'")
  end

  # Calls of this process that wait for a connection.
  def waiting_calls
    Pgbus::Native::Databases.stats.fetch(:waiting)
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # After whatever has happened: nothing runs on, no right to a connection is lost, answers are right.
  def expect_all_is_well
    wait_until("no statement is left on the server") { running_statements.empty? }
    wait_until("no connection is in use") { Pgbus::Native.stats[:busy].zero? }
    ids = in_threads(12) { |number| Array.new(5) { |round| presence.join(member_id: "#{number}/#{round}")["id"] } }
    expect(ids).to eq(Array.new(12) { |number| Array.new(5) { |round| "#{number}/#{round}" } })
    expect(Pgbus::Native.stats[:connections]).to be <= Pgbus::Native.configuration.pool_size
  end

  describe "in mid-call" do
    before do
      presence.join(member_id: "7")
      presence.join(member_id: "7", connection_id: "c1")
    end

    calls.each do |name, call|
      ways.each do |way, interrupt|
        it "ends at once by #{way}, its query is cancelled, and has no effect: #{name}" do
          before = rows
          while_locked do
            thread = in_thread { call.call(presence) }
            wait_until("the call waits") { blocked_sessions == 1 }
            interrupt.call(thread)
            expect(seconds { expect_end_of(thread, enough) }).to be < 1
            wait_until("its query is cancelled", within: 2) { blocked_sessions.zero? }
          end

          expect(rows).to eq(before)
        end
      end

      it "ends at once by Timeout, its query is cancelled, and has no effect: #{name}" do
        before = rows
        while_locked do
          took = seconds { expect { Timeout.timeout(0.1) { call.call(presence) } }.to raise_error(Timeout::Error) }
          expect(took).to be < 1
          wait_until("its query is cancelled", within: 2) { blocked_sessions.zero? }
        end

        expect(rows).to eq(before)
      end
    end

    def expect_end_of(thread, error)
      thread.join(2) || raise("the thread is still in its call")
    rescue error => e
      expect(e.message).to eq("enough")
    end

    it "ends with the error of a signal's handler" do
      before = trap("USR2") { raise enough, "by signal" }
      while_locked do
        signaller = Thread.new do
          wait_until("the call waits") { blocked_sessions == 1 }
          Process.kill(:USR2, Process.pid)
        end
        expect { presence.join(member_id: "new") }.to raise_error(enough, "by signal")
        signaller.join
        wait_until("its query is cancelled", within: 2) { blocked_sessions.zero? }
      end
      expect(presence.count).to eq(2)
    ensure
      trap("USR2", before)
    end

    it "goes on when it is woken up for nothing" do
      calling = nil
      while_locked do
        calling = in_thread { presence.join(member_id: "new")["id"] }
        wait_until("the call waits") { blocked_sessions == 1 }
        20.times { calling.wakeup && sleep(0.005) }
        expect(calling).to be_alive
      end

      expect(calling.value).to eq("new")
    end

    it "is not interrupted where that is masked, but right afterwards" do
      finished = nil
      calling = nil
      while_locked do
        calling = in_thread do
          Thread.handle_interrupt(enough => :never) { finished = presence.join(member_id: "new")["id"] }
        end
        wait_until("the call waits") { blocked_sessions == 1 }
        3.times { calling.raise(enough, "enough") }
        sleep 0.05
        expect(calling).to be_alive
      end

      expect { calling.value }.to raise_error(enough)
      expect(finished).to eq("new")
    end

    it "is interrupted at once by what was put off until it blocks" do
      while_locked do
        calling = in_thread do
          Thread.handle_interrupt(enough => :on_blocking) do
            Thread.current.raise(enough, "enough")
            presence.join(member_id: "new")
          end
        end
        expect(seconds { expect_end_of(calling, enough) }).to be < 1
      end
    end

    it "bears interrupts in quick succession" do
      while_locked do
        calling = in_thread { stubborn_join(enough) }
        wait_until("the call waits") { blocked_sessions == 1 }
        30.times { calling.raise(enough, "enough") }
        expect(calling.kill.join(2)).to be(calling)
        wait_until("the queries are cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    # Tries again whenever it is interrupted.
    def stubborn_join(error)
      presence.join(member_id: "new")
    rescue error
      retry
    end
  end

  # A call that is run along in another one's statement, or runs others along.
  describe "among calls that wait for a connection" do
    before { presence.join(member_id: "7") }

    # With all connections of the pool waiting for a lock, and so many calls behind them.
    def with_a_queue(length)
      queued = nil
      holders = nil
      while_locked do
        holders = Array.new(Pgbus::Native.configuration.pool_size) { in_thread { presence.touch(member_id: "7") } }
        wait_until("all connections are in use") { blocked_sessions == holders.size }
        queued = Array.new(length) { |number| in_thread { presence.join(member_id: "q#{number}")["id"] } }
        wait_until("the others wait in line") { waiting_calls == length }
        yield queued
      end
      holders.each(&:value)
      queued
    end

    it "leaves the line, and the others get their own answers" do
      queued = with_a_queue(40) do |threads|
        threads.each_slice(2) { |thread, _| expect(thread.kill.join(1)).to be(thread) }
      end

      expect(queued.map(&:value)).to eq(Array.new(40) { |number| ("q#{number}" if number.odd?) })
      expect(sql("SELECT 1 FROM pgbus_presence_members WHERE member_id LIKE 'q%'").size).to eq(20)
      expect_all_is_well
    end

    context "with inserts that wait for a lock" do
      before do
        sql("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$")
        sql("CREATE TRIGGER wait BEFORE INSERT ON pgbus_presence_members FOR EACH ROW EXECUTE FUNCTION wait()")
      end

      after { sql("DROP FUNCTION wait() CASCADE") }

      # With forty calls under way in few statements.
      def with_a_shared_statement
        while_locked("SELECT pg_advisory_lock(7)") do
          queued = with_a_queue(40) { nil }
          wait_until("the shared statement waits") { blocked_sessions.positive? && waiting_calls.zero? }
          expect(blocked_sessions).to be < 10
          yield queued
        end
      end

      it "leaves the statement that it shares, whoever began it, and the others get their own answers" do
        queued = nil
        with_a_shared_statement do |threads|
          queued = threads
          threads.first(30).each { |thread| expect(thread.kill.join(1)).to be(thread) }
        end

        expect(queued.last(10).map(&:value)).to eq(Array.new(10) { |number| "q#{number + 30}" })
        expect_all_is_well
      end

      it "has the shared statement cancelled once nobody waits for it any more" do
        with_a_shared_statement do |threads|
          threads.each { |thread| expect(thread.kill.join(1)).to be(thread) }
          wait_until("it is cancelled", within: 3) { blocked_sessions.zero? }
        end

        expect(rows.map { |row| row["member_id"] }).to eq(["7"])
        expect_all_is_well
      end
    end
  end

  # Each of many callers is interrupted at random moments; each answer is held against what was asked.
  describe "at random", :slow do
    stop = Class.new(StandardError)
    let(:interrupts) { Thread::Queue.new }

    # The server takes its time, so that there is something to interrupt.
    def dawdle(milliseconds)
      sql("CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_sleep(random() * 0.001 * #{milliseconds}); RETURN NEW; END $$")
      sql("CREATE TRIGGER dawdle BEFORE INSERT ON pgbus_presence_members FOR EACH ROW EXECUTE FUNCTION dawdle()")
    end

    after { sql("DROP FUNCTION IF EXISTS dawdle() CASCADE") }

    # Makes calls until there are no numbers left.
    def restless_caller(name, numbers, stop)
      caller = NumberedCalls.new(presence_of("room#{name}"), "room#{name}")
      random = Random.new(name)
      Thread.handle_interrupt(stop => :never) do
        while (number = numbers.shift)
          patience = random.rand(3).zero? ? random.rand * 0.003 : 30
          begin
            Thread.handle_interrupt(stop => :immediate) do
              Timeout.timeout(patience) { caller.call(number) }
            end
          rescue stop, Timeout::Error, Timeout::ExitException => e
            # The last is what Ruby's own Timeout lets out now and then, when time is over at the very end.
            interrupts << e
          end
        end
      end
    end

    def start_caller(number, numbers, stop)
      in_thread { restless_caller(number, numbers, stop) }
    end

    it "answers 10,000 calls each with its own rows, between Timeout, Thread#raise and Thread#kill" do
      dawdle(2)
      numbers = (0...10_000).to_a
      threads = Array.new(8) { |name| start_caller(name, numbers, stop) }
      random = Random.new(9)
      deadline = now + 90
      until numbers.empty?
        raise "calls still running after 90 s" if now > deadline

        sleep random.rand * 0.004
        index = random.rand(8)
        next threads[index].raise(stop) unless random.rand(10).zero?

        expect(threads[index].kill.join(2)).to be(threads[index])
        interrupts << :killed
        threads[index] = start_caller(interrupts.size + 8, numbers, stop)
      end
      threads.each { |thread| expect(thread.join(10)).to be(thread) }

      expect(interrupts.size).to be > 1000
      expect_all_is_well
    end

    it "gives all rows or none, when it is interrupted while they come in" do
      sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, metadata)
           SELECT $1, n, n, jsonb_build_object('n', n) FROM generate_series(1, 3000) n", stream.name)
      random = Random.new(11)
      all = Array.new(3000) { |index| [index + 1, index + 1] }
      complete = 0
      400.times do
        members = Timeout.timeout(random.rand * 0.03) { presence.members }
        complete += 1
        expect(members.map { |member| [member["id"].to_i, member["metadata"]["n"]] }.sort).to eq(all)
      rescue Timeout::Error, Timeout::ExitException => e
        interrupts << e
      end

      expect([complete, interrupts.size]).to all(be > 20)
      expect_all_is_well
    end

    it "answers 3,000 calls of fibers each with its own rows, while fibers are stopped" do
      require "async"
      dawdle(5)
      numbers = (0...3_000).to_a
      thread = Thread.new do
        Thread.current.report_on_exception = false
        Async { |task| stop_and_start_fibers(task, numbers) }.wait
      end

      expect(thread.join(60)).to be(thread)
      thread.value
      expect(interrupts.size).to be > 50
      expect_all_is_well
    rescue LoadError => e
      skip e.message
    end

    def stop_and_start_fibers(task, numbers)
      names = (0..).each
      start = -> { task.async { fiber_caller(names.next, numbers) } }
      callers = Array.new(20) { start.call }
      random = Random.new(10)
      until numbers.empty?
        task.sleep(random.rand * 0.01)
        index = random.rand(callers.size)
        callers[index].stop
        interrupts << :stopped
        callers[index] = start.call
      end
      callers.each(&:wait)
    end

    def fiber_caller(name, numbers)
      caller = NumberedCalls.new(presence_of("room#{name}"), "room#{name}")
      while (number = numbers.shift)
        caller.call(number)
      end
    end
  end

  describe "by a signal to the process" do
    joining = <<~RUBY
      presence_of("room:42").join(member_id: "interrupted")
    RUBY

    it "ends the process at once by Ctrl-C, and its query on the server" do
      3.times do
        while_locked do
          Subprocess.run(joining) do |process|
            wait_until("its call waits") { blocked_sessions == 1 }
            process.signal(:INT)
            expect(seconds { process.status }).to be < 2
            expect(process.status.termsig).to eq(Signal.list["INT"])
            wait_until("the query is cancelled", within: 2) { blocked_sessions.zero? }
          end
        end
      end

      expect(rows).to be_empty
    end

    it "ends the process at once by SIGTERM, and its query on the server" do
      while_locked do
        Subprocess.run(joining) do |process|
          wait_until("its call waits") { blocked_sessions == 1 }
          process.signal(:TERM)
          expect(seconds { process.status }).to be < 2
          expect(process.status.termsig).to eq(Signal.list["TERM"])
          wait_until("the query is cancelled", within: 2) { blocked_sessions.zero? }
        end
      end

      expect(rows).to be_empty
    end

    it "ends the process at once with calls under way on other threads" do
      while_locked do
        Subprocess.run(<<~RUBY) do |process|
          20.times { |number| Thread.new { presence_of("room:42").join(member_id: number) } }
          sleep
        RUBY
          wait_until("its calls wait") { blocked_sessions == Pgbus::Native.configuration.pool_size }
          process.signal(:INT)

          expect(seconds { process.status }).to be < 2
          expect(process.status.termsig).to eq(Signal.list["INT"])
          expect(process.errors).to match(/Interrupt/).and match(/\A(?!.*panicked)/m)
        end
      end
    end

    it "lets a handler of the application say what happens" do
      while_locked do
        Subprocess.run(<<~RUBY) do |process|
          trap("INT") { exit 7 }
          at_exit { puts "bye" }
          #{joining}
        RUBY
          wait_until("its call waits") { blocked_sessions == 1 }
          process.signal(:INT)
          expect(process.rest).to eq(["bye"])
          expect(process.status.exitstatus).to eq(7)
          wait_until("the query is cancelled", within: 2) { blocked_sessions.zero? }
        end
      end
    end
  end

  it "is no match for a kill that arrives while a server's error is being raised", :slow do
    output = Subprocess.lines(<<~RUBY)
      presence = presence_of("room:42")
      1500.times do
        thread = Thread.new { loop { Pgbus::Native.with_route(:native) { presence.leave(connection_id: "\\xff") } rescue nil } }
        sleep rand * 0.004
        thread.kill.join
      end
      puts "alive"
    RUBY

    expect(output).to eq(["alive"])
  end
end
