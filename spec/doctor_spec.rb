# frozen_string_literal: true

require "pgbus_native/doctor"
require "stringio"

require_relative "support/fault_proxy"
require_relative "support/other_database"
require_relative "support/pgbouncer"
require_relative "support/scripts"
require_relative "support/settings_server"
require_relative "support/time_zones"

RSpec.describe "Pgbus::Native.doctor" do
  include OtherDatabase
  include Scripts
  include TimeZones

  # What it reported, as a machine reads it.
  def report
    io = StringIO.new
    well = Pgbus::Native.doctor(io:, json: true)
    expect(io.string.lines.size).to eq(1)
    JSON.parse(io.string, symbolize_names: true).tap { |found| expect(found[:ok]).to be(well) }
  end

  # The lines with the name.
  def lines(name, found = report)
    found[:checks].select { |line| line[:name] == name }
  end

  def line(name, found = report)
    lines(name, found).tap { |some| expect(some.size).to eq(1) }.first
  end

  # What it said in words.
  def text
    io = StringIO.new
    Pgbus::Native.doctor(io:)
    io.string
  end

  def wrong(found = report)
    found[:checks].select { |line| %w[warning error].include?(line[:status]) }.map { |line| line[:name] }
  end

  # Times are for the examples about them: other people work on this machine.
  before { stub_const("Pgbus::Native::Doctor::RoundTrip::SLOW", 60) unless RSpec.current_example.metadata[:times] }

  # What other examples left in the table, dead or alive, is none of these examples' business.
  before(:context) { SpecDatabase.table_changed } # rubocop:disable RSpec/BeforeAfterAll

  operations = ["join", "touch", "members", "count", "leave", "sweep!"]
  seat_operations = ["join (seat)", "touch (seats)", "set_state", "leave (seat)", "expire_seats!"]

  describe "with an app in order", implementation: Implementation::AUTO do
    it "finds nothing wrong, and looks at everything" do
      found = report

      expect(found).to include(ok: true, version: Pgbus::Native::VERSION)
      expect(found[:checks].map { |line| line[:status] }.uniq).to eq(["ok"])
      expect(found[:checks].map { |line| line[:name] }.uniq).to eq(
        ["extension", "versions", "pgbus", "database", "route", "table", "seats", "index", "table size", "index size",
         "autovacuum", "dead rows", "time zone", "times", "TLS", "prepared statements", "round trip", "operations",
         *operations, *seat_operations]
      )
    end

    it "says so line by line, and returns true" do
      io = StringIO.new
      expect(Pgbus::Native.doctor(io:)).to be(true)

      expect(io.string).to match(/^ok       extension            pgbus_native 0\.18\.0 is loaded/)
        .and match(/^ok       route                native/)
        .and match(/^ok       join                 [\d.]+ ms$/)
        .and end_with("\nAll is well.\n")
    end

    it "writes to standard output unless told otherwise" do
      expect { Pgbus::Native.doctor }.to output(/All is well/).to_stdout
    end

    it "names the versions, the server and the times that the routes take" do
      found = report

      expect(line("versions", found)[:message]).to include("ruby #{RUBY_VERSION}", "pg #{PG::VERSION}",
                                                           "activerecord #{ActiveRecord.version}")
      expect(line("database", found)[:message]).to include("PostgreSQL", SpecDatabase::NAME)
      expect(lines("round trip", found).map { |one| one[:figures] })
        .to match(%w[active_record native].map { |route| { route:, milliseconds: a_value > 0 } })
      expect(line("join", found)[:figures]).to match(milliseconds: a_value > 0)
    end

    it "leaves nothing in the table, reports nothing, and broadcasts nothing" do
      insert_row(stream_name: "room:1", member_id: "7", connection_id: "c1", last_seen_at: "2001-01-01")
      before = rows
      report

      expect(rows).to eq(before)
      expect(changes).to be_empty
    end

    it "leaves a table with old seats of others, and their locks, alone" do
      insert_row(stream_name: "room:1", member_id: "7", connection_id: "c1", last_seen_at: "2001-01-01")
      while_locked("SELECT FROM pgbus_presence_members FOR UPDATE") { expect(report).to include(ok: true) }
    end

    it "gives its connections back" do
      base = ActiveRecord::Base
      base.connection_handler.clear_active_connections!(:all)
      report
      expect(base.connection_pool).not_to be_active_connection
      marked = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgbus_native doctor%'"
      wait_until("its native connection is closed") { sql(marked).empty? }
    end

    it "goes on in the caller's transaction, which stays as it is" do
      ActiveRecord::Base.transaction do
        presence.join(member_id: "7")
        found = report
        expect(wrong(found)).to be_empty
        expect(line("route", found)).to include(status: "note", message: /active_record here: .*transaction/)
      end

      expect(row).to include("member_id" => "7")
    end

    it "looks at the database of connects_to" do
      with_other_database(seats: false) do
        with_connects_to(Pgbus::BusRecord, default: { writing: :other }) do
          Pgbus.configuration.connects_to = { database: { writing: :other } }
          found = report
          expect(line("database", found)[:message]).to include(OtherDatabase::NAME)
          expect(line("seats", found)).to include(status: "warning")
        end
      end
    end
  end

  describe "the route", implementation: Implementation::AUTO do
    it "is active_record, or native, because the settings say so" do
      %i[active_record native].each do |route|
        found = Pgbus::Native.with_route(route) { report }
        expect(line("route", found)).to include(status: "note", message: /\A#{route}.*, since `route` is set to it/,
                                                advice: /:auto/)
        expect(wrong(found)).to be_empty
        expect(rows).to be_empty
      end
    end

    it "is active_record with a search path changed at run time" do
      ActiveRecord::Base.connection.schema_search_path = "public, pg_catalog"

      expect(line("route")).to include(status: "note", message: /search path was changed/)
    ensure
      SpecDatabase.establish
    end

    it "is active_record with settings that the native client cannot have" do
      with_connection_settings(encoding: "latin1") do
        expect(line("route")).to include(status: "warning", message: /client encoding is latin1/, advice: /calls work/)
        expect(report[:ok]).to be(false)
      end
    end
  end

  describe "the table" do
    around do |example|
      example.run
    ensure
      SpecDatabase.table_changed
    end

    context "without seats", implementation: Implementation::AUTO, table: { seats: false } do
      it "is a warning that names the generator; members work" do
        found = report

        expect(line("seats", found)).to include(status: "warning", advice: /pgbus:add_presence_seats/)
        expect(wrong(found)).to eq(["seats"])
        expect(found[:checks].map { |one| one[:name] } & seat_operations).to be_empty
        expect(line("sweep!", found)).to include(status: "ok")
      end
    end

    context "with seats", implementation: Implementation::AUTO do
      it "is missed" do
        sql("DROP TABLE pgbus_presence_members")
        found = report

        expect(line("table", found)).to include(status: "error", message: /no pgbus_presence_members in the search/,
                                                advice: /pgbus:add_presence/)
        expect(wrong(found)).to eq(["table"])
      end

      it "is missed where the search path does not lead" do
        with_connection_settings(schema_search_path: "pg_catalog") do
          expect(line("table")).to include(status: "error", message: /\(pg_catalog\)/, advice: /schema_search_path/)
        end
      end

      it "lacks columns" do
        sql("ALTER TABLE pgbus_presence_members DROP metadata, DROP state")
        found = report

        expect(line("table", found)).to include(status: "error", message: /lacks metadata/)
        expect(line("seats", found)).to include(status: "error", message: /lacks state/)
        expect(line("join", found)).to include(status: "error", message: /metadata/, advice: /table/)
      end

      it "has times of another type" do
        sql("ALTER TABLE pgbus_presence_members ALTER last_seen_at DROP DEFAULT, ALTER last_seen_at TYPE text")

        expect(line("table")).to include(status: "error", message: /last_seen_at .*: text/, advice: /timestamptz/)
      end
    end

    [{ times: "timestamptz" }, { times: "timestamp(3)", ids: "text", json: "json" }, { ids: "citext" },
     { partitioned: true }].each do |shape|
      context "with #{shape}", implementation: Implementation::AUTO, table: shape do
        it "is in order" do
          expect(wrong).to be_empty
        end
      end
    end
  end

  describe "the indexes", implementation: Implementation::AUTO do
    around do |example|
      example.run
    ensure
      SpecDatabase.table_changed
    end

    let(:wrong_index) do
      lines("index").reject { |line| line[:status] == "ok" }.tap { |some| expect(some.size).to eq(1) }.first
    end

    { "pk" => "members", "seat" => "seats" }.each do |name, kind|
      it "are missed for #{kind}; the advice creates the index" do
        sql("DROP INDEX idx_pgbus_presence_members_#{name}")
        expect(wrong_index).to include(status: "error", message: /no unique index for #{kind}/)
        sql(wrong_index[:advice].delete_prefix("run: "))

        expect(wrong).to be_empty
      end
    end

    it "are missed where joins fail for it" do
      sql("DROP INDEX idx_pgbus_presence_members_seat")
      found = report

      expect(line("join (seat)", found)).to include(status: "error", message: /ON CONFLICT.*InvalidColumnReference/)
      expect(line("join", found)).to include(status: "ok")
    end

    it "do not do in another shape" do
      sql("DROP INDEX idx_pgbus_presence_members_pk")
      sql("CREATE INDEX idx_pgbus_presence_members_pk ON pgbus_presence_members (stream_name, member_id)
           WHERE connection_id IS NULL")

      expect(wrong_index).to include(status: "error", message: /no unique index for members/)
    end

    # What an interrupted CREATE INDEX CONCURRENTLY leaves.
    def fail_to_index(statement)
      insert_row(member_id: "7")
      insert_row(member_id: "7")
      expect { sql(statement) }.to raise_error(PG::UniqueViolation)
    end

    it "are invalid; the advice makes them valid" do
      sql("DROP INDEX idx_pgbus_presence_members_pk")
      fail_to_index("CREATE UNIQUE INDEX CONCURRENTLY idx_pgbus_presence_members_pk
                     ON pgbus_presence_members (stream_name, member_id) WHERE connection_id IS NULL")
      expect(wrong_index).to include(status: "error", message: /idx_pgbus_presence_members_pk for members is invalid/)
      sql("DELETE FROM pgbus_presence_members")
      sql(wrong_index[:advice][/run: (.*)/, 1])

      expect(wrong).to be_empty
    end

    it "hold an invalid one that nobody wants" do
      sql("DROP INDEX idx_pgbus_presence_members_pk")
      fail_to_index("CREATE UNIQUE INDEX CONCURRENTLY leftover ON pgbus_presence_members (stream_name, member_id)")
      sql("DELETE FROM pgbus_presence_members")
      sql("CREATE UNIQUE INDEX ON pgbus_presence_members (stream_name, member_id) WHERE connection_id IS NULL")

      expect(lines("index")).to include(a_hash_including(status: "warning", message: /leftover is invalid/))
    end

    it "hold the one from before there were seats" do
      sql("CREATE UNIQUE INDEX leftover ON pgbus_presence_members (stream_name, member_id)")

      expect(wrong_index).to include(status: "error", message: /leftover allows a member one row/,
                                     advice: "run: DROP INDEX leftover")
    end

    it "may lack the one for sweeps" do
      sql("DROP INDEX idx_pgbus_presence_members_sweep")

      expect(wrong_index).to include(status: "note", advice: /tuning/)
      expect(report[:ok]).to be(true)
    end
  end

  describe "rows that are no longer there", implementation: Implementation::AUTO do
    around do |example|
      example.run
    ensure
      SpecDatabase.table_changed
    end

    # Rows with wide keys, so that few make much.
    def fill(rows)
      sql(<<~SQL, rows)
        INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, metadata)
        SELECT 'room', lpad(n::text, 200, '0'), lpad(n::text, 200, '0'), jsonb_build_object('text', repeat('x', 100))
        FROM generate_series(1, $1::int) n
      SQL
    end

    # Of a hundred rows one stays, so that no page becomes empty.
    def thin_out
      sql("DELETE FROM pgbus_presence_members WHERE member_id::int % 100 <> 0")
    end

    def dead_rows
      sql("SELECT") # A session tells its figures at the end of a transaction, not more than once a second.
      line("dead rows")[:figures][:dead]
    end

    def visit
      sql("VACUUM ANALYZE pgbus_presence_members")
    end

    it "make the table and its indexes bloated, until they are written anew" do
      fill(20_000)
      thin_out
      visit
      found = report
      expect(line("table size", found)).to include(status: "warning", message: /takes [\d.]+ MB, its 200 rows need/,
                                                   advice: /VACUUM \(FULL\)/)
      expect(line("index size", found)).to include(status: "warning", advice: /REINDEX/,
                                                   message: /idx_pgbus_presence_members_seat takes [\d.]+ MB/)
      sql(line("index size", found)[:advice][/run: (.*)/, 1])
      sql("VACUUM (FULL, ANALYZE) pgbus_presence_members")

      expect(wrong).to be_empty
    end

    it "are not to be told from rows while nobody has counted them" do
      sql("ALTER TABLE pgbus_presence_members SET (autovacuum_enabled = off)")
      fill(20_000)

      expect(lines("table size")).to contain_exactly(a_hash_including(status: "note", advice: /ANALYZE/))
    end

    it "do not make a table bloated that is full" do
      fill(20_000)
      visit

      expect(wrong & ["table size", "index size"]).to be_empty
    end

    it "are dead until they are vacuumed" do
      # Holds the cleaning up, which would otherwise happen at any time.
      SpecDatabase.connect do |other|
        other.exec("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pgbus_presence_members")
        fill(12_000)
        sql("DELETE FROM pgbus_presence_members")
        wait_until("the server has counted them") { dead_rows >= 12_000 }
        expect(line("dead rows")).to include(status: "warning", message: /\A12\d{3} of 12\d{3} rows/,
                                             advice: /VACUUM .*pg_stat_activity/)
      end
      # The other session may take a moment to end.
      wait_until("they are vacuumed") { visit && dead_rows < 12_000 }
      expect(line("dead rows")).to include(status: "ok", message: /last vacuumed \d{4}-\d\d-\d\d/)
    end

    it "are counted over all partitions" do
      SpecDatabase.table(partitioned: true)
      SpecDatabase.connect do |other|
        other.exec("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pgbus_presence_members")
        fill(12_000)
        sql("DELETE FROM pgbus_presence_members")
        wait_until("the server has counted them") { dead_rows >= 12_000 }
        expect(line("dead rows")).to include(status: "warning")
      end
    end

    it "stay where autovacuum is off" do
      sql("ALTER TABLE pgbus_presence_members SET (autovacuum_enabled = off)")

      expect(line("autovacuum")).to include(status: "warning", message: "off for this table", advice: /RESET/)
    end
  end

  describe "time zones", implementation: Implementation::AUTO do
    it "are the same on both routes, whatever the settings" do
      in_time_zones(server: "Asia/Tokyo") { expect(line("time zone")[:message]).to eq("UTC on both routes") }
      in_time_zones(server: "UTC", variables: { timezone: "America/St_Johns" }) do
        expect(line("time zone")).to include(status: "ok", message: "America/St_Johns on both routes")
      end
      in_time_zones(server: "Asia/Tokyo", local: "Asia/Tokyo") { expect(wrong).to be_empty }
    end

    ["Asia/Tokyo", "Europe/London", "America/New_York"].each do |zone|
      it "differ when ActiveRecord's session is set to #{zone}" do
        ActiveRecord::Base.connection.execute("SET timezone = '#{zone}'")

        expect(line("time zone")).to include(status: "error", message: /#{zone}, a native one is not/,
                                             advice: /variables/)
      ensure
        SpecDatabase.establish
      end
    end

    it "make records wrong where times are written in one and read in another" do
      in_time_zones(server: "Asia/Tokyo", local: "UTC") do
        expect(line("times")).to include(status: "error", message: /9\.0 h off/, advice: /default_timezone/)
      end
    end
  end

  describe "round trips", :settings_server, :times do
    it "are slow where every answer is late" do
      FaultProxy.to(server.port) do |proxy|
        ActiveRecord::Base.establish_connection(settings(port: proxy.port))
        presence.count
        proxy.delay = 0.03
        expect(lines("round trip")).to all(include(status: "warning", message: /\A[3-9]\d/, advice: /near/))
      end
    end

    it "are not slow by themselves" do
      stub_const("Pgbus::Native::Doctor::RoundTrip::SLOW", 10)
      ActiveRecord::Base.establish_connection(settings)

      expect(lines("round trip")).to all(include(status: "ok"))
    end
  end

  describe "operations", implementation: Implementation::AUTO do
    around do |example|
      example.run
    ensure
      SpecDatabase.table_changed
    end

    # Has the table pass over inserts or deletes.
    def pass_over(what)
      sql("CREATE FUNCTION pass_over() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
      sql("CREATE TRIGGER pass_over BEFORE #{what} ON pgbus_presence_members FOR EACH ROW
           EXECUTE FUNCTION pass_over()")
      yield
    ensure
      sql("DROP FUNCTION pass_over CASCADE")
    end

    it "answer otherwise where a trigger is in the way" do
      found = pass_over("INSERT") { report }

      expect(line("join", found)).to include(status: "error", message: /otherwise/, advice: /trigger/)
      expect(lines("count", found)).to be_empty
    end

    it "fail one by one" do
      found = pass_over("DELETE") { report }

      expect(wrong(found)).to eq(["leave", "sweep!", "leave (seat)", "expire_seats!"])
      expect(line("set_state", found)).to include(status: "ok")
    end

    it "wait for nobody for long" do
      while_locked do
        stub_const("Pgbus::Native::Doctor::PATIENCE", 2)
        found = nil
        expect(seconds { found = report }).to be < 30
        expect(found[:checks]).to include(a_hash_including(status: "error", message: /no answer within 2 s|timeout/))
      end
      expect(wrong).to be_empty
    end

    it "need privileges" do
      role = "#{SpecDatabase::NAME}_reader"
      sql("CREATE ROLE #{role}")
      sql("GRANT SELECT ON pgbus_presence_members TO #{role}")
      with_connection_settings(variables: { role: }) do
        found = report
        expect(line("join", found)).to include(status: "error", message: /permission denied/, advice: /GRANT/)
        expect(lines("members", found)).to be_empty
      end
    ensure
      sql("DROP OWNED BY #{role}")
      sql("DROP ROLE #{role}")
    end

    it "need a session that may write" do
      with_connection_settings(variables: { default_transaction_read_only: "on" }) do
        found = report
        expect(lines("database", found)).to include(a_hash_including(status: "error", message: /read-only/))
        expect(line("join", found)).to include(status: "error", advice: /primary/)
      end
    end
  end

  describe "prepared statements", implementation: Implementation::AUTO do
    it "are not used where the settings forbid them" do
      with_connection_settings(prepared_statements: false) do
        found = report
        expect(line("prepared statements", found)).to include(status: "note", advice: /PgBouncer/)
        expect(found[:ok]).to be(true)
      end
    end
  end

  describe "a connection", :settings_server do
    it "is not to be had natively where ActiveRecord's is the last one" do
      server.sql("ALTER ROLE trusted CONNECTION LIMIT 1")
      ActiveRecord::Base.establish_connection(settings)
      found = report

      expect(line("route", found)).to include(status: "error", message: /too many connections/, advice: /pool_size/)
      expect(wrong(found)).to eq(["route"])
    ensure
      server.sql("ALTER ROLE trusted CONNECTION LIMIT -1")
    end

    it "is encrypted, on both routes" do
      ActiveRecord::Base.establish_connection(settings(sslmode: "require"))

      expect(line("TLS")).to include(status: "ok", message: "TLSv1.3 (active_record), TLSv1.3 (native)")
      expect(wrong).to be_empty
    end

    it "need not be encrypted on this machine" do
      ActiveRecord::Base.establish_connection(settings(sslmode: "disable"))
      expect(line("TLS")).to include(status: "ok", message: /nor needed on loopback/)
      ActiveRecord::Base.establish_connection(settings(host: server.directory, username: "postgres"))
      expect(line("TLS")).to include(status: "ok", message: /Unix socket/)
    end

    it "is named with its server and without its password" do
      ActiveRecord::Base.establish_connection(settings(username: "scram", password: "sécret"))
      said = text

      expect(said).to include("127.0.0.1:#{server.port}", '"scram"')
      expect(said).not_to include("sécret")
    end

    it "is refused with a wrong password, which is not shown" do
      ActiveRecord::Base.establish_connection(settings(username: "scram", password: "wr0ng!"))
      found = report

      expect(line("database", found)).to include(status: "error", message: /password authentication failed/)
      expect(found[:ok]).to be(false)
      expect(found.to_s).not_to include("wr0ng!")
    end

    it "is ActiveRecord's where the native client cannot do what the server wants" do
      configuration = settings(sslrootcert: file("root", server.authority.pem),
                               sslcrl: file("list", server.authority.revocation_list))
      ActiveRecord::Base.establish_connection(configuration)

      expect(line("route")).to include(status: "warning", message: /revocation/)
    end

    def through_pgbouncer(**others)
      skip PgBouncer.unavailable if PgBouncer.unavailable

      bouncer = PgBouncer.new(server, mode: "session", sessions: 8)
      ActiveRecord::Base.establish_connection(settings(port: bouncer.port, **others))
      yield
    ensure
      ActiveRecord::Base.remove_connection
      bouncer&.stop
    end

    it "goes through a pooler, which is said where statements are prepared" do
      through_pgbouncer do
        expect(line("prepared statements")).to include(status: "note", message: /pooler/, advice: /max_prepared/)
      end
      through_pgbouncer(prepared_statements: false) do
        expect(line("prepared statements")).to include(status: "ok", message: /suits the pooler/)
      end
    end
  end

  describe "a connection to another machine" do
    # This machine by its name in the network, which is no loopback.
    def elsewhere
      Socket.ip_address_list.find { |address| address.ipv4? && !address.ipv4_loopback? }&.ip_address
    end

    before do
      skip PostgresServer.unavailable if PostgresServer.unavailable
      skip "this machine has no address but loopback" unless elsewhere

      authority = CertificateAuthority.new("Authority")
      certificate = authority.issue("other", alternative: "IP:#{elsewhere}")
      @elsewhere = PostgresServer.new(hba: ["host all all #{elsewhere}/32 trust"]) do
        { listen_addresses: elsewhere, ssl: "on", **files(certificate, authority) }
      end
    end

    after do
      ActiveRecord::Base.remove_connection
      server&.stop
      SpecDatabase.establish
      FileUtils.rm_rf(folder)
    end

    let(:folder) { Dir.mktmpdir.tap { |path| FileUtils.chmod(0o755, path) } }

    def files(certificate, authority)
      File.write(File.join(folder, "root.crt"), authority.pem)
      { "server.crt" => certificate.pem, "server.key" => certificate.key }.each do |name, pem|
        File.write(File.join(folder, name), pem)
        Throwaway.own(File.join(folder, name))
      end
      { ssl_cert_file: File.join(folder, "server.crt"), ssl_key_file: File.join(folder, "server.key") }
    end

    def server
      @elsewhere # rubocop:disable RSpec/InstanceVariable
    end

    def connect(**others)
      ActiveRecord::Base.establish_connection(adapter: "postgresql", host: elsewhere, port: server.port,
                                              username: "postgres", database: "postgres", **others)
    end

    it "is not encrypted, or not with somebody who is known, or all that is well" do
      connect(sslmode: "disable")
      expect(line("TLS")).to include(status: "warning", message: /not used/, advice: /verify-full/)
      connect(sslmode: "require")
      expect(line("TLS")).to include(status: "note", message: /sslmode require does not see whom/)
      connect(sslmode: "verify-full", sslrootcert: File.join(folder, "root.crt"))
      expect(line("TLS")).to include(status: "ok", message: /TLSv1\.3 \(native\)/)
    end
  end

  describe "without a connection" do
    after { SpecDatabase.establish }

    def unused_port
      listener = TCPServer.new("127.0.0.1", 0)
      listener.addr[1]
    ensure
      listener.close
    end

    # The only thing that is wrong.
    def failure
      found = report
      expect(found[:ok]).to be(false)
      expect(wrong(found)).to eq(["database"])
      expect(text).not_to match(/\.rb:\d+/)
      line("database", found)
    end

    it "says that the server is down, and shows no password" do
      SpecDatabase.establish(host: "127.0.0.1", port: unused_port, password: "s3cret")

      expect(failure).to include(status: "error", message: /Connection refused/, advice: /server runs/)
      expect(text).not_to include("s3cret")
    end

    it "says that a server says nothing" do
      stub_const("Pgbus::Native::Doctor::PATIENCE", 1)
      TCPServer.open("127.0.0.1", 0) do |listener|
        SpecDatabase.establish(host: "127.0.0.1", port: listener.addr[1])

        expect(failure).to include(status: "error", message: /no answer within 1 s/, advice: /connect_timeout/)
      end
    end

    it "says that there is no such database" do
      SpecDatabase.establish(database: "nobody_made_this")

      expect(failure).to include(status: "error", message: /nobody_made_this/, advice: /db:create/)
    end

    it "says that ActiveRecord knows no database" do
      ActiveRecord::Base.remove_connection

      expect(failure).to include(status: "error", message: /ActiveRecord::Connection/, advice: /database\.yml/)
    end

    it "says that all of ActiveRecord's connections are in use" do
      SpecDatabase.establish(pool: 1, checkout_timeout: 0.1)
      taken = Thread::Queue.new
      holder = Thread.new { ActiveRecord::Base.connection.execute("SELECT 1") && taken.push(true) && sleep }
      taken.pop

      expect(failure).to include(status: "error", advice: /pool/)
    ensure
      holder.kill.join
    end

    it "says that the adapter is missing" do
      # As Rails does, when somebody first asks for ActiveRecord::Base.
      script = <<~RUBY
        require "active_record"
        ActiveSupport.on_load(:active_record) { establish_connection(adapter: "mysql2", password: "s3cret") }
        require "pgbus_native"
        puts Pgbus::Native.doctor
      RUBY
      result = ruby(script)

      expect(result.lines.last).to eq("false")
      expect(result.out).to match(/^error    database +no connection: .*LoadError\)\n +-> add the adapter's gem/)
      expect(result.out + result.err).not_to match(/s3cret|\.rb:\d+/)
    end

    it "says that the adapter is another one" do
      skip "Rails 7.2 or newer is wanted" unless ActiveRecord::ConnectionAdapters.respond_to?(:register)

      script = <<~RUBY
        require "active_record"
        require "pgbus_native"
        class OtherAdapter < ActiveRecord::ConnectionAdapters::AbstractAdapter
          ADAPTER_NAME = "Other"
          def raw_connection = Object.new
          def connect = nil
        end
        ActiveRecord::ConnectionAdapters.register("other", "OtherAdapter", "set")
        ActiveRecord::Base.establish_connection(adapter: "other")
        puts Pgbus::Native.doctor
      RUBY
      result = ruby(script)

      expect(result.lines.last(3)).to eq(["", "1 error.", "false"])
      expect(result.out).to match(/^error    database +the adapter is Other, presence needs PostgreSQL's$/)
    end

    it "says that a URL cannot be read, and not what is in it" do
      # What Ruby says of a bad URL quotes all of it.
      allow(ActiveRecord::Base).to receive(:connection_pool) { URI.parse("postgresql://ann:s3 cr@et@host/app") }

      expect(failure[:message]).to include("URI::InvalidURIError", "postgresql://***@host/app")
      expect(text).not_to match(/s3|cr@|ann/)
    end

    it "says that ActiveRecord is not loaded" do
      result = ruby('require "pgbus_native"; puts Pgbus::Native.doctor')

      expect(result.lines.last).to eq("false")
      expect(result.out).to match(/^error    database +no connection: .*ActiveRecord/)
    end
  end

  describe "without native code" do
    stand_in = File.join(Scripts::ROOT, "spec/support/stand_in")
    script = <<~'RUBY'
      require "active_record"
      require "pgbus_native"
      load ENV["PGBUS_REFERENCE"] if ENV["PGBUS_REFERENCE"]
      ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
      puts Pgbus::Native.doctor(json: true)
    RUBY

    before { SpecDatabase.table }

    define_method(:run) do |*options, **environment|
      found, well = ruby(script, *options, pgbus_reference: nil, **environment).lines.last(2)
      JSON.parse(found, symbolize_names: true).tap { |report| expect(report[:ok].to_s).to eq(well) }
    end

    it "says that it is off, and looks at the rest" do
      found = run("-I", stand_in, pgbus: false, pgbus_native: "0")

      expect(line("extension", found)).to include(status: "note", message: /PGBUS_NATIVE=0/)
      expect(line("route", found)).to include(status: "note", message: /pgbus's own code/)
      expect(line("operations", found)).to include(status: "note", message: /not tried/)
      expect(wrong(found) - ["round trip"]).to be_empty
      expect(line("table", found)).to include(status: "ok")
    end

    it "tries pgbus's own operations where it is off" do
      skip Implementation::PLAIN_RUBY.unavailable if Implementation::PLAIN_RUBY.unavailable

      found = run("-I", stand_in, pgbus: false, pgbus_native: "0", pgbus_reference: Implementation::PlainRuby.source)
      expect(wrong(found) - ["round trip"]).to be_empty
      expect(lines("expire_seats!", found)).to contain_exactly(a_hash_including(status: "ok"))
      expect(SpecDatabase.sql("SELECT FROM pgbus_presence_members")).to be_empty
    end

    it "says that pgbus is another one, and what to do" do
      found = run(pgbus_fixture_version: "0.19.0")

      expect(line("extension", found)).to include(status: "warning", message: /follows pgbus 0\.18 only/)
      expect(line("pgbus", found)).to include(status: "warning", message: /pgbus 0\.19\.0/)
      expect(line("operations", found)).to include(status: "note")
    end

    it "says which pgbus it follows" do
      found = run(pgbus_fixture_version: "0.18.9")

      expect(line("pgbus", found)).to include(status: "ok", message: "pgbus 0.18.9")
      expect(line("extension", found)).to include(status: "ok")
    end
  end

  it "costs nothing until it is asked" do
    script = 'require "pgbus_native"; puts $LOADED_FEATURES.grep(%r{pgbus_native/(doctor|prometheus)}).size'

    expect(ruby(script).lines).to eq(["0"])
  end
end
