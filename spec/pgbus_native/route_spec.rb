# frozen_string_literal: true

require_relative "../support/mixed_calls"
require_relative "../support/other_database"
require_relative "../support/routes"
require_relative "../support/time_zones"

# Whatever the application does with its connection, a call has the outcome that it would have on it.
RSpec.describe "The route of a call", implementation: Implementation::AUTO do
  include OtherDatabase
  include Routes

  before { presence.seats? }

  let(:base) { ActiveRecord::Base }

  def member_ids
    rows.map { |row| row["member_id"] }
  end

  describe "in a transaction" do
    it "rolls a savepoint back alone, seats and members, and commits what is around it" do
      base.transaction do
        presence.join(member_id: "before")
        base.transaction(requires_new: true) do
          expect_active_record { presence.join(member_id: "inside", connection_id: "c1") }
          expect_active_record { presence.leave(member_id: "before") }
          raise ActiveRecord::Rollback
        end
        expect_active_record { presence.join(member_id: "behind") }
        expect(rows).to be_empty
      end

      expect(member_ids).to eq(%w[before behind])
    end

    it "rolls back what a committed savepoint holds when the transaction around it rolls back" do
      base.transaction do
        base.transaction(requires_new: true) { presence.join(member_id: "inside") }
        expect_active_record { expect(presence.count).to eq(1) }
        raise ActiveRecord::Rollback
      end

      expect_native { expect(presence.count).to eq(0) }
    end

    it "keeps what a savepoint three levels deep is around, after an error of the server's in it" do
      base.transaction do
        base.transaction(requires_new: true) do
          presence.join(member_id: "second")
          expect { base.transaction(requires_new: true) { presence.sweep!(older_than: "no time") } }
            .to raise_error(PG::InvalidDatetimeFormat)
          expect_active_record { presence.join(member_id: "third") }
        end
      end

      expect(member_ids).to eq(%w[second third])
    end

    it "commits with a bare COMMIT, and follows bare savepoints" do
      connection = base.connection
      connection.execute("BEGIN")
      presence.join(member_id: "7")
      connection.execute("SAVEPOINT bare")
      expect_active_record { presence.join(member_id: "8") }
      connection.execute("ROLLBACK TO bare")
      expect(rows).to be_empty
      connection.execute("COMMIT")

      expect_native { expect(presence.members.map { |record| record["id"] }).to eq(["7"]) }
      expect(member_ids).to eq(["7"])
    end

    it "sees what the transaction has written and nobody else sees" do
      presence.join(member_id: "7")
      base.transaction do
        base.connection.execute("UPDATE pgbus_presence_members SET metadata = '{\"mine\": true}'")

        expect(presence.members.first["metadata"]).to eq("mine" => true)
        expect(in_threads(1) { presence.members.first["metadata"] }).to eq([{}])
        expect(presence.leave(member_id: "7")["metadata"]).to eq("mine" => true)
      end
    end

    it "follows an isolation level, and a read-only transaction" do
      base.transaction(isolation: :repeatable_read) do
        expect(presence.count).to eq(0)
        in_threads(1) { expect_native { presence.join(member_id: "7") } }
        expect_active_record { expect(presence.count).to eq(0) }
      end
      base.connection.execute("BEGIN READ ONLY")
      expect { presence.join(member_id: "8") }.to raise_error(PG::ReadOnlySqlTransaction)
      base.connection.execute("ROLLBACK")

      expect(member_ids).to eq(["7"])
    end

    it "is that of the fiber or thread that began it, not of an outer one" do
      base.transaction do
        presence.join(member_id: "7")
        # Fibers of a thread share its connection unless the application isolates them.
        expect_active_record { Fiber.new { presence.count }.resume }
        expect_native { in_threads(2) { |number| presence.join(member_id: "thread #{number}") } }
        raise ActiveRecord::Rollback
      end

      expect(member_ids).to eq(["thread 0", "thread 1"])
    end
  end

  describe "with two databases" do
    around { |example| with_other_database { example.run } }

    it "stays native in a transaction on another database, whose rollback leaves presence alone" do
      OtherDatabaseRecord.transaction do
        OtherDatabaseRecord.connection.execute("SELECT 1")
        expect_native { presence.join(member_id: "7") }
        raise ActiveRecord::Rollback
      end

      expect(members_by_database).to eq(here: ["7"], other: [])
    end

    it "follows connected_to(role:) and its transactions" do
      with_connects_to(base, default: { writing: :here, reading: :other }) do
        expect_native { presence.join(member_id: "written") }
        base.connected_to(role: :reading) do
          expect_native { presence.join(member_id: "read") }
          base.transaction { expect_active_record { expect(presence.count).to eq(1) } }
        end

        expect(members_by_database).to eq(here: ["written"], other: ["read"])
      end
    end

    it "follows connected_to(shard:), where a transaction on one shard binds no call on the other" do
      with_connects_to(base, default: { writing: :here }, other: { writing: :other }) do
        base.transaction do
          expect_active_record { presence.join(member_id: "here, rolled back") }
          base.connected_to(shard: :other) { expect_native { presence.join(member_id: "other") } }
          raise ActiveRecord::Rollback
        end
        base.connected_to(shard: :other) do
          base.transaction { expect_active_record { presence.join(member_id: "other too") } }
        end

        expect(members_by_database).to eq(here: [], other: ["other", "other too"])
      end
    end

    it "follows connected_to on each thread for itself" do
      with_connects_to(base, default: { writing: :here }, other: { writing: :other }) do
        in_threads(8) do |number|
          base.connected_to(shard: number.even? ? :default : :other) do
            5.times { |time| presence.join(member_id: "#{number} #{time}") }
          end
        end

        here, other = members_by_database.values_at(:here, :other)
        expect(here.size).to eq(20)
        expect(here.map(&:to_i)).to all(be_even)
        expect(other.map(&:to_i)).to all(be_odd)
      end
    end

    it "goes to BusRecord's connects_to and follows its transactions, not those of ActiveRecord::Base" do
      Pgbus.configuration.connects_to = { database: { writing: :bus } }
      with_connects_to(Pgbus::BusRecord, default: { writing: :other }) do
        base.transaction do
          expect_native { presence.join(member_id: "7") }
          raise ActiveRecord::Rollback
        end
        Pgbus::BusRecord.transaction do
          expect_active_record { presence.join(member_id: "8", connection_id: "c1") }
          Pgbus::BusRecord.transaction(requires_new: true) do
            expect_active_record { presence.leave(member_id: "7") }
            raise ActiveRecord::Rollback
          end
        end

        expect(members_by_database).to eq(here: [], other: %w[7 8])
      end
    end

    it "follows connected_to of BusRecord" do
      Pgbus.configuration.connects_to = { shards: {} }
      with_connects_to(Pgbus::BusRecord, default: { writing: :here }, other: { writing: :other }) do
        expect_native { presence.join(member_id: "here") }
        Pgbus::BusRecord.connected_to(shard: :other) { expect_native { presence.join(member_id: "other") } }

        expect(members_by_database).to eq(here: ["here"], other: ["other"])
      end
    end

    it "keeps a pool of native connections for each" do
      with_connects_to(base, default: { writing: :here }, other: { writing: :other }) do
        presence.count
        one = Pgbus::Native.stats[:connections]
        base.connected_to(shard: :other) { presence.count }

        expect(Pgbus::Native.stats[:connections]).to eq(one + 1)
      end
    end
  end

  it "has one answer for each database whether its table has seats" do
    with_other_database(seats: false) do
      with_connects_to(base, default: { writing: :here }, other: { writing: :other }) do
        expect(presence.seats?).to be(true)
        base.connected_to(shard: :other) do
          expect(presence.seats?).to be(false)
          expect(presence.join(member_id: "7")).not_to have_key("connection_id")
          expect(presence.members.first).not_to have_key("connection_id")
          SpecDatabase::MIGRATIONS.last.new.exec_migration(base.connection, :up)
          expect(presence.seats?).to be(false)
          expect(presence.seats_now?).to be(true)
        end
        expect_native { presence.join(member_id: "7", connection_id: "c1") }
      end
    end
  end

  describe "with a pinned connection, as in transactional tests" do
    def pinned
      pin_connection
      yield
    ensure
      unpin_connection
    end

    it "shows everyone everything, whichever thread wrote it, and it is gone afterwards" do
      pinned do
        expect_active_record { presence.join(member_id: "test") }
        in_threads(4) { |number| expect(presence.join(member_id: number)["id"]).to eq(number.to_s) }
        in_threads(1) { presence.join(member_id: "seat", connection_id: "c1") }

        expect(presence.members.map { |record| record["id"] }).to contain_exactly("test", "seat", *"0".."3")
        expect(in_threads(4) { presence.count }).to eq([6] * 4)
        expect(base.connection.select_value("SELECT count(*) FROM pgbus_presence_members")).to eq(6)
        expect(rows).to be_empty
      end

      expect(rows).to be_empty
      expect_native { expect(presence.count).to eq(0) }
    end

    it "is active_record on every thread, for every kind of call" do
      pinned do
        expect_active_record do
          in_threads(4) do |number|
            id = "c#{number}"
            presence.join(member_id: number, connection_id: id)
            expect(presence.touch(connection_id: [id])).to eq([id])
            expect(presence.set_state(connection_id: id, state: { number: })["state"]).to eq("number" => number)
            presence_class.expire_seats!(ttl_for: ->(_) { 60 }, min_ttl: 60)
            expect(presence.leave(connection_id: id)["id"]).to eq(number.to_s)
            presence.sweep!(older_than: Time.now)
          end
        end
        expect(presence.count).to eq(0)
      end
    end

    it "follows a transaction of the test, and one of another thread" do
      pinned do
        base.transaction(requires_new: true) do
          presence.join(member_id: "7")
          raise ActiveRecord::Rollback
        end
        in_threads(1) { base.transaction { presence.join(member_id: "8") } }

        expect(presence.members.map { |record| record["id"] }).to eq(["8"])
      end
    end

    it "stays so while pins are nested, and ends with the last" do
      skip "Rails 7.1 does not nest them" unless base.connection_pool.respond_to?(:pin_connection!)

      pinned do
        pinned { presence.join(member_id: "inner") }
        expect_active_record { expect(presence.count).to eq(0) }
        expect_active_record { in_threads(1) { presence.join(member_id: "outer") } }
      end

      expect_native { expect(in_threads(1) { presence.count }).to eq([0]) }
    end
  end

  describe "with time zones" do
    include TimeZones

    # The clocks in Berlin skipped the hour after 2 o'clock (01:00 UTC) on the first day and repeated it on the
    # second.
    around_changes = ["2024-03-31 00:59:59.999999", "2024-03-31 01:30:00", "2024-03-31 02:30:00",
                      "2024-03-31 03:30:00", "2024-10-27 00:30:00.000001", "2024-10-27 01:30:00",
                      "2024-10-27 02:30:00", "2024-10-27 03:30:00"]

    situations = {
      "a server in India" => { server: "Asia/Kolkata" },
      "a server in India, and another zone among the variables" =>
        { server: "Asia/Kolkata", variables: { timezone: "America/St_Johns" } },
      "local times, server and process in Berlin" => { server: "Europe/Berlin", local: "Europe/Berlin" },
      "local times, process and variables in Berlin, a server in India" =>
        { server: "Asia/Kolkata", local: "Europe/Berlin", variables: { timezone: "Europe/Berlin" } },
      "local times, a process in Berlin and a server in India" => { server: "Asia/Kolkata", local: "Europe/Berlin" },
      "a process in Berlin that keeps its times in UTC" => { server: "Europe/Berlin", process: "Europe/Berlin" }
    }
    # Those in which ActiveRecord itself reads the time that it has just written in a timestamp column.
    sound = situations.keys.values_at(0, 2, 3, 5)

    # What both routes read.
    def records_on_both
      %i[native active_record].map { |route| on(route) { presence.members } }
    end

    def clock(record, zone: false)
      record.values_at("joined_at", "last_seen_at").map do |time|
        [time, time.nsec, *([time.utc_offset, time.zone] if zone)]
      end
    end

    def untimed(record)
      record.merge("joined_at" => nil, "last_seen_at" => nil)
    end

    # Ids of the rows that a sweep on the route hits, of rows seen at the times.
    def swept(route, times, older_than)
      sql("DELETE FROM pgbus_presence_members")
      times.each_with_index { |time, number| insert_row(member_id: number, last_seen_at: time) }
      ids = []
      on(route) { presence.sweep!(older_than:) { |record| ids << record["id"] } }
      ids.sort
    end

    %w[timestamp timestamptz].each do |times|
      situations.each do |situation, settings|
        context "and #{times} columns, #{situation}", table: { times: } do
          around { |example| in_time_zones(**settings) { example.run } }

          it "shows a row written on one route as the same instant on the other" do
            written = on(:native) { presence.join(member_id: "native") }
            on(:active_record) do
              expect(clock(presence.members.first)).to eq(clock(written))
              written = presence.join(member_id: "active_record", connection_id: "c1")
            end

            expect(on(:native) { presence.members }.map { |record| record["joined_at"] }.max)
              .to eq(written["joined_at"])
            # What each sees of the other's is a matter of seconds, not of hours.
            gaps = records_on_both.map { |records| records.map { |record| record["joined_at"] }.minmax.reduce(:-) }
            expect(gaps).to all(be_between(-60, 0))
            if times == "timestamptz" || sound.include?(situation)
              expect(written["joined_at"]).to be_within(60).of(Time.now)
            end
          end

          it "reads the hours around a change of the clocks alike" do
            around_changes.each_with_index do |time, number|
              time = "#{time}+00" if times == "timestamptz"
              insert_row(member_id: number, joined_at: time, last_seen_at: time)
            end
            native, active_record = records_on_both
            # On a column without zone, in the hour that comes twice, Ruby itself says now this, now that.
            twice = situation.start_with?("local") && times == "timestamp" ? "6" : nil

            expect(native.map { |record| untimed(record) }).to eq(active_record.map { |record| untimed(record) })
            clocks = [native, active_record].map do |records|
              once = records.reject { |record| record["id"] == twice }
              once.map { |record| clock(record, zone: times == "timestamp") }
            end
            expect(clocks.first).to eq(clocks.last)
          end

          it "sweeps the same rows on either route, whatever the cutoff is" do
            seen = around_changes.map { |time| times == "timestamptz" ? "#{time}+00" : time }
            cutoffs = [Time.utc(2024, 3, 31, 1, 30, 1), Time.new(2024, 10, 27, 2, 30, 1, "+02:00"),
                       DateTime.new(2024, 10, 27, 2, 30, 1, "+01:00"), Time.local(2024, 10, 27, 3, 45),
                       Time.utc(2024, 10, 27, 0, 30).in_time_zone("Europe/Berlin"), "2024-10-27 02:30:00",
                       "2024-03-31 02:30:00 Europe/Berlin", Time.utc(2024, 7, 1), "now"]
            hits = cutoffs.to_h do |cutoff|
              [cutoff, %i[native active_record].map { |route| swept(route, seen, cutoff) }]
            end

            hits.each { |cutoff, (native, active_record)| expect([cutoff, native]).to eq([cutoff, active_record]) }
            expect(hits[Time.utc(2024, 7, 1)].first).to eq(%w[0 1 2 3])
            expect(hits["now"].first.size).to eq(8)
          end

          it "sweeps and expires what is older than seconds, and nothing younger" do
            %i[native active_record].each do |route|
              other = (%i[native active_record] - [route]).first
              on(other) { presence.join(member_id: "member") && presence.join(member_id: "seat", connection_id: "c") }
              on(route) do
                last_seen = presence.members.map { |record| record["last_seen_at"] }.max
                expect(presence_class.expire_seats!(ttl_for: ->(_) { 60 }, min_ttl: 60)).to be_empty
                if times == "timestamptz" || sound.include?(situation)
                  expect(presence.sweep!(older_than: last_seen - 60)).to eq(0)
                  expect(presence.sweep!(older_than: last_seen + 60)).to eq(1)
                end
                age(120, connection_id: "c") if times == "timestamptz"
                sql("UPDATE pgbus_presence_members SET last_seen_at = last_seen_at - interval '2 minutes'")
                expect(presence_class.expire_seats!(ttl_for: ->(_) { 60 }, min_ttl: 60).size).to eq(1)
              end
              sql("DELETE FROM pgbus_presence_members")
            end
          end
        end
      end
    end
  end

  describe "with a schema for each tenant" do
    around do |example|
      tenants.each do |tenant|
        sql("CREATE SCHEMA #{tenant}")
        sql("CREATE TABLE #{tenant}.pgbus_presence_members (LIKE public.pgbus_presence_members INCLUDING ALL)")
      end
      example.run
    ensure
      tenants.each { |tenant| sql("DROP SCHEMA #{tenant} CASCADE") }
      SpecDatabase.establish
    end

    let(:tenants) { %w[one two] }

    # Ids of the members in each schema.
    def by_schema
      ["public", *tenants].to_h do |schema|
        [schema, sql("SELECT member_id FROM #{schema}.pgbus_presence_members ORDER BY 1").pluck("member_id")]
      end
    end

    # A call whose row is in the schema that the session's statements go to, on whichever route.
    def expect_rows_in_the_sessions_schema
      sql("DELETE FROM pgbus_presence_members")
      tenants.each { |tenant| sql("DELETE FROM #{tenant}.pgbus_presence_members") }
      presence.join(member_id: "7")
      schema = base.connection.select_value("SELECT current_schema()")
      expect(by_schema.select { |_, ids| ids.any? }).to eq(schema => ["7"])
    end

    {
      "nothing configured" => {}, "schema_search_path configured" => { schema_search_path: "one, public" },
      "schema_order configured" => { schema_order: "one, public" }
    }.each do |situation, settings|
      context "with #{situation}" do
        around { |example| with_connection_settings(**settings) { example.run } }

        let(:home) { settings.empty? ? "public" : "one" }

        it "goes natively to the configured schema, also once the path has been read" do
          expect_native { presence.join(member_id: "7") }
          base.connection.schema_search_path
          base.connection.current_schema
          base.connection.schema_exists?("one")
          expect_native { presence.join(member_id: "8") }
          on(:active_record) { presence.join(member_id: "9") }

          expect(by_schema).to include(home => %w[7 8 9], "two" => [])
        end

        {
          "schema_search_path=" => ->(connection) { connection.schema_search_path = "two, public" },
          "SET" => ->(connection) { connection.execute("SET search_path TO two, public") },
          "SET in capitals" => ->(connection) { connection.execute("SET SEARCH_PATH = two, public") },
          "SET in mixed case" => ->(connection) { connection.execute("Set Search_Path = two, public") },
          "SET SCHEMA" => ->(connection) { connection.execute("SET SCHEMA 'two'") },
          "set_config" => ->(c) { c.select_value("SELECT set_config('search_path', 'two', false)") },
          "exec_query" => ->(connection) { connection.exec_query("SET SESSION search_path = two") }
        }.each do |way, change|
          it "follows a change by #{way} and, on this thread alone, stays with it" do
            presence.join(member_id: "before")
            base.connection.select_value("SELECT 1")
            change.call(base.connection)
            expect_active_record { presence.join(member_id: "tenant") }
            expect_active_record { expect(presence.members.map { |record| record["id"] }).to eq(["tenant"]) }
            expect_native { in_threads(1) { presence.join(member_id: "other thread") } }

            expect(by_schema).to include(home => ["before", "other thread"], "two" => ["tenant"])
          end
        end

        it "follows a change that is the first statement of a connection" do
          base.connection.execute("SET search_path TO two")
          expect_active_record { presence.join(member_id: "7") }

          expect(by_schema).to include(home => [], "two" => ["7"])
        end

        it "follows a change by the first statement after the connection was lost" do
          base.connection.select_value("SELECT 1")
          base.connection.disconnect!
          base.connection.execute("SET search_path TO two")

          expect_active_record { expect_rows_in_the_sessions_schema }
        end

        it "changes the schema again and again" do
          ["two", "one, public", "public", "two, one", "one"].each do |path|
            base.connection.schema_search_path = path
            expect_rows_in_the_sessions_schema
          end
        end

        it "is native again when the session has been made anew" do
          base.connection.select_value("SELECT 1")
          base.connection.execute("SET search_path TO two")
          base.connection.reconnect!

          expect_native { expect_rows_in_the_sessions_schema }
        end

        it "keeps to the session's schema when the path was set in a transaction that rolls back" do
          base.transaction do
            base.connection.schema_search_path = "two"
            presence.join(member_id: "gone")
            raise ActiveRecord::Rollback
          end

          expect_rows_in_the_sessions_schema
        end

        it "keeps to the session's schema when nil is set, which changes nothing" do
          base.connection.select_value("SELECT 1")
          base.connection.execute("SET search_path TO two")
          base.connection.schema_search_path = nil

          expect_rows_in_the_sessions_schema
        end

        it "keeps to the session's schema where the session is told to discard everything" do
          base.connection.select_value("SELECT 1")
          base.connection.execute("DISCARD ALL")

          expect_rows_in_the_sessions_schema
        end

        it "keeps to the session's schema where all settings are reset" do
          base.connection.select_value("SELECT 1")
          base.connection.execute("RESET ALL")

          expect_rows_in_the_sessions_schema
        end

        it "keeps a connection's schema when the thread gives it back and takes it again" do
          with_connection_settings(pool: 1, **settings) do
            base.connection.schema_search_path = "two"
            base.connection_handler.clear_active_connections!(:all)
            base.connection

            expect_active_record { expect_rows_in_the_sessions_schema }
          end
        end
      end
    end

    context "with a configured path" do
      around { |example| with_connection_settings(schema_search_path: "one, public") { example.run } }

      it "is native again when the path is set back" do
        base.connection.schema_search_path = "two"
        presence.join(member_id: "two")
        base.connection.execute("SET search_path TO public")
        presence.join(member_id: "public")
        base.connection.schema_search_path = "one, public"
        expect_native { presence.join(member_id: "one") }

        expect(by_schema).to eq("public" => ["public"], "one" => ["one"], "two" => ["two"])
      end

      it "keeps to the session's schema when the path is set back in a transaction that rolls back" do
        base.connection.schema_search_path = "two"
        base.transaction do
          base.connection.schema_search_path = "one, public"
          raise ActiveRecord::Rollback
        end

        expect_rows_in_the_sessions_schema
      end
    end

    it "serves tenants on many threads, each in its own schema" do
      in_threads(6) do |number|
        10.times do |time|
          tenant = tenants[(number + time) % 2]
          base.connection.schema_search_path = tenant
          presence.join(member_id: "#{tenant} #{number} #{time}", connection_id: "#{number} #{time}")
          expect(presence.members.map { |record| record["id"] }).to all(start_with(tenant))
        end
      end

      expect(by_schema.transform_values(&:size)).to eq("public" => 0, "one" => 30, "two" => 30)
      expect(by_schema["one"]).to all(start_with("one"))
    end
  end

  describe "while the table is migrated under it" do
    include MixedCalls

    before { SpecDatabase.table_changed }

    let(:seats) { Array.new(5) { |number| "kept#{number}" } }

    # As db:migrate does it; the seats are there the moment that others see their columns.
    def add_seats
      base.transaction do
        SpecDatabase.add_seats
        seats.each_with_index do |id, number|
          base.connection.execute(<<~SQL)
            INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, last_seen_at)
            VALUES ('#{stream.name}', 'member #{number}', '#{id}', now() - interval '1 day')
          SQL
        end
      end
    end

    # Gives the seats that were there until the moment that nobody could touch them.
    def take_seats
      base.transaction do
        base.connection.execute("LOCK TABLE pgbus_presence_members")
        kept = base.connection.select_values("SELECT connection_id FROM pgbus_presence_members
                                              WHERE connection_id LIKE 'kept%' ORDER BY 1")
        SpecDatabase::MIGRATIONS.last.new.migrate(:down)
        kept
      end
    end

    def change_times(type)
      base.connection.execute(<<~SQL)
        ALTER TABLE pgbus_presence_members ALTER joined_at TYPE #{type}, ALTER last_seen_at TYPE #{type}
      SQL
    end

    def in_vain
      base.transaction do
        yield
        raise ActiveRecord::Rollback
      end
    end

    it "deletes no seat by a member-keyed call; errors are only of missing seat columns", table: { seats: false } do
      under_mixed_calls(threads: 4) do |errors, some_calls|
        kept = Array.new(3) do
          in_vain { SpecDatabase.add_seats }
          some_calls.call
          add_seats
          some_calls.call
          %w[timestamptz timestamp].each { |type| change_times(type).then { some_calls.call } }
          in_vain { take_seats }
          take_seats.tap { some_calls.call }
        end

        expect(errors.call).to be_empty
        expect(kept).to eq([seats] * 3)
      end
      expect(presence.seats_now?).to be(false)
      expect(presence.join(member_id: "7")["id"]).to eq("7")
    end

    it "gives members the shape of the table at once, on whichever route", table: { seats: false } do
      routes = %i[native active_record]
      presence.join(member_id: "7")
      routes.each { |route| on(route) { expect(presence.members.first).not_to have_key("state") } }
      add_seats
      routes.each { |route| on(route) { expect(presence.join(member_id: "8")["id"]).to eq("8") } }
      expect(presence.members.map(&:size).uniq).to eq([7])
      expect(take_seats).to eq(seats)

      routes.each do |route|
        on(route) do
          presence_class.seats_supported?
          expect(presence.members.map { |record| [record["id"], record.size] }).to contain_exactly(["7", 4], ["8", 4])
          expect { presence.join(member_id: "7", connection_id: "c1") }.to raise_error(PG::UndefinedColumn, /seats/)
        end
      end
    end

    # What calls of every kind give: the records' ids, and the rest.
    def results
      records = [presence.join(member_id: "7"), presence.join(member_id: "8", connection_id: "c1"),
                 presence.set_state(connection_id: "c1", state: { a: 1 }), *presence.members]
      touched = [presence.touch(member_id: "7"), presence.touch(connection_id: "c1"),
                 presence.touch(connection_id: %w[c1 c2])]
      age(120, connection_id: "c1")
      records += presence_class.expire_seats!(ttl_for: ->(_) { 90 }, min_ttl: 90)
      swept = presence.sweep!(older_than: "2000-01-01")
      records << presence.leave(member_id: "7")
      [ids_of_recent(records), touched, swept]
    end

    # Ids of the records that say that they joined just now.
    def ids_of_recent(records)
      now = Time.now
      records.select { |record| record["joined_at"].between?(now - 60, now + 60) }.map { |record| record["id"] }
    end

    %i[native active_record].each do |route|
      it "goes on when a timestamp has become a timestamptz and back, for every statement (#{route})" do
        expected = [%w[7 8 8 7 8 8 7], [1, ["c1"], ["c1"]], 0]
        on(route) do
          %w[timestamptz timestamp timestamptz].each do |type|
            # Often enough for a prepared statement to have a plan of its own.
            expect(Array.new(6) { results }).to all(eq(expected))
            change_times(type)
            expect(results).to eq(expected)
          end
        end
      end
    end

    it "follows a change of the types in its own transaction" do
      presence.join(member_id: "7")
      base.transaction { change_times("timestamptz") && expect_active_record { presence.join(member_id: "8") } }

      expect_native { expect(presence.members.map { |record| record["id"] }).to contain_exactly("7", "8") }
    end
  end

  it "uses nothing of Rails that is deprecated" do
    with_deprecations_raised do
      presence_class.reset_schema_cache!
      %i[auto active_record].each do |route|
        on(route) do
          calls_of_every_kind
          base.transaction { calls_of_every_kind }
        end
      end
      expect(presence_class.connection).to be_a(PG::Connection)
      expect(Pgbus::Native.stats).to include(:calls)
    end
  end

  def calls_of_every_kind
    presence.join(member_id: "7", connection_id: "c1")
    presence.join(member_id: "7")
    presence.touch(connection_id: ["c1"])
    presence.touch(member_id: "7")
    presence.set_state(connection_id: "c1", state: {})
    presence.members
    presence.count
    presence.seats_now?
    presence.sweep!(older_than: Time.now.in_time_zone("UTC"))
    presence_class.expire_seats!(ttl_for: ->(_) { 1.minute }, min_ttl: 1.minute)
    presence.leave(connection_id: "c1")
    presence.leave(member_id: "7")
  end

  # Also what Rails 7.2 deprecates softly: connections that are checked out for good.
  def with_deprecations_raised
    deprecators = [ActiveSupport.deprecator, ActiveRecord.deprecator, ActiveModel.deprecator]
    before = deprecators.map(&:behavior)
    deprecators.each { |deprecator| deprecator.behavior = :raise }
    soft = ActiveRecord.respond_to?(:permanent_connection_checkout=)
    ActiveRecord.permanent_connection_checkout = :disallowed if soft
    yield
  ensure
    ActiveRecord.permanent_connection_checkout = true if soft
    deprecators.zip(before) { |deprecator, behavior| deprecator.behavior = behavior }
  end
end
