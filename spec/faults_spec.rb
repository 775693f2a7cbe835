# frozen_string_literal: true

require_relative "support/fault_proxy"
require_relative "support/fault_server"
require_relative "support/ledger"

# The database goes away, in every way in which databases go away.
RSpec.describe "Presence when the database goes away", :fault_server, implementation: Implementation::AUTO do
  # Calls on a stream with a member 7 and a seat c1 of it, and what they answer: first those whose repetition
  # has the same outcome.
  repeatable = {
    "join" => [->(presence) { presence.join(member_id: "7", metadata: { a: 1 })["metadata"] }, { "a" => 1 }],
    "join of a seat" => [->(presence) { presence.join(member_id: "7", connection_id: "c1")["connection_id"] }, "c1"],
    "join of a new seat" => [->(presence) { presence.join(member_id: "8", connection_id: "c2")["id"] }, "8"],
    "touch" => [->(presence) { presence.touch(member_id: "7") }, 1],
    "touch of seats" => [->(presence) { presence.touch(connection_id: %w[c1 nobody]) }, ["c1"]],
    "set_state" => [->(presence) { presence.set_state(connection_id: "c1", state: { b: 2 })["state"] }, { "b" => 2 }],
    "members" => [->(presence) { presence.members.map { |record| record["connection_id"] } }, [nil, "c1"]],
    "count" => [lambda(&:count), 2]
  }
  probe = { "the probe for seats" => [->(presence) { presence.class.reset_schema_cache! || presence.seats? }, true] }
  deletes = {
    "leave" => [->(presence) { presence.leave(member_id: "7")["id"] }, "7"],
    "leave of a seat" => [->(presence) { presence.leave(connection_id: "c1")["connection_id"] }, "c1"],
    "sweep!" => [->(presence) { presence.sweep!(older_than: Time.now - 100) }, 1]
  }
  expiry = {
    "expire_seats!" => [lambda do |presence|
      presence.class.expire_seats!(ttl_for: ->(_) { 100 }, min_ttl: 100).map { |record| record["connection_id"] }
    end, ["c1"]]
  }

  # A seat and a member, both old.
  def fill
    server.administer(FaultServer::DATABASE) do |connection|
      connection.exec(<<~SQL)
        DELETE FROM pgbus_presence_members;
        INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, joined_at, last_seen_at)
        VALUES ('#{stream.name}', '7', 'c1', now() - interval '999 s', now() - interval '999 s'),
               ('#{stream.name}', '7', NULL, now() - interval '1000 s', now() - interval '1000 s')
      SQL
    end
  end

  # Points the calls at the server through a proxy.
  def through_a_proxy(**settings)
    FaultProxy.to(server.port) do |proxy|
      SpecDatabase.establish(**server.settings(port: proxy.port, **settings))
      presence_class.reset_schema_cache!
      presence.seats?
      yield proxy
    ensure
      SpecDatabase.establish(**server.settings)
    end
  end

  # How often a statement was repeated in the block.
  def retries
    before = Pgbus::Native.stats[:retries]
    yield
    Pgbus::Native.stats[:retries] - before
  end

  # Ends the session that waits for a lock, once there is one.
  def break_the_blocked
    pid = wait_until("a call waits for the lock") { server.blocked.first }
    server.terminate(pid)
    wait_until("its session is gone") { !server.sessions.include?(pid) }
  end

  # Has the pool hold as many connections as it may, all idle.
  def fill_the_pool
    threads = nil
    server.while_locked do
      threads = Array.new(4) { in_thread { presence.count } }
      wait_until("all connections are in use") { server.blocked.size == 4 }
    end
    threads.each(&:value)
  end

  # What the call answers or raises.
  def outcome_of(call)
    call.call(presence)
  rescue PG::Error, ActiveRecord::ActiveRecordError => e
    e
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  describe "while nothing is under way" do
    dead = {
      "ended by pg_terminate_backend" => ->(server, _) { server.terminate_sessions },
      "ended by a restart" => ->(server, _) { server.restart("fast") },
      "ended by a crash" => ->(server, _) { server.restart("immediate") },
      "reset" => ->(_, proxy) { proxy.cut },
      "closed without a word" => ->(_, proxy) { proxy.cut(how: :end) }
    }
    dead.each do |how, kill|
      it "replaces connections that were #{how}, before anything is sent: the caller of a delete sees nothing" do
        through_a_proxy do |proxy|
          deletes.each_value do |call, answer|
            fill_the_pool
            fill
            kill.call(server, proxy)
            wait_until("the sessions are gone") { server.sessions.empty? && proxy.connections.zero? }

            expect(retries { expect(call.call(presence)).to eq(answer) }).to eq(0)
          end
        end
      end

      it "replaces the whole pool where it was #{how}" do
        through_a_proxy do |proxy|
          fill_the_pool
          kill.call(server, proxy)
          wait_until("the sessions are gone") { server.sessions.empty? && proxy.connections.zero? }

          expect(in_threads(8) { |number| presence.join(member_id: number)["id"] }).to eq(%w[0 1 2 3 4 5 6 7])
          expect(presence.count).to eq(8)
        end
      end
    end
  end

  describe "under a statement" do
    before { fill }

    repeatable.each do |name, (call, answer)|
      it "repeats it on a new connection, and the caller sees nothing: #{name}" do
        repeated = retries do
          calling = nil
          server.while_locked do
            calling = in_thread { call.call(presence) }
            break_the_blocked
            wait_until("the call waits again") { server.blocked.any? }
          end
          expect(calling.value).to eq(answer)
        end

        expect(repeated).to eq(1)
      end

      it "does not repeat it a second time: #{name}" do
        server.while_locked do
          calling = in_thread { call.call(presence) }
          2.times { break_the_blocked }
          expect { calling.value }.to raise_error(PG::ConnectionBad, /terminating connection/)
        end

        expect(call.call(presence)).to eq(answer)
      end
    end

    deletes.each do |name, (call, answer)|
      it "raises PG::ConnectionBad for a delete, which may have happened: #{name}" do
        repeated = retries do
          server.while_locked do
            calling = in_thread { call.call(presence) }
            break_the_blocked
            expect { calling.value }.to raise_error(PG::ConnectionBad, /terminating connection/)
          end
        end

        expect(repeated).to eq(0)
        expect(call.call(presence)).to eq(answer)
      end
    end

    context "when it is shared by several calls" do
      before do
        server.sql("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN coalesce(NEW, OLD); END $$")
        server.sql("CREATE TRIGGER wait BEFORE INSERT OR DELETE ON pgbus_presence_members
                    FOR EACH ROW EXECUTE FUNCTION wait()")
      end

      after { server.sql("DROP FUNCTION wait() CASCADE") }

      # The outcomes of calls that share few statements, whose sessions are ended while they wait for the lock 7.
      def outcomes_of_broken(calls)
        sharing = nil
        server.while_locked("SELECT pg_advisory_lock(7)") do
          sharing = in_line(calls)
          first = wait_until("their statements wait") { server.blocked.any? && waiting_calls.zero? && server.blocked }
          expect(first.size).to be <= 4
          first.each { |pid| server.terminate(pid) }
          wait_until("their sessions are gone") { (server.blocked & first).empty? }
        end
        sharing.map(&:value)
      end

      # Starts the calls while all connections are in use, so that they wait for one together.
      def in_line(calls)
        threads = nil
        server.while_locked do
          Array.new(4) { in_thread { presence.count } }
          wait_until("all connections are in use") { server.blocked.size == 4 }
          threads = calls.map { |call| in_thread { outcome_of(call) } }
          wait_until("the calls wait in line") { waiting_calls == calls.size }
        end
        threads
      end

      def waiting_calls
        Pgbus::Native::Databases.stats.fetch(:waiting)
      end

      it "is repeated for each of them" do
        joins = Array.new(30) { |id| ->(presence) { presence.join(member_id: id, connection_id: id)["id"] } }
        repeated = retries { expect(outcomes_of_broken(joins)).to eq(Array.new(30, &:to_s)) }

        expect(repeated).to be_between(1, 4)
        expect(presence.count).to eq(32)
      end

      it "raises PG::ConnectionBad to each of them where it deletes" do
        30.times { |number| presence.join(member_id: number, connection_id: number) }
        leaves = Array.new(30) { |number| ->(presence) { presence.leave(connection_id: number)["id"] } }

        expect(outcomes_of_broken(leaves)).to all(be_an_instance_of(PG::ConnectionBad))
        expect(leaves.map { |call| call.call(presence) }).to eq(Array.new(30, &:to_s))
      end
    end

    it "cancels on the server what it repeats, where the network broke: nothing takes effect late" do
      through_a_proxy do |proxy|
        calling = nil
        server.while_locked("SELECT * FROM pgbus_presence_members FOR UPDATE") do
          calling = in_thread { presence.join(member_id: "7", connection_id: "c1")["connection_id"] }
          first = wait_until("the call waits") { server.blocked.first }
          proxy.cut
          wait_until("the call waits again") { (server.blocked - [first]).any? }
          wait_until("only the repeated one waits") { !server.blocked.include?(first) }
        end

        expect(calling.value).to eq("c1")
      end
    end

    it "works for a role that may not ask for its server process" do
      server.sql("CREATE ROLE plain LOGIN")
      server.sql("GRANT ALL ON pgbus_presence_members TO plain")
      server.sql("REVOKE EXECUTE ON FUNCTION pg_stat_get_activity FROM PUBLIC")
      SpecDatabase.establish(**server.settings(username: "plain", variables: { work_mem: "5MB" }))
      connects = Pgbus::Native.stats[:connects]

      expect(presence.join(member_id: "9")["id"]).to eq("9")
      expect(Pgbus::Native.stats[:connects]).to eq(connects + 1)
    ensure
      server.sql("GRANT EXECUTE ON FUNCTION pg_stat_get_activity TO PUBLIC")
      server.sql("DROP OWNED BY plain")
      server.sql("DROP ROLE plain")
    end

    it "cancels on the server what it gives up after the second time" do
      through_a_proxy do |proxy|
        server.while_locked("SELECT * FROM pgbus_presence_members FOR UPDATE") do
          calling = in_thread { presence.join(member_id: "7", connection_id: "c1", metadata: { given: "up" }) }
          first = wait_until("the call waits") { server.blocked.first }
          proxy.cut
          wait_until("the call waits again") { (server.blocked - [first]).any? }
          proxy.cut
          expect { calling.value }.to raise_error(PG::ConnectionBad)
          wait_until("nothing waits any more") { server.blocked.empty? }
        end

        expect(presence.members.map { |member| member["metadata"] }).to eq([{}, {}])
      end
    end

    it "raises PG::ConnectionBad where seats are being expired, and the next sweep reports them" do
      ttl_for = ->(_) { 100 }
      server.while_locked("SELECT 1") do |lock|
        expiring = in_thread do
          lock_late = ->(_) { lock.exec("LOCK TABLE pgbus_presence_members") && 100 }
          presence_class.expire_seats!(ttl_for: lock_late, min_ttl: 100)
        end
        break_the_blocked
        expect { expiring.value }.to raise_error(PG::ConnectionBad)
      end
      expect(changes).to be_empty

      expect(presence_class.expire_seats!(ttl_for:, min_ttl: 100)).to match([a_hash_including("connection_id" => "c1")])
      expect(changes.size).to eq(1)
    end
  end

  describe "in mid-reply" do
    # Cuts the network at many places of the answer to the call, and yields what became of the call. The
    # answer is that to the statement alone, or that to preparing it as well, as on a new connection.
    def with_cuts(proxy, call, prepared:)
      size = size_of_answer(proxy, call, prepared)
      (0...size).step([size / 8, 1].max) do |bytes|
        fill
        proxy.cut unless prepared
        prepared ? call.call(presence) : presence.touch(member_id: "nobody")
        fill
        proxy.cut_after(bytes, how: bytes.even? ? :reset : :end)
        yield bytes, Timeout.timeout(5) { outcome_of(call) }
        expect(proxy.spare).to be(false)
      end
    end

    def size_of_answer(proxy, call, prepared)
      fill
      proxy.cut
      presence.touch(member_id: "nobody")
      call.call(presence) if prepared
      fill
      proxy.answered!
      call.call(presence)
      fill
      proxy.answered!
    end

    { "the statement" => true, "preparing the statement" => false }.each do |what, prepared|
      repeatable.merge(probe).each do |name, (call, answer)|
        it "repeats the call wherever the answer to #{what} was cut: #{name}" do
          through_a_proxy do |proxy|
            with_cuts(proxy, call, prepared:) { |bytes, outcome| expect([bytes, outcome]).to eq([bytes, answer]) }
          end
        end
      end
    end

    deletes.merge(expiry).each do |name, (call, answer)|
      it "raises PG::ConnectionBad for a delete wherever its answer was cut: #{name}" do
        through_a_proxy do |proxy|
          with_cuts(proxy, call, prepared: true) do |bytes, outcome|
            # An expiry looks before it deletes, and looks again if it must.
            looking = name == "expire_seats!" && outcome == answer && bytes < 80
            expect(outcome).to be_an_instance_of(PG::ConnectionBad) unless looking
          end
        end
      end

      it "tells the truth where the connection broke before the delete was sent: #{name}" do
        through_a_proxy do |proxy|
          with_cuts(proxy, call, prepared: false) do |_, outcome|
            expect(outcome).to eq(answer).or be_an_instance_of(PG::ConnectionBad)
          end
        end
      end
    end

    it "answers with all members or raises, however many there are and wherever the answer was cut" do
      server.sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id)
                  SELECT $1, n, n FROM generate_series(1, 2000) n", stream.name)
      through_a_proxy do |proxy|
        presence.members
        proxy.answered!
        presence.members
        size = proxy.answered!
        [10, 8_191, 8_192, 16_384, size / 2, size - 10].each do |bytes|
          [0, 0.002].each do |delay|
            presence.count
            proxy.delay = delay
            proxy.cut_after(bytes)
            expect(presence.members.map { |member| member["id"] }.tally.values).to eq([1] * 2000)
            expect(proxy.spare).to be(false)
          end
        end
      end
    end
  end

  it "is patient with a slow network: each caller gets its own answer" do
    through_a_proxy do |proxy|
      proxy.delay = 0.02
      ids = in_threads(8) { |number| Array.new(3) { presence.join(member_id: number)["id"] }.uniq }

      expect(ids).to eq(%w[0 1 2 3 4 5 6 7].zip)
    end
  end

  it "lets other threads run while rows trickle in over a slow network" do
    server.sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id)
                SELECT $1, n, n FROM generate_series(1, 3000) n", stream.name)
    through_a_proxy do |proxy|
      proxy.delay = 0.01
      listing = in_thread { presence.members.size }
      longest = 0
      while listing.alive?
        before = now
        sleep 0.001
        longest = [longest, now - before].max
      end

      expect(listing.value).to eq(3000)
      expect(longest).to be < 0.5
    end
  end

  describe "where no connection can be made" do
    it "raises ActiveRecord::ConnectionNotEstablished at once, and works when the server is back" do
      presence.join(member_id: "7")
      server.stop("fast")
      10.times do
        expect { Timeout.timeout(1) { presence.join(member_id: "8") } }
          .to raise_error(ActiveRecord::ConnectionNotEstablished)
      end
      server.start

      expect(presence.leave(member_id: "7")).to include("id" => "7")
      expect(presence.count).to eq(0)
    end

    it "raises it on a Unix socket too" do
      SpecDatabase.establish(**server.settings(host: server.socket))
      presence.join(member_id: "7")
      server.stop("fast")
      expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished, /#{server.socket}/)
      server.start

      expect(presence.count).to eq(1)
    end

    it "raises it where the network refuses, and works when it no longer does" do
      through_a_proxy do |proxy|
        proxy.refuse
        proxy.cut
        expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished, /port #{proxy.port}/)
        proxy.heal

        expect(presence.count).to eq(0)
      end
    end

    it "raises it while the server has no room for another connection" do
      server.sql("ALTER ROLE postgres CONNECTION LIMIT 0")
      server.sql("CREATE ROLE app LOGIN CONNECTION LIMIT 0 IN ROLE postgres")
      SpecDatabase.establish(**server.settings(username: "app"))
      expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished, /too many connections/)
      server.sql("ALTER ROLE app CONNECTION LIMIT 10")

      expect(presence.count).to eq(0)
    ensure
      server.sql("ALTER ROLE postgres CONNECTION LIMIT -1")
    end
  end

  # Packets vanish: no answer, no end of stream, no reset.
  describe "with half-open connections" do
    it "ends a call at once by Timeout, and the next one has another connection" do
      through_a_proxy do |proxy|
        presence.join(member_id: "7")
        proxy.swallow
        took = seconds { expect { Timeout.timeout(0.3) { presence.members } }.to raise_error(Timeout::Error) }

        expect(took).to be < 1
        expect(Timeout.timeout(1) { presence.members.size }).to eq(1)
      end
    end

    it "is itself again after each connection of the pool has been given up once" do
      through_a_proxy do |proxy|
        fill_the_pool
        proxy.swallow
        ends = in_threads(4) do
          Timeout.timeout(0.3) { presence.count }
        rescue Timeout::Error
          :given_up
        end
        expect(ends).to eq([:given_up] * 4)

        expect(in_threads(8) { |number| presence.join(member_id: number)["id"] }).to eq(%w[0 1 2 3 4 5 6 7])
      end
    end

    it "ends a call at once by Timeout where the server accepts and says nothing" do
      through_a_proxy do |proxy|
        proxy.swallow_everything
        proxy.cut
        took = seconds { expect { Timeout.timeout(0.3) { presence.count } }.to raise_error(Timeout::Error) }
        expect(took).to be < 1
        proxy.heal

        expect(Timeout.timeout(5) { presence.count }).to eq(0)
      end
    end

    it "gives a server that accepts and says nothing connect_timeout seconds" do
      through_a_proxy(connect_timeout: 2) do |proxy|
        proxy.swallow_everything
        proxy.cut
        took = seconds do
          expect { Timeout.timeout(6) { presence.count } }.to raise_error(ActiveRecord::ConnectionNotEstablished)
        end

        expect(took).to be_between(1, 4)
      end
    end

    it "repeats a join that the network takes no more of, after tcp_user_timeout", :slow do
      through_a_proxy(tcp_user_timeout: 1000) do |proxy|
        presence.join(member_id: "7")
        proxy.stall
        metadata = { "text" => "x" * 20_000_000 }

        expect(Timeout.timeout(20) { presence.join(member_id: "7", metadata:)["metadata"] == metadata }).to be(true)
        expect(presence.count).to eq(1)
      end
    end
  end

  # Eight callers make mixed calls, each on seats of its own; whatever is acknowledged is held against all later
  # answers and against the table in the end.
  describe "under load", :slow do
    def under_load(&)
      ledgers = Array.new(8) { |number| Ledger.new(presence_of("load:#{number}"), "load:#{number}", number) }
      at_work(ledgers, &)
      ledgers.each do |ledger|
        # Without anyone's help.
        expect(ledger.call(:join)).to be(true)
        ledger.audit(server.sql("SELECT * FROM pgbus_presence_members WHERE stream_name = $1", ledger.stream_name))
      end
      expect(ledgers.map(&:calls)).to all(be > 5)
      ledgers.flat_map(&:failures)
    end

    def at_work(ledgers)
      enough = false
      threads = ledgers.map { |ledger| in_thread { ledger.work { enough } } }
      yield
      enough = true
      threads.each { |thread| thread.join(10)&.value || raise("a call still runs after 10 s") }
    ensure
      threads&.each(&:kill)
    end

    # A delete may fail with its connection. What can be repeated fails only where the second connection broke
    # too, or where a new one could not be made, so that each such failure has its faults during the call.
    def expect_reasons(failures, faults)
      failures.each do |failure|
        least = failure.delete? || failure.error.is_a?(ActiveRecord::ConnectionNotEstablished) ? 1 : 2
        # A connection that was in use a moment ago is not looked at before a statement that can be repeated.
        during = faults.count { |from, to| to >= failure.started - 0.05 && from <= failure.ended }
        expect([failure, during]).to match([failure, a_value >= least])
      end
    end

    def for_seconds(seconds)
      over = now + seconds
      yield while now < over
    end

    it "loses nothing to pg_terminate_backend in a loop of 20 s" do
      faults = []
      failures = nil
      repeated = retries do
        failures = under_load do
          for_seconds(20) do
            from = now
            server.terminate_sessions
            faults << [from, now]
            sleep 0.1
          end
        end
      end

      expect(repeated).to be > 50
      expect_reasons(failures, faults)
    end

    # Runs the block while the machine has more to do than it can: what the server has received waits its turn.
    def on_a_busy_machine
      processes = Array.new(3) { Process.spawn(RbConfig.ruby, "-e", "over = Time.now + 60; nil while Time.now < over") }
      yield
    ensure
      processes&.each { |process| Process.kill(:KILL, process) && Process.wait(process) }
    end

    # How often it was cut.
    def cut_again_and_again
      through_a_proxy do |proxy|
        random = Random.new(8)
        failures = under_load do
          for_seconds(8) do
            random.rand(4).zero? ? proxy.cut : proxy.cut_after(random.rand(400), how: %i[reset end].sample(random:))
            sleep 0.05
          end
          proxy.spare
        end
        expect_reasons(failures, proxy.cuts.zip(proxy.cuts))
        proxy.cuts.size
      end
    end

    it "loses nothing to a network that is cut again and again" do
      expect(cut_again_and_again).to be > 50
    end

    # There a lost statement may begin long after its cancel request has come and found nothing to cancel.
    it "loses nothing to a network that is cut again and again, on a busy machine" do
      on_a_busy_machine { expect(cut_again_and_again).to be > 50 }
    end

    %w[fast immediate].each do |mode|
      it "loses nothing to pg_ctl restart -m #{mode}, and no call that begins afterwards fails" do
        back = []
        failures = under_load do
          3.times do
            sleep 1
            server.restart(mode)
            back << now
          end
          sleep 1
        end

        expect(failures.map(&:seconds)).to all(be < 5)
        back.each do |time|
          late = failures.select { |failure| failure.started.between?(time, time + 0.9) }
          expect(late).to be_empty
        end
      end
    end

    it "loses nothing to a server that is gone for 5 s, and no call that begins afterwards fails" do
      back = nil
      failures = under_load do
        sleep 1
        server.stop("fast")
        sleep 5
        server.start
        back = now
        sleep 1
      end

      expect(failures.size).to be > 20
      expect(failures.map(&:seconds)).to all(be < 4)
      expect(failures.map(&:started)).to all(be < back)
    end

    it "loses nothing to a server process that is killed, for which the server restarts all of them" do
      failures = under_load do
        3.times do
          sleep 1
          server.crash
        end
        sleep 1
      end

      expect(failures.map(&:seconds)).to all(be < 5)
    end

    it "loses nothing to a server process that hangs: other connections serve, the call can be interrupted" do
      others = server.sessions
      SpecDatabase.establish(**server.settings)
      presence.count
      hanging = server.sessions - others
      Process.kill(:STOP, *hanging)
      begin
        took = seconds do
          expect { Timeout.timeout(0.3) { presence.join(member_id: "7") } }.to raise_error(Timeout::Error)
        end
        expect(took).to be < 1
        expect(under_load { sleep 2 }).to be_empty
      ensure
        Process.kill(:CONT, *hanging)
      end
      wait_until("the interrupted session has ended") { !server.sessions.include?(hanging.first) }

      expect(server.sql("SELECT * FROM pgbus_presence_members WHERE member_id = '7'")).to be_empty
    end
  end

  describe "in a transaction" do
    it "raises PG::ConnectionBad, nothing of the transaction remains, and the next call works" do
      expect do
        ActiveRecord::Base.transaction do
          presence.join(member_id: "7", connection_id: "c1")
          server.terminate_sessions
          wait_until("the session is gone") { server.sessions.empty? }
          presence.join(member_id: "8", connection_id: "c2")
        end
      end.to raise_error(PG::ConnectionBad)
      expect(presence.count).to eq(0)
      expect(presence.join(member_id: "9")["id"]).to eq("9")
    end
  end

  # With `implementation`, which names the route.
  describe "on ActiveRecord's connection", implementation: Implementation::ACTIVE_RECORD do
    it "raises PG::ConnectionBad once, and the next call works without anyone's help" do
      presence.join(member_id: "7")
      server.terminate_sessions
      wait_until("the session is gone") { server.sessions.empty? }
      begin
        presence.join(member_id: "8")
      rescue PG::Error => e
        expect(e).to be_a(PG::ConnectionBad)
      end

      expect(presence.join(member_id: "8")["id"]).to eq("8")
    end

    it "works again after a restart, whether or not the thread holds a connection" do
      ActiveRecord::Base.connection.execute("SELECT 1")
      presence.count
      server.restart("fast")
      begin
        presence.count
      rescue PG::Error => e
        expect(e).to be_a(PG::ConnectionBad)
      end

      expect(presence.count).to eq(0)
    end
  end
end
