# frozen_string_literal: true

# What the gem adds: its settings, and the choice of the connection that runs a call.
RSpec.describe "Pgbus::Native", implementation: Implementation::AUTO do
  let(:base) { ActiveRecord::Base }

  # Calls that the block made on each route.
  def calls
    before = Pgbus::Native.stats[:calls]
    yield
    Pgbus::Native.stats[:calls].to_h { |route, count| [route, count - before.fetch(route)] }
  end

  # The native connections, as the server sees them: all but ActiveRecord's and our own.
  # The sessions that neither this example's helpers nor ActiveRecord hold.
  def native_sessions
    pids = sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND backend_type = 'client backend'").pluck("pid").map(&:to_i)
    pids - base.connection_pool.connections.filter_map { |connection| connection.raw_connection.backend_pid }
  end

  # A native pool of its own for the time of the block.
  def with_native_settings(**settings, &)
    before = settings.to_h { |name, _| [name, Pgbus::Native.configuration.public_send(name)] }
    Pgbus::Native.configure { |config| settings.each { |name, value| config.public_send(:"#{name}=", value) } }
    with_connection_settings(&)
  ensure
    Pgbus::Native.configure { |config| before.each { |name, value| config.public_send(:"#{name}=", value) } }
  end

  it "is enabled, and follows pgbus 0.18" do
    expect(Pgbus::Native).to be_enabled
    expect(Pgbus::Native::VERSION).to start_with("0.18.")
  end

  describe ".configure" do
    it "yields the settings, which have defaults" do
      Pgbus::Native.configure { |config| expect(config).to be(Pgbus::Native.configuration) }

      expect(Pgbus::Native.configuration).to have_attributes(pool_size: 4, route: :auto)
    end

    it "refuses a route that there is not, and a pool without connections" do
      expect { Pgbus::Native.configure { |config| config.route = :ruby } }.to raise_error(ArgumentError, /:ruby/)
      expect { Pgbus::Native.configure { |config| config.pool_size = 0 } }.to raise_error(ArgumentError, /pool_size/)
      expect { Pgbus::Native.configure { |config| config.pool_size = "4" } }.to raise_error(ArgumentError)
      expect(Pgbus::Native.configuration).to have_attributes(pool_size: 4, route: :auto)
    end

    it "sets the route for every thread" do
      Pgbus::Native.configure { |config| config.route = :active_record }
      made = calls { Thread.new { Fiber.new(storage: {}) { presence.count }.resume }.join }

      expect(made).to include(native: 0, active_record: 1)
    ensure
      Pgbus::Native.configure { |config| config.route = :auto }
    end

    it "bounds the native connections of a database" do
      others = native_sessions
      with_native_settings(pool_size: 2) do
        in_threads(16) { 10.times { presence.count } }

        expect(Pgbus::Native.stats).to include(pool_size: 2, connections: be_between(1, 2))
        expect((native_sessions - others).size).to be_between(1, 2)
      end
    end

    it "closes the native connections when ActiveRecord's pool is told to disconnect, and connects again" do
      others = native_sessions
      with_native_settings(pool_size: 2) do
        presence.join(member_id: "7")
        expect((native_sessions - others).size).to eq(1)

        base.connection_pool.disconnect!
        wait_until("the server has noticed") { (native_sessions - others).empty? }
        expect(Pgbus::Native.stats).to include(connections: 0)
        expect(presence.count).to eq(1)
      end
    end

    it "has a call that gets no connection in time fail as ActiveRecord's would" do
      with_native_settings(pool_size: 1, checkout_timeout: 0.2) do
        presence.join(member_id: "7")
        while_locked do
          blocked = in_thread { presence.join(member_id: "7") }
          wait_until("the only connection waits") { blocked_sessions == 1 }

          expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished)
          blocked.kill.join
          wait_until("its query is cancelled") { blocked_sessions.zero? }
        end
      end
    end
  end

  describe ".with_route" do
    it "runs the block on the route and gives what the block gives" do
      made = calls { expect(Pgbus::Native.with_route(:active_record) { presence.count }).to eq(0) }
      expect(made).to include(native: 0, active_record: 1)

      made = calls { Pgbus::Native.with_route(:native) { presence.count } }
      expect(made).to include(native: 1, active_record: 0)
    end

    it "ends with the block, however that ends, and may be nested" do
      made = calls do
        Pgbus::Native.with_route(:active_record) do
          Pgbus::Native.with_route(:native) { presence.count }
          presence.count
          raise IOError
        end
      rescue IOError
        presence.count
      end

      expect(made).to include(native: 2, active_record: 1)
    end

    it "holds for the calling thread and fiber, not for others" do
      others = Thread::Queue.new
      thread = Thread.new { others.pop.call }
      fiber = Fiber.new { presence.count }
      made = calls do
        Pgbus::Native.with_route(:active_record) do
          others << -> { presence.count }
          thread.join
          fiber.resume
        end
      end

      expect(made).to include(native: 2, active_record: 0)
    end

    it "refuses a route that there is not" do
      expect { Pgbus::Native.with_route(:ruby) { presence.count } }.to raise_error(ArgumentError, /:ruby/)
    end
  end

  describe ".stats" do
    it "tells of the pool, the calls by route and the retries" do
      presence.count

      expect(Pgbus::Native.stats).to include(
        pool_size: 4, connections: Integer, retries: Integer,
        calls: { native: a_value > 0, active_record: Integer }
      )
    end

    it "counts each call once, on the route that it took" do
      made = calls do
        presence.seats?
        presence.join(member_id: "7")
        presence.join(member_id: "7", connection_id: "c1")
        presence.members
        presence.touch(connection_id: ["c1"])
      end

      expect(made[:active_record]).to eq(0)
      expect(made[:native]).to be_between(4, 5)
    end
  end

  describe "the route of a call" do
    before { presence.seats? }

    def expect_native(&)
      expect(calls(&)).to match(native: a_value > 0, active_record: 0)
    end

    def expect_active_record(&)
      expect(calls(&)).to match(native: 0, active_record: a_value > 0)
    end

    # Every call there is.
    def every_call
      presence.join(member_id: "7")
      presence.join(member_id: "7", connection_id: "c1")
      presence.touch(member_id: "7")
      presence.touch(connection_id: "c1")
      presence.set_state(connection_id: "c1", state: { a: 1 })
      presence.members
      presence.count
      presence_class.expire_seats!(ttl_for: ->(_) { 1 }, min_ttl: 1)
      presence.leave(connection_id: "c1")
      presence.leave(member_id: "7")
      presence.sweep!(older_than: "now")
      presence_class.reset_schema_cache!
      presence.seats?
    end

    it "is native outside a transaction, whether or not the thread has a connection of ActiveRecord's" do
      base.connection.select_value("SELECT 1")
      expect_native { every_call }
      base.connection_handler.clear_active_connections!(:all)
      expect_native { every_call }
    end

    it "is active_record in a transaction, for every call" do
      base.transaction { expect_active_record { every_call } }
      expect_native { presence.count }
    end

    it "rolls back with a transaction" do
      base.transaction do
        presence.join(member_id: "7")
        presence.join(member_id: "7", connection_id: "c1")
        expect(presence.count).to eq(2)
        expect(rows).to be_empty
        raise ActiveRecord::Rollback
      end

      expect(presence.count).to eq(0)
    end

    it "commits with a transaction" do
      base.transaction do
        presence.join(member_id: "7")
        expect(rows).to be_empty
      end

      expect(row["member_id"]).to eq("7")
    end

    it "follows a transaction in a transaction" do
      base.transaction do
        base.transaction { presence.join(member_id: "inner") }
        presence.join(member_id: "outer")
        expect(rows).to be_empty
        raise ActiveRecord::Rollback
      end

      expect(rows).to be_empty
    end

    it "rolls back with a savepoint, and keeps what was before it" do
      base.transaction do
        presence.join(member_id: "outer")
        base.transaction(requires_new: true) do
          presence.join(member_id: "inner")
          raise ActiveRecord::Rollback
        end
      end

      expect(rows.map { |row| row["member_id"] }).to eq(["outer"])
    end

    {
      "ActiveRecord" => ->(base, statement) { base.connection.execute(statement) },
      "the raw connection" => ->(base, statement) { base.connection.raw_connection.exec(statement) }
    }.each do |way, run|
      it "follows a bare BEGIN sent through #{way}" do
        run.call(base, "BEGIN")
        expect_active_record { presence.join(member_id: "7") }
        expect(rows).to be_empty
        run.call(base, "ROLLBACK")

        expect_native { expect(presence.count).to eq(0) }
      end
    end

    it "is active_record in a transaction that has failed, with the error that it has there" do
      expect do
        base.transaction do
          expect { base.connection.execute("SELECT 1/0") }.to raise_error(ActiveRecord::StatementInvalid)
          presence.join(member_id: "7")
        end
      end.to raise_error(PG::InFailedSqlTransaction)
      expect_native { presence.join(member_id: "7") }
    end

    it "is native on another thread than the transaction's" do
      base.transaction do
        presence.join(member_id: "7")
        expect_native { in_threads(1) { expect(presence.count).to eq(0) } }
      end
    end

    it "is active_record on every thread while the pool is pinned, as in transactional tests" do
      pin_connection
      presence.join(member_id: "7")
      expect_active_record { in_threads(2) { expect(presence.count).to eq(1) } }
      unpin_connection

      expect(rows).to be_empty
    end

    it "sees the seats of a table that is being migrated in the transaction" do
      SpecDatabase.table(seats: false)
      presence_class.reset_schema_cache!
      base.transaction do
        SpecDatabase.add_seats
        expect(presence.join(member_id: "7", connection_id: "c1")).to include("connection_id" => "c1")
        expect(presence.seats_now?).to be(true)
        raise ActiveRecord::Rollback
      end
      presence_class.reset_schema_cache!

      expect(presence.seats?).to be(false)
    end

    it "needs no connection of ActiveRecord's when it is native: it works with the pool exhausted" do
      with_connection_settings(pool: 1, checkout_timeout: 0.2) do
        base.connection_handler.clear_active_connections!(:all)
        holder = Thread.new do
          base.connection_pool.with_connection do |connection|
            connection.execute("SELECT 1") && sleep
          end
        end
        wait_until("the only connection is taken") { holder.status == "sleep" && base.connection_pool.stat[:busy] == 1 }

        expect_native { every_call }
        expect { Pgbus::Native.with_route(:active_record) { presence.count } }
          .to raise_error(ActiveRecord::ConnectionTimeoutError)
      ensure
        holder&.kill&.join
      end
    end

    it "leases no connection of ActiveRecord's when it is native" do
      base.connection_handler.clear_active_connections!(:all)
      every_call

      expect(base.connection_pool).not_to be_active_connection
    end

    it "goes to BusRecord's database where pgbus has one of its own" do
      other = "#{SpecDatabase::NAME}_bus"
      sql("CREATE DATABASE #{other}")
      SpecDatabase.establish(Pgbus::BusRecord, database: other)
      SpecDatabase::MIGRATIONS.each { |migration| migration.new.exec_migration(Pgbus::BusRecord.connection, :up) }
      Pgbus.configuration.connects_to = { database: { writing: :bus } }
      presence_class.reset_schema_cache!

      expect_native { presence.join(member_id: "7", connection_id: "c1") }
      expect(rows).to be_empty
      expect(Pgbus::BusRecord.connection.select_value("SELECT member_id FROM pgbus_presence_members")).to eq("7")
      Pgbus::BusRecord.transaction { expect_active_record { presence.count } }
      base.transaction { expect_native { expect(presence.count).to eq(1) } }
    ensure
      Pgbus::BusRecord.remove_connection
      sql("DROP DATABASE IF EXISTS #{other} WITH (FORCE)")
    end
  end

  describe "a native call" do
    # Everything that a call makes is in danger when the collector runs at every allocation.
    it "gives whole records under a garbage collector that never rests", :slow do
      metadata = { "a" => [1, 2.5, nil, true, "ü" * 100, { "b" => 2**70 }] }
      20.times { |number| presence.join(member_id: number, connection_id: "c#{number}", seat: "s", metadata:) }
      GC.stress = true
      records = presence.members
      touched = presence.touch(connection_id: %w[c1 c2 none])
      left = presence.leave(connection_id: "c3")
      error = expect { presence.sweep!(older_than: "no time") }
      GC.stress = false

      expect(records.map { |record| record["metadata"] }).to eq([metadata] * 20)
      expect(records.map { |record| record["connection_id"] }).to eq(Array.new(20) { |number| "c#{number}" })
      expect(touched).to contain_exactly("c1", "c2")
      expect(left).to include("id" => "3", "metadata" => metadata)
      error.to raise_error(PG::InvalidDatetimeFormat)
    ensure
      GC.stress = false
    end

    it "gives whole records while the collector moves objects", :slow do
      50.times { |number| presence.join(member_id: number, metadata: { number: number.to_s * 50 }) }
      child = fork_child do
        compacting = Thread.new { loop { GC.compact } }
        results = in_threads(4) { Array.new(8) { presence.members.map { |record| record["metadata"]["number"] } } }
        compacting.kill.join
        results.flatten(1).uniq
      end

      expect(child.value).to eq([Array.new(50) { |number| number.to_s * 50 }])
    end
  end

  describe "a native session" do
    it "has the variables of database.yml" do
      with_connection_settings(variables: { statement_timeout: "200ms" }) do
        presence.seats?
        while_locked { expect { presence.count }.to raise_error(PG::QueryCanceled, /statement timeout/) }

        expect(presence.count).to eq(0)
      end
    end

    it "has the schema_search_path of database.yml" do
      sql("CREATE SCHEMA tenant")
      sql("CREATE TABLE tenant.pgbus_presence_members (LIKE public.pgbus_presence_members INCLUDING ALL)")
      with_connection_settings(schema_search_path: "tenant, public") { presence.join(member_id: "7") }

      expect(rows).to be_empty
      expect(sql("SELECT member_id FROM tenant.pgbus_presence_members")).to eq([{ "member_id" => "7" }])
    ensure
      sql("DROP SCHEMA tenant CASCADE")
    end

    it "works without prepared statements" do
      with_connection_settings(prepared_statements: false) do
        3.times { |number| presence.join(member_id: number.to_s) }

        expect(presence.count).to eq(3)
      end
    end

    it "is replaced, unseen by the caller, when the server has ended it in between" do
      3.times { presence.count }
      sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND pid <> pg_backend_pid()")
      wait_until("no session is left") { native_sessions.empty? }

      expect(in_threads(8) { |number| presence.join(member_id: number.to_s)["id"] }).to eq(%w[0 1 2 3 4 5 6 7])
      expect(presence.count).to eq(8)
    end
  end
end
