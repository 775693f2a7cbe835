# frozen_string_literal: true

require "socket"
require_relative "support/tiny_scheduler"

# Processes, threads and fibers. What waits here waits for a lock that another connection holds.
RSpec.describe "Presence among others" do
  # Processes, threads and fibers each write rows of their own and check that what they get is theirs.
  def look_after_own_rows(name, rounds: 20)
    rounds.times do |round|
      id = "#{name}:#{round}"
      metadata = { "id" => id, "text" => id * 50 }
      presence = presence_of("room:#{name}")
      joined = presence.join(member_id: id, connection_id: id, metadata:)
      listed = presence.members.map { |record| record["id"] }
      touched = presence.touch(connection_id: [id, "nobody"])
      left = presence.leave(connection_id: id)

      expect(joined.values_at("id", "connection_id", "metadata")).to eq([id, id, metadata])
      expect([listed, touched, left["metadata"]]).to eq([[id], [id], metadata])
    end
    name
  end

  # Statements that run or wait in our database, other than the asking one.
  def running_statements
    sql("SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
         AND pid <> pg_backend_pid() AND query ILIKE '%pgbus_presence_members%'")
  end

  def ids
    rows.map { |row| row["member_id"] }
  end

  Implementation::GEM.each do |implementation|
    describe "processes, #{implementation.name}", implementation: do
      %i[exit exit!].each do |exit_by|
        it "work after a fork, parent and child, and after the child has ended by #{exit_by}" do
          presence.join(member_id: "parent")
          presence.members
          child = fork_child(exit_by:) do
            GC.start
            presence.join(member_id: "child")
            presence.members.map { |record| record["id"] }
          end

          expect(child.value).to eq(%w[parent child])
          expect(presence.members.map { |record| record["id"] }).to eq(%w[parent child])
          expect(look_after_own_rows("parent")).to eq("parent")
        end
      end

      it "leave the parent's sessions alone: they are the same ones after children have come and gone" do
        in_threads(3) { presence.count }
        presence.count
        sessions = -> { sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database()").pluck("pid") }
        before = sessions.call
        fork_child(exit_by: :exit) { GC.start }.value
        fork_child(exit_by: :exit) { 3.times { presence.count } }.value
        fork_child(exit_by: :exit!) { presence.count }.value

        expect(before - sessions.call).to be_empty
        expect(presence.count).to eq(0)
      end

      it "do not mix up their answers, while all of them work at once" do
        presence.count
        children = Array.new(4) { |number| fork_child { look_after_own_rows("child#{number}") } }

        expect(look_after_own_rows("parent")).to eq("parent")
        expect(children.map(&:value)).to eq(%w[child0 child1 child2 child3])
      end

      it "may fork while another thread is in a call" do
        presence.join(member_id: "7")
        blocked = nil
        child = nil
        while_locked("SELECT * FROM pgbus_presence_members WHERE member_id = '7' FOR UPDATE") do
          blocked = in_thread { presence.join(member_id: "7", metadata: { by: "parent" }) }
          wait_until("the parent's call waits") { blocked_sessions == 1 }
          child = fork_child(exit_by: :exit) { presence.join(member_id: "8")["id"] }

          expect(child.value).to eq("8")
          expect(blocked).to be_alive
        end

        expect(blocked.value["metadata"]).to eq("by" => "parent")
      end

      it "may have children of children" do
        presence.count
        child = fork_child do
          presence.join(member_id: "child")
          grandchild = fork_child { presence.join(member_id: "grandchild")["id"] }
          [grandchild.value, presence.count]
        end

        expect(child.value).to eq(["grandchild", 2])
        expect(presence.count).to eq(2)
      end

      it "report each expired seat once, however many processes expire at once" do
        sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, last_seen_at)
             SELECT 'room:' || n % 7, n, 'c' || n, now() - interval '150 s' FROM generate_series(1, 2000) n")
        children = Array.new(4) do
          fork_child do
            records = presence_class.expire_seats!(ttl_for: ->(_) { 100 }, min_ttl: 100)
            [records.map { |record| record["connection_id"] }, changes.map { |_, change| change[:connection_id] }]
          end
        end
        returned, reported = children.map(&:value).transpose.map(&:flatten)

        expect(returned).to match_array(Array.new(2000) { |number| "c#{number + 1}" })
        expect(reported).to match_array(returned)
      end
    end

    describe "threads, #{implementation.name}", implementation: do
      it "get each its own results, 32 of them" do
        expect(in_threads(32) { |number| look_after_own_rows("thread#{number}") })
          .to eq(Array.new(32) { |number| "thread#{number}" })
      end

      it "get each its own errors" do
        outcomes = in_threads(32) do |number|
          if number.even?
            presence.join(member_id: number)["id"]
          else
            presence.sweep!(older_than: "no time #{number}")
          end
        rescue PG::InvalidDatetimeFormat => e
          e.message[/no time \d+/]
        end

        expect(outcomes).to eq(Array.new(32) { |number| number.even? ? number.to_s : "no time #{number}" })
      end

      it "run while another thread's call waits" do
        presence.count
        ticks = 0
        while_locked do
          blocked = in_thread { presence.count }
          wait_until("the call waits") { blocked_sessions == 1 }
          wait_until("this thread runs on") { (ticks += 1) > 20 }

          expect(blocked).to be_alive
          blocked.kill.join
        end
      end
    end
  end

  describe "a call that is interrupted", implementation: Implementation::NATIVE do
    before { presence.join(member_id: "before") }

    def expect_all_is_well
      wait_until("no statement is left on the server") { running_statements.empty? }
      wait_until("no connection is left in use") { Pgbus::Native.stats[:busy].zero? }
      20.times { |number| expect(presence.join(member_id: "after#{number}")["id"]).to eq("after#{number}") }
      in_threads(8) { |number| look_after_own_rows("after#{number}", rounds: 3) }
      expect(ids).not_to include("interrupted")
    end

    it "ends at once by Timeout, and its query on the server with it" do
      while_locked do
        took = seconds do
          expect { Timeout.timeout(0.2) { presence.join(member_id: "interrupted") } }.to raise_error(Timeout::Error)
        end

        expect(took).to be < 1.5
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    it "ends at once by Thread#kill, and its query on the server with it" do
      while_locked do
        thread = in_thread { presence.join(member_id: "interrupted") }
        wait_until("the call waits") { blocked_sessions == 1 }

        expect(thread.kill.join(1.5)).to be(thread)
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    it "ends at once by Thread#raise, with that error, and its query on the server with it" do
      while_locked do
        thread = in_thread { presence.join(member_id: "interrupted") }
        wait_until("the call waits") { blocked_sessions == 1 }
        thread.raise(IOError, "enough")

        expect { thread.join(1.5) }.to raise_error(IOError, "enough")
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    it "ends at once while it waits for a connection of the pool" do
      while_locked do
        waiting = Array.new(10) { in_thread { presence.join(member_id: "interrupted") } }
        wait_until("the pool's connections wait") { blocked_sessions == 4 }

        expect(waiting.map { |thread| thread.kill.join(2) }).to eq(waiting)
        wait_until("the queries are cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    it "ends at once while it waits for a server that does not answer" do
      server = TCPServer.new("127.0.0.1", 0)
      with_connection_settings(host: "127.0.0.1", port: server.local_address.ip_port) do
        took = seconds do
          expect { Timeout.timeout(0.2) { presence.join(member_id: "interrupted") } }.to raise_error(Timeout::Error)
        end

        expect(took).to be < 1.5
      end
      expect_all_is_well
    ensure
      server&.close
    end

    it "leaves by an Interrupt, as Ctrl-C has it" do
      while_locked do
        child = fork_child(exit_by: :exit) do
          trap("INT", "DEFAULT")
          presence.join(member_id: "interrupted")
        rescue Interrupt
          "interrupted by Ctrl-C"
        end
        wait_until("the child's call waits") { blocked_sessions == 1 }
        Process.kill(:INT, child.pid)

        expect(child.value(within: 5)).to eq("interrupted by Ctrl-C")
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end
      expect_all_is_well
    end

    it "goes on after a signal whose handler returns" do
      child = nil
      reader, writer = IO.pipe
      while_locked do
        child = fork_child do
          trap("USR1") { writer.write("handled") }
          presence.join(member_id: "7")["id"]
        end
        writer.close
        wait_until("the child's call waits") { blocked_sessions == 1 }
        Process.kill(:USR1, child.pid)
        wait_until("the handler has run") { reader.wait_readable(0) }
      end

      expect(child.value).to eq("7")
    end

    it "never leaves an answer behind for the next call, whenever it is interrupted", :slow do
      random = Random.new(7)
      interrupted = 0
      2000.times do |number|
        begin
          Timeout.timeout(random.rand * 0.001) { presence.join(member_id: "x", metadata: { number: }) }
        rescue Timeout::Error
          interrupted += 1
        end
        expect(presence.join(member_id: "y",
                             metadata: { number: })).to include("id" => "y",
                                                                "metadata" => { "number" => number })
      end

      expect(interrupted).to be > 10
      wait_until("no statement is left on the server") { running_statements.empty? }
      expect(Pgbus::Native.stats[:connections]).to be <= Pgbus::Native.configuration.pool_size
    end
  end

  describe "fibers", implementation: Implementation::NATIVE do
    # The lock ends by itself: a scheduler whose thread is blocked could not end it.
    def lock_table(connection)
      connection.exec("SET idle_in_transaction_session_timeout = '5s'; BEGIN; LOCK TABLE pgbus_presence_members")
    end

    schedulers = {
      "a scheduler of few lines" => ->(&block) { TinyScheduler.run(&block) },
      "async" => lambda do |&block|
        thread = Thread.new { Async(&block).wait }
        thread.report_on_exception = false
        raise "fibers still running after 30 s" unless thread.join(30)
      end
    }

    schedulers.each do |name, run|
      context "with #{name}" do
        before do
          require "async" if name == "async"
        rescue LoadError => e
          skip e.message
        end

        define_method(:with_scheduler) { |&block| run.call { implementation.use(&block) } }

        it "run while another's call waits" do
          presence.count
          events = []
          SpecDatabase.connect do |connection|
            lock_table(connection)
            with_scheduler do
              Fiber.schedule do
                presence.join(member_id: "slow")
                events << :joined
              end
              Fiber.schedule do
                5.times do
                  sleep 0.02
                  events << :tick
                end
                connection.sync_exec("COMMIT")
                events << :unlocked
              end
            end
          end

          expect(events).to eq([*[:tick] * 5, :unlocked, :joined])
        end

        it "get each its own results, 100 of them on a small pool" do
          names = []
          with_scheduler do
            100.times { |number| Fiber.schedule { names << look_after_own_rows("fiber#{number}", rounds: 2) } }
          end

          expect(names).to match_array(Array.new(100) { |number| "fiber#{number}" })
          expect(Pgbus::Native.stats[:connections]).to be <= Pgbus::Native.configuration.pool_size
        end

        it "get each its own errors" do
          errors = []
          with_scheduler do
            20.times do |number|
              Fiber.schedule do
                presence.sweep!(older_than: "no time #{number}")
              rescue PG::InvalidDatetimeFormat => e
                errors << e.message[/\d+/].to_i
              end
            end
          end

          expect(errors).to match_array(0...20)
        end

        it "and threads share the pool" do
          thread_names = in_thread { Array.new(5) { |number| look_after_own_rows("thread#{number}", rounds: 5) } }
          names = []
          with_scheduler do
            10.times { |number| Fiber.schedule { names << look_after_own_rows("fiber#{number}", rounds: 5) } }
          end

          expect([names.size, thread_names.value.size]).to eq([10, 5])
        end
      end
    end

    it "may be interrupted by Timeout: the query is cancelled and the next call is right" do
      presence.count
      outcome = nil
      SpecDatabase.connect do |connection|
        lock_table(connection)
        TinyScheduler.run do
          implementation.use { Timeout.timeout(0.2) { presence.join(member_id: "interrupted") } }
        rescue Timeout::Error
          outcome = :timeout
        end
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end

      expect(outcome).to eq(:timeout)
      expect(presence.join(member_id: "after")["id"]).to eq("after")
      expect(ids).to eq(["after"])
    end

    it "may be interrupted by async's timeout: the query is cancelled and the next call is right" do
      require "async"
      presence.count
      SpecDatabase.connect do |connection|
        lock_table(connection)
        outcome = in_thread do
          Async do |task|
            # Not with its own error: async 1 takes that for the end of a wait for IO.
            task.with_timeout(0.2, IOError) { presence.join(member_id: "interrupted") }
          rescue IOError
            :timeout
          end.wait
        end

        expect(outcome.value).to eq(:timeout)
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end

      expect(presence.join(member_id: "after")["id"]).to eq("after")
      expect(ids).to eq(["after"])
    end

    it "may be stopped by async: the query is cancelled and the next call is right" do
      require "async"
      presence.count
      SpecDatabase.connect do |connection|
        lock_table(connection)
        stopped = Thread.new do
          Async do |task|
            joining = task.async { implementation.use { presence.join(member_id: "stopped") } }
            task.sleep(0.2)
            joining.stop
            :stopped
          end.wait
        end

        expect(stopped.value).to eq(:stopped)
        wait_until("the query is cancelled") { blocked_sessions.zero? }
      end

      expect(presence.join(member_id: "after")["id"]).to eq("after")
      expect(ids).to eq(["after"])
    end

    it "work without a scheduler, as threads do" do
      names = Array.new(3) { |number| Fiber.new { look_after_own_rows("fiber#{number}", rounds: 2) }.resume }

      expect(names).to eq(%w[fiber0 fiber1 fiber2])
    end
  end
end
