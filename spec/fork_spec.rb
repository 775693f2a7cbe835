# frozen_string_literal: true

require_relative "support/fault_proxy"
require_relative "support/fault_server"
require_relative "support/numbered_calls"
require_relative "support/puma_cluster"
require_relative "support/subprocess"

# Processes that fork, and processes that end, at bad moments. With a server of their own, since its log tells
# whether anybody has spoken on another's connection.
RSpec.describe "Presence in processes that fork and end", :fault_server, implementation: Implementation::AUTO do
  def caller_of(name)
    NumberedCalls.new(presence_of(name), name)
  end

  let!(:log_so_far) { server.log.size }

  # Complaints of the server during this example: of a broken protocol, of sessions that broke off.
  def complaints
    server.log[log_so_far..].lines.grep(/protocol|unexpected|invalid|FATAL|PANIC|lost synchronization/)
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  describe "forking" do
    # Threads of this process that make calls while the block runs; their calls and sessions stay theirs.
    def with_busy_threads
      enough = false
      threads = Array.new(6) { |name| in_thread { caller_of("parent#{name}").calls_until { enough } } }
      threads << in_thread { on_fibers { |name| caller_of("fiber#{name}").calls_until { enough } }.sum }
      yield
      enough = true
      threads.each { |thread| expect(thread.join(10)).to be(thread) }
      expect(threads.map(&:value)).to all(be > 20)
    ensure
      threads&.each(&:kill)
    end

    # What a reactor's fibers give; without async, what threads do.
    def on_fibers(&)
      require "async"
      Async { |task| Array.new(5) { |name| task.async { yield name } }.map(&:wait) }.wait
    rescue LoadError
      in_threads(5, &)
    end

    def own_sessions
      name = "fork_spec #{Process.pid}"
      server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = $1", name).pluck("pid")
    end

    # A child that makes calls and, if told to, has a child itself, on whose connections it does not rely.
    def family(name, exit_by:, grandchildren: 0)
      fork_child(exit_by:) do
        made = caller_of(name).calls(0...40)
        below = Array.new(grandchildren) { |number| family("#{name}.#{number}", exit_by:) }
        made += caller_of(name).calls(40...60)
        [made, *below.map(&:value)].flatten.sum
      end
    end

    it "gives each of 40 children, forked in bursts from a busy parent, its own connections", :slow do
      SpecDatabase.establish(**server.settings(application_name: "fork_spec #{Process.pid}"))
      in_threads(6) { |number| caller_of("warm#{number}").calls(0...50) }
      sessions = own_sessions
      made = []
      with_busy_threads do
        5.times do |burst|
          children = Array.new(8) do |number|
            family("child#{burst}.#{number}", exit_by: %i[exit exit!][number % 2], grandchildren: number % 3)
          end
          made.concat(children.map { |child| child.value(within: 60) })
        end
      end

      # Of eight children three have no, three have one and two have two children of their own.
      expect(made.sum).to eq(5 * 60 * (8 + 3 + 4))
      expect(sessions).not_to be_empty
      expect(sessions - own_sessions).to be_empty
      expect(complaints).to be_empty
    end

    it "lets a child end at once, though the parent is cancelling a query" do
      FaultProxy.to(server.port) do |proxy|
        SpecDatabase.establish(**server.settings(port: proxy.port))
        presence.count
        proxy.swallow_everything
        calling = in_thread { presence.count }
        wait_until("the call is under way") { Pgbus::Native.stats[:busy] == 1 }
        calling.kill.join
        child = fork_child(exit_by: :exit) { :done }

        expect(seconds { expect(child.value).to eq(:done) }).to be < 0.7
      end
    end

    it "works in a daemon", :slow do
      output = Subprocess.lines(<<~RUBY, url: server.url)
        presence = presence_of("daemon")
        presence.join(member_id: "before")
        Process.daemon(true, true)
        presence.join(member_id: "after")
        puts presence.members.map { |record| record["id"] }
      RUBY

      expect(output).to eq(%w[before after])
      expect(complaints).to be_empty
    end
  end

  describe "ending", :slow do
    def ids
      server.sql("SELECT member_id FROM pgbus_presence_members ORDER BY member_id").pluck("member_id")
    end

    it "makes calls at_exit, in finalizers, and in what killed threads still have to do" do
      output = Subprocess.lines(<<~'RUBY', url: server.url)
        presence = presence_of("room:42")
        at_exit { presence.join(member_id: "at exit, the last") }
        at_exit { Thread.new { presence.join(member_id: "in a thread at exit") }.join }
        threads = %w[killed exit].map do |name|
          Thread.new do
            sleep
          ensure
            presence.join(member_id: "in a thread's ensure (#{name})")
          end
        end
        sleep 0.01 until threads.all?(&:stop?)
        threads.first.kill.join
        kept = Object.new
        ObjectSpace.define_finalizer(kept, proc { presence.join(member_id: "in a finalizer") })
        puts "done"
      RUBY

      expect(output).to eq(["done"])
      expect(ids).to eq(["at exit, the last", "in a finalizer", "in a thread at exit", "in a thread's ensure (exit)",
                         "in a thread's ensure (killed)"])
    end

    ends = {
      "the end of its script" => ["", 0], "exit" => ["exit 3", 3], "exit!" => ["exit! 4", 4], "abort" => ["abort", 1],
      "an exception" => ["raise 'enough'", 1], "SIGTERM" => ["Process.kill(:TERM, Process.pid); sleep", :TERM],
      "SIGKILL" => ["Process.kill(:KILL, Process.pid); sleep", :KILL],
      "an exit on another thread" => ["Thread.new { exit 5 }; sleep", 5],
      "exec" => ["exec('exit 6')", 6]
    }
    # Calls under way on threads of the process, some of them waiting for a connection.
    calls = {
      "threads" => <<~RUBY,
        20.times { |number| Thread.new { presence_of("room:42").join(member_id: number) } }
      RUBY
      "fibers" => <<~RUBY
        require "async"
        Thread.new do
          Async { |task| 40.times { |number| task.async { presence_of("room:42").join(member_id: number) } } }
        end
      RUBY
    }
    calls.each do |callers, script|
      ends.each do |how, (statement, status)|
        next if callers == "fibers" && ["abort", "exit!", "SIGKILL", "the end of its script"].include?(how)

        it "neither hangs nor crashes by #{how}, with calls of #{callers} under way" do
          server.while_locked do
            Subprocess.run(<<~RUBY, url: server.url, within: 20) do |process|
              #{script}
              sleep 0.01 until Pgbus::Native.stats[:busy] == Pgbus::Native.configuration.pool_size
              puts "ready"
              #{statement}
            RUBY
              expect(process.line).to eq("ready")
              expect(seconds { process.status }).to be < 3
              expect([process.status.exitstatus, Signal.signame(process.status.termsig.to_i)].compact)
                .to include(status.is_a?(Symbol) ? status.to_s : status)
              expect(process.errors).not_to match(/panicked|\[BUG\]|free\(\)|corrupted/)
            end
          end
          wait_until("the server has seen it go") { server.blocked.empty? }
        end
      end
    end

    it "does not hang where packets vanish" do
      FaultProxy.to(server.port) do |proxy|
        url = "postgresql://postgres@127.0.0.1:#{proxy.port}/faults"
        Subprocess.run(<<~RUBY, url:, within: 20) do |process|
          presence = presence_of("room:42")
          presence.count
          puts "ready"
          $stdin.close
          sleep 0.2
          8.times { Thread.new { presence.count } }
          sleep 0.2
          exit 3
        RUBY
          process.line
          proxy.swallow_everything

          expect(seconds { process.status }).to be < 4
          expect(process.status.exitstatus).to eq(3)
        end
      end
    end
  end

  # Requests come in all the while; each joins a seat of its own.
  describe "under Puma in cluster mode", :slow do
    before { skip PumaCluster.unavailable if PumaCluster.unavailable }

    # The answers to requests that were made while the block ran, and how many got none.
    def with_requests(cluster)
      enough = false
      threads = Array.new(4) { |name| Thread.new { request(cluster, name) { enough } } }
      yield
      enough = true
      threads.each { |thread| expect(thread.join(20)).to be(thread) }
      answers, unanswered = threads.flat_map(&:value).partition { |answer| answer.is_a?(PumaCluster::Answer) }
      [answers, unanswered]
    ensure
      threads&.each(&:kill)
    end

    def request(cluster, name)
      answers = []
      (0..).each do |number|
        return answers if yield

        answers << cluster.get("r#{name}.#{number}")
      rescue SystemCallError => e
        answers << e
      end
    end

    def expect_all_joined(answers)
      expect(answers.size).to be > 30
      expect(answers.map(&:status).uniq).to eq([200])
      expect(answers.map(&:id).uniq.size).to eq(answers.size)
      joined = server.sql("SELECT connection_id FROM pgbus_presence_members").pluck("connection_id")
      expect(answers.map(&:id) - joined).to be_empty
    end

    # The master replaces its workers at the signal; none of the old ones serves in the end.
    def replace_workers(cluster, signal)
      before = cluster.workers
      answers, unanswered = with_requests(cluster) do
        cluster.signal(signal)
        wait_until("two other workers serve", within: 30) { (cluster.workers - before).size == 2 }
      end
      expect(unanswered.size).to be <= 8
      expect_all_joined(answers)
    end

    {
      "preload_app! and a phased restart, which Puma then makes a full one" => ["preload_app!", :USR1],
      "a phased restart, worker by worker" => ["", :USR1]
    }.each do |name, (settings, signal)|
      it "answers every request through #{name}" do
        PumaCluster.run(settings, url: server.url) do |cluster|
          replace_workers(cluster, signal)

          expect(cluster.stop).to be_truthy
        end
        expect(complaints).to be_empty
      end
    end

    it "answers every request while workers are forked anew from one that serves (fork_worker)" do
      PumaCluster.run("fork_worker 0", url: server.url) do |cluster|
        before = cluster.workers
        answers, unanswered = with_requests(cluster) do
          cluster.signal(:URG)
          wait_until("another worker serves", within: 30) { (cluster.workers - before).any? }
        end

        expect(unanswered.size).to be <= 8
        expect_all_joined(answers)
        expect(cluster.stop).to be_truthy
      end
      expect(complaints).to be_empty
    end
  end
end
