# frozen_string_literal: true

require_relative "support/fault_proxy"
require_relative "support/settings_server"

# Each setting is proved by connecting with it, on a server of the examples' own: what the native session is, the
# server says, and ActiveRecord's connection must be the same.
RSpec.describe "Connection settings", :settings_server do
  def root_certificate(authority = server.authority)
    file("authority.crt", authority.pem)
  end

  # What the session on the route is, as the server describes it.
  def session(route)
    presence_class.reset_schema_cache!
    before = Pgbus::Native.stats[:calls]
    description = Pgbus::Native.with_route(route) { presence.join(member_id: "7", connection_id: "c1") }["metadata"]
    other = route == :native ? :active_record : :native
    expect(Pgbus::Native.stats[:calls][other]).to eq(before[other])
    description
  end

  # Connects on both routes and expects equal sessions; gives what they are.
  def session_on_both_routes(configuration = settings)
    ActiveRecord::Base.establish_connection(configuration)
    native, active_record = %i[native active_record].map { |route| session(route).except("pid", "names") }
    expect(differences(native, active_record)).to be_empty
    native
  end

  # Only what differs: there are hundreds of settings.
  def differences(native, active_record)
    flat = [native, active_record].map { |description| description.merge(description["settings"]).except("settings") }
    flat.first.keys.filter_map do |name|
      values = flat.map { |description| description[name] }
      [name, *values] if values.uniq.size > 1
    end
  end

  # Expects that neither route connects, with the same class of error; gives the messages.
  def expect_no_connection(configuration)
    ActiveRecord::Base.establish_connection(configuration)
    %i[native active_record].map do |route|
      Pgbus::Native.with_route(route) { presence.count }
    # The adapter looks for the database's name in libpq's message.
    rescue ActiveRecord::ConnectionNotEstablished, ActiveRecord::NoDatabaseError => e
      reason(e)
    else
      raise "connected on the #{route} route"
    end
  end

  # ActiveRecord wraps the pg gem's message in one without the reason.
  def reason(error)
    error.cause.is_a?(PG::Error) ? error.cause.message : error.message
  end

  # Expects that calls are made on ActiveRecord's connection, and that this is said once.
  def expect_active_record(configuration, reason, &)
    ActiveRecord::Base.establish_connection(configuration)
    2.times { Pgbus::Native.with_route(:native, &) }
    warnings = Pgbus.log_lines.grep(/pgbus_native/)
    expect(warnings).to contain_exactly(a_string_matching(/served on ActiveRecord's connection: .*#{reason}/))
  end

  describe "where to connect" do
    it "takes a URL with percent-encoded parts" do
      server.sql('CREATE DATABASE "my app/ü" TEMPLATE app')
      url = "postgresql://ann%20o%27n%2F%40%3A:p%40ss%3Aw%2Frd%25%23%3F@127.0.0.1:#{server.port}/my%20app%2F%C3%BC"

      expect(session_on_both_routes(url)).to include("user" => "ann o'n/@:", "database" => "my app/ü")
    end

    it "takes the folder of a Unix socket" do
      expect(session_on_both_routes(settings(host: server.directory, username: "postgres")))
        .to include("port" => nil, "ssl" => false)
    end

    it "takes a host name, and an address to it" do
      expect(session_on_both_routes(settings(host: "localhost"))).to include("port" => server.port)
      expect(session_on_both_routes(settings(host: "elsewhere.invalid", hostaddr: "127.0.0.1")))
        .to include("port" => server.port)
    end

    it "takes PGHOST and the other variables" do
      variables = {
        "PGHOST" => "127.0.0.1", "PGPORT" => server.port.to_s, "PGDATABASE" => "app", "PGUSER" => "scram",
        "PGPASSWORD" => "sécret", "PGAPPNAME" => "from the environment", "PGSSLMODE" => "require",
        "PGOPTIONS" => "-c work_mem=1234kB", "PGTZ" => "Asia/Kathmandu", "PGDATESTYLE" => "German", "PGGEQO" => "off",
        "PGCONNECT_TIMEOUT" => "3", "PGTARGETSESSIONATTRS" => "read-write", "PGCLIENTENCODING" => "UTF8"
      }
      with_env(variables) do
        expect(session_on_both_routes({ adapter: "postgresql" })).to include(
          "user" => "scram", "ssl" => true,
          "settings" => include("application_name" => "from the environment", "work_mem" => "1234",
                                "TimeZone" => "UTC", "DateStyle" => "German, DMY", "geqo" => "off")
        )
        expect(session_on_both_routes({ adapter: "postgresql", variables: { timezone: ":default" } }))
          .to include("settings" => include("TimeZone" => "Asia/Kathmandu"))
      end
    end

    it "takes a service of the service file" do
      services = file("services", <<~INI)
        [app]
        host=127.0.0.1
        port=#{server.port}
        dbname=app
        user=scram
        password=sécret
        application_name=from the service
        channel_binding=disable
      INI
      with_env("PGSERVICEFILE" => services, "PGSERVICE" => "app") do
        expect(session_on_both_routes({ adapter: "postgresql" }))
          .to include("user" => "scram", "settings" => include("application_name" => "from the service"))
      end
      # Older pg gems pass libpq's defaults on, which come before the service's values.
      with_env("PGSERVICEFILE" => services, "PGPORT" => server.port.to_s) do
        expect(session_on_both_routes({ adapter: "postgresql", service: "app", username: "scram" }))
          .to include("user" => "scram", "settings" => include("application_name" => "from the service"))
      end
      with_env("PGSERVICEFILE" => services) do
        expect(expect_no_connection({ adapter: "postgresql", service: "other" })).to all(include('"other" not found'))
      end
    end

    it "says where it could not connect, and why" do
      port = unused_port
      messages = expect_no_connection(settings(port:))

      expect(messages).to all(match(/server at "127\.0\.0\.1", port #{port} failed: Connection refused/))
    end
  end

  def unused_port
    listener = TCPServer.new("127.0.0.1", 0)
    listener.addr[1]
  ensure
    listener.close
  end

  # A port where somebody listens who never says a word.
  def mute_port
    listener = TCPServer.new("127.0.0.1", 0)
    yield listener.addr[1]
  ensure
    listener.close
  end

  describe "several hosts" do
    def standby
      server.standby
    end

    def hosts(*ports, **others)
      settings(host: ports.map { "127.0.0.1" }.join(","), port: ports.join(","), **others)
    end

    # Names of the servers on which either route has a session; a standby cannot be written to.
    def servers(configuration)
      ActiveRecord::Base.establish_connection(configuration)
      %i[native active_record].map do |route|
        Pgbus::Native.with_route(route) { presence.count }
        found = { primary: server, standby: }.select do |_, candidate|
          candidate.sql("SELECT FROM pg_stat_activity WHERE usename = 'trusted'").any?
        end
        ActiveRecord::Base.connection_handler.clear_all_connections!(:all)
        found.keys
      end
    end

    it "takes the first that answers" do
      expect(session_on_both_routes(hosts(unused_port, server.port))).to include("port" => server.port)
      expect(session_on_both_routes(settings(host: "#{home},elsewhere.invalid,127.0.0.1")))
        .to include("port" => server.port)
    end

    {
      "any" => :standby, "read-write" => :primary, "read-only" => :standby, "primary" => :primary,
      "standby" => :standby, "prefer-standby" => :standby
    }.each do |attributes, wanted|
      it "takes the first that is #{attributes}" do
        expect(servers(hosts(standby.port, server.port, target_session_attrs: attributes))).to eq([[wanted]] * 2)
        expect(servers(hosts(server.port, standby.port, target_session_attrs: attributes)))
          .to eq([[attributes == "any" ? :primary : wanted]] * 2)
      end
    end

    it "takes a primary if there is no standby to be preferred" do
      expect(servers(hosts(server.port, unused_port, target_session_attrs: "prefer-standby"))).to eq([[:primary]] * 2)
    end

    it "is content with none that is not of the kind" do
      expect(expect_no_connection(hosts(server.port, target_session_attrs: "standby")))
        .to all(include("server is not in hot standby mode"))
      expect(expect_no_connection(settings(username: "read_only", password: "secret",
                                           target_session_attrs: "read-write")))
        .to all(include("session is read-only"))
    end

    it "spreads over them if told to" do
      ports = Array.new(12) do
        session_on_either(:native, hosts(server.port, standby.port, load_balance_hosts: "random"))
      end

      expect(ports.uniq).to match_array([[:primary], [:standby]])
    end

    def session_on_either(route, configuration)
      ActiveRecord::Base.establish_connection(configuration)
      Pgbus::Native.with_route(route) { presence.count }
      { primary: server, standby: }.select do |_, candidate|
        candidate.sql("SELECT FROM pg_stat_activity WHERE usename = 'trusted'").any?
      end.keys
    ensure
      ActiveRecord::Base.connection_handler.clear_all_connections!(:all)
    end

    it "has a password for each of them" do
      passwords = file("passwords", <<~TEXT)
        127.0.0.1:#{standby.port}:app:scram:wrong
        127.0.0.1:#{server.port}:app:scram:sécret
      TEXT
      configuration = hosts(unused_port, server.port, username: "scram", passfile: passwords)

      expect(session_on_both_routes(configuration)).to include("user" => "scram")
    end

    it "does not go on to the next when one does not accept the password" do
      messages = expect_no_connection(hosts(server.port, standby.port, username: "scram", password: "wrong"))

      expect(messages).to all(match(/password authentication failed.*/))
      expect(messages.join).not_to include(standby.port.to_s)
    end

    it "goes on to the next, after connect_timeout, when one says nothing" do
      mute_port do |port|
        ActiveRecord::Base.establish_connection(hosts(port, server.port, connect_timeout: 1))

        expect(seconds { expect(session(:native)).to include("port" => server.port) }).to be_between(1.9, 5)
      end
    end
  end

  describe "passwords" do
    {
      scram: "sécret", md5: "secret", cleartext: "secret"
    }.each do |user, password|
      it "authenticates with a #{user} password" do
        expect(session_on_both_routes(settings(username: user.to_s, password:))).to include("user" => user.to_s)
        expect(expect_no_connection(settings(username: user.to_s, password: "wrong")))
          .to all(include("password authentication failed"))
      end
    end

    it "finds them in a passfile, in PGPASSFILE and in ~/.pgpass" do
      line = "127.0.0.1:*:app:scram:sécret\n"
      configuration = settings(username: "scram")
      expect(session_on_both_routes({ **configuration, passfile: file("one", line) })).to include("user" => "scram")
      with_env("PGPASSFILE" => file("two", line)) do
        expect(session_on_both_routes(configuration)).to include("user" => "scram")
      end
      file(".pgpass", line)
      expect(session_on_both_routes(configuration)).to include("user" => "scram")
    end

    it "finds one that was changed since, without a failed call" do
      passwords = file(".pgpass", "*:*:*:scram:sécret\n")
      ActiveRecord::Base.establish_connection(settings(username: "scram"))
      expect(session(:native)).to include("user" => "scram")
      server.sql("ALTER ROLE scram PASSWORD 'new'")
      File.write(passwords, "*:*:*:scram:new\n")
      server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'scram'")

      expect(session(:native)).to include("user" => "scram")
    ensure
      server.sql("ALTER ROLE scram PASSWORD 'sécret'")
    end

    it "does without where the operating system vouches for the user" do
      user = Etc.getpwuid.name
      unless server.sql("SELECT FROM pg_roles WHERE rolname = '#{user}'").any?
        server.sql("CREATE ROLE #{PG::Connection.quote_ident(user)} LOGIN")
      end
      # The first rule that fits counts, and it is for the superuser alone.
      File.write(server.file("data/pg_hba.conf"), "local all all peer\n", mode: "a")
      server.set(log_min_messages: "fatal")

      expect(session_on_both_routes(settings(host: server.directory, username: nil)))
        .to include("user" => user)
    end
  end

  describe "TLS" do
    {
      "disable" => false, "allow" => false, "prefer" => true, "require" => true
    }.each do |mode, encrypted|
      it "is #{"not " unless encrypted}used with sslmode #{mode}" do
        expect(session_on_both_routes(settings(sslmode: mode))).to include("ssl" => encrypted)
      end
    end

    it "is preferred if nothing is said" do
      expect(session_on_both_routes).to include("ssl" => true, "tls" => "TLSv1.3")
    end

    it "is used with sslmode allow where the server insists" do
      expect(session_on_both_routes(settings(sslmode: "allow", username: "tls_only"))).to include("ssl" => true)
      expect(expect_no_connection(settings(sslmode: "disable", username: "tls_only")))
        .to all(include("no pg_hba.conf entry"))
    end

    it "is given up with sslmode prefer where the server insists" do
      expect(session_on_both_routes(settings(sslmode: "prefer", username: "plain_only"))).to include("ssl" => false)
      expect(expect_no_connection(settings(sslmode: "require", username: "plain_only")))
        .to all(include("no pg_hba.conf entry"))
    end

    it "is given up with sslmode prefer, and missed with require, where the server has none" do
      server.set(ssl: "off")
      expect(session_on_both_routes(settings(sslmode: "prefer"))).to include("ssl" => false)
      expect(expect_no_connection(settings(sslmode: "require"))).to all(match(/server does not support (SSL|TLS)/))
    ensure
      server.set(ssl: "on")
    end

    %w[require verify-ca verify-full].each do |mode|
      it "verifies the server's certificate with sslmode #{mode} and sslrootcert" do
        configuration = settings(sslmode: mode, host: "localhost")
        expect(session_on_both_routes({ **configuration, sslrootcert: root_certificate })).to include("ssl" => true)
        impostor = CertificateAuthority.new("Authority")
        expect_no_connection({ **configuration, sslrootcert: root_certificate(impostor) })
      end
    end

    it "verifies whom it names with sslmode verify-full only" do
      configuration = settings(sslrootcert: root_certificate)
      expect(session_on_both_routes({ **configuration, sslmode: "verify-ca" })).to include("ssl" => true)
      expect_no_connection({ **configuration, sslmode: "verify-full" })
      expect(session_on_both_routes({ **configuration, sslmode: "verify-full", host: "localhost" }))
        .to include("ssl" => true)
    end

    %w[verify-ca verify-full].each do |mode|
      it "wants a root certificate with sslmode #{mode}" do
        expect(expect_no_connection(settings(sslmode: mode, host: "localhost")))
          .to all(match(/root certificate file .*root\.crt" does not exist/))
      end
    end

    it "finds the root certificate at home" do
      file(".postgresql/root.crt", server.authority.pem)
      expect(session_on_both_routes(settings(sslmode: "verify-full", host: "localhost"))).to include("ssl" => true)
      file(".postgresql/root.crt", CertificateAuthority.new("Other").pem)
      expect_no_connection(settings(sslmode: "require", host: "localhost"))
    end

    it "trusts the system's authorities with sslrootcert=system" do
      with_env("SSL_CERT_FILE" => root_certificate) do
        expect(session_on_both_routes(settings(sslmode: "verify-full", sslrootcert: "system", host: "localhost")))
          .to include("ssl" => true)
      end
      expect_no_connection(settings(sslmode: "verify-full", sslrootcert: "system", host: "localhost"))
      expect_no_connection(settings(sslmode: "require", sslrootcert: "system", host: "localhost"))
    end

    it "refuses a certificate that is no longer valid, and takes the renewed one" do
      expired = (Time.now - 9)..(Time.now - 1)
      server.with_certificate(server.authority.issue("localhost", valid: expired)) do
        expect_no_connection(settings(sslmode: "verify-ca", sslrootcert: root_certificate))
      end
      expect(session(:native)).to include("ssl" => true)
    end

    def client_certificate(name = "certified", from: server.authority, **options)
      certificate = from.issue(name, **options)
      { sslcert: file("client.crt", certificate.pem), sslkey: file("client.key", certificate.key) }
    end

    it "shows a client certificate" do
      expect(session_on_both_routes(settings(username: "certified", sslmode: "require", **client_certificate)))
        .to include("user" => "certified", "client_certificate" => "/CN=certified")
      expect_no_connection(settings(username: "certified", sslmode: "require", **client_certificate("other")))
      expect_no_connection(settings(username: "certified", sslmode: "require",
                                    **client_certificate(from: CertificateAuthority.new("Other"))))
      expect_no_connection(settings(username: "certified", sslmode: "require", sslcertmode: "disable",
                                    **client_certificate))
    end

    it "finds the client certificate at home" do
      certificate = server.authority.issue("certified")
      file(".postgresql/postgresql.crt", certificate.pem)
      file(".postgresql/postgresql.key", certificate.key)

      expect(session_on_both_routes(settings(username: "certified", sslmode: "require")))
        .to include("client_certificate" => "/CN=certified")
    end

    it "keeps to the versions that it is told" do
      expect(session_on_both_routes(settings(ssl_max_protocol_version: "TLSv1.2"))).to include("tls" => "TLSv1.2")
      server.set(ssl_max_protocol_version: "TLSv1.2")
      expect_no_connection(settings(sslmode: "require", ssl_min_protocol_version: "TLSv1.3"))
    ensure
      server.set(ssl_max_protocol_version: nil)
    end

    def direct_tls?
      [PostgresServer.version, PG.library_version / 10_000].min >= 17
    end

    it "begins with TLS with sslnegotiation=direct" do
      skip "PostgreSQL 17 and its libpq are wanted" unless direct_tls?

      expect(session_on_both_routes(settings(sslmode: "require", sslnegotiation: "direct"))).to include("ssl" => true)
    end

    # Cuts a call off from the server while it waits for a lock, and gives the server processes that it had before that
    # and afterwards. Fails if the first is not gone while the lock is still held.
    def processes_of_broken_call(proxy)
      first = session(:native).fetch("pid")
      calling = server.while_locked do
        Thread.new { session(:native).fetch("pid") }.tap do
          wait_until("the call waits") { server.sql(<<~SQL).any? }
            SELECT FROM pg_stat_activity WHERE pid = #{first} AND wait_event_type = 'Lock'
          SQL
          proxy.cut_clients
          wait_until("the process is gone") { server.sql("SELECT FROM pg_stat_activity WHERE pid = #{first}").empty? }
        end
      end
      [first, calling.value]
    end

    { "after a request for it" => {}, "at once" => { sslnegotiation: "direct" } }.each do |how, others|
      it "hides no server process that a broken connection leaves behind, where it began #{how}" do
        skip "PostgreSQL 17 and its libpq are wanted" if others.any? && !direct_tls?

        FaultProxy.to(server.port) do |proxy|
          ActiveRecord::Base.establish_connection(settings(port: proxy.port, sslmode: "require", **others))
          first, second = processes_of_broken_call(proxy)

          expect(second).not_to eq(first)
          expect(session(:native)).to include("pid" => second, "ssl" => true)
        end
      end
    end

    it "binds the password exchange to the channel" do
      configuration = settings(username: "scram", password: "sécret")
      %w[disable prefer require].each do |binding|
        expect(session_on_both_routes({ **configuration, channel_binding: binding })).to include("user" => "scram")
      end
      expect_no_connection({ **configuration, channel_binding: "require", sslmode: "disable" })
      expect_no_connection(settings(username: "md5", password: "secret", channel_binding: "require"))
    end

    it "is used for cancelling, too" do
      ActiveRecord::Base.establish_connection(settings(username: "tls_only", sslmode: "require"))
      presence.seats?
      server.while_locked do
        expect { Timeout.timeout(0.3) { Pgbus::Native.with_route(:native) { presence.count } } }
          .to raise_error(Timeout::Error)

        wait_until("the statement is cancelled") do
          server.sql("SELECT FROM pg_stat_activity WHERE usename = 'tls_only' AND state = 'active'").empty?
        end
      end
    end
  end

  describe "the session" do
    it "is called as ActiveRecord's is" do
      expect(session_on_both_routes["settings"]).to include("application_name" => /rspec/)
      expect(session_on_both_routes(settings(application_name: "ä's app"))["settings"]["application_name"])
        .to include("'s app")
      expect(session_on_both_routes(settings(fallback_application_name: "fallback"))["settings"])
        .to include("application_name" => "fallback")
    end

    it "has the options" do
      expect(session_on_both_routes(settings(options: "-c work_mem=1234kB -c enable_seqscan=off"))["settings"])
        .to include("work_mem" => "1234", "enable_seqscan" => "off")
    end

    it "has the variables, however they are written" do
      variables = { statement_timeout: 1234, lock_timeout: "2s", enable_seqscan: false, enable_hashjoin: true,
                    random_page_cost: 1.5, seq_page_cost: BigDecimal("0.25"), cursor_tuple_fraction: nil,
                    work_mem: ":default", temp_buffers: :default, DateStyle: "SQL, DMY" }
      expect(session_on_both_routes(settings(variables:, options: "-c work_mem=1234kB"))["settings"]).to include(
        "statement_timeout" => "1234", "lock_timeout" => "2000", "enable_seqscan" => "off", "enable_hashjoin" => "on",
        "random_page_cost" => "1.5", "seq_page_cost" => "0.25", "work_mem" => "1234", "DateStyle" => "SQL, DMY"
      )
    end

    it "has a statement_timeout that takes effect" do
      ActiveRecord::Base.establish_connection(settings(variables: { statement_timeout: "200ms" }))
      presence.seats?
      server.while_locked do
        %i[native active_record].each do |route|
          expect { Pgbus::Native.with_route(route) { presence.count } }.to raise_error(PG::QueryCanceled)
        end
      end
    end

    it "has the search path, min_messages and time zone" do
      server.sql("CREATE SCHEMA tenant; GRANT USAGE ON SCHEMA tenant TO PUBLIC", database: "app")
      expect(session_on_both_routes(settings(schema_search_path: 'public, "tenant"', min_messages: "error")))
        .to include("schemas" => %w[public tenant], "settings" => include("client_min_messages" => "error"))
      expect(session_on_both_routes["settings"]).to include("TimeZone" => "UTC", "client_min_messages" => "warning")
      ActiveRecord.default_timezone = :local
      expect(session_on_both_routes["settings"]["TimeZone"]).not_to eq("UTC")
      expect(session_on_both_routes(settings(variables: { timezone: "Asia/Tokyo" }))["settings"])
        .to include("TimeZone" => "Asia/Tokyo")
    ensure
      ActiveRecord.default_timezone = :utc
    end

    %w[unicode utf8 UTF-8].each do |encoding|
      it "speaks UTF-8 with encoding #{encoding}" do
        expect(session_on_both_routes(settings(encoding:))["settings"]).to include("client_encoding" => "UTF8")
      end
    end

    it "uses named statements unless told otherwise" do
      { true => true, false => false, "false" => false }.each do |prepared_statements, names|
        ActiveRecord::Base.establish_connection(settings(prepared_statements:))
        2.times { session(:native) }

        expect(session(:native)).to include("names" => names)
      end
    end
  end

  describe "the socket" do
    # The socket on which a session's client talks to the server, in this process.
    def socket(pid)
      port = server.sql("SELECT client_port FROM pg_stat_activity WHERE pid = #{pid}").first["client_port"].to_i
      Dir["/proc/self/fd/*"].filter_map do |path|
        next unless File.readlink(path).start_with?("socket:")

        socket = Socket.for_fd(File.basename(path).to_i).tap { |found| found.autoclose = false }
        socket if socket.local_address.ip? && socket.local_address.ip_port == port
      rescue SystemCallError
        nil
      end.first
    end

    def options(pid)
      found = socket(pid)
      { keepalive: found.getsockopt(:SOCKET, :KEEPALIVE).bool, nodelay: found.getsockopt(:TCP, :NODELAY).bool,
        idle: found.getsockopt(:TCP, :KEEPIDLE).int, interval: found.getsockopt(:TCP, :KEEPINTVL).int,
        count: found.getsockopt(:TCP, :KEEPCNT).int, user_timeout: found.getsockopt(:TCP, 18).int }
    end

    def options_on_both_routes(configuration)
      ActiveRecord::Base.establish_connection(configuration)
      native, active_record = %i[native active_record].map { |route| options(session(route)["pid"]) }
      expect(native).to eq(active_record)
      native
    end

    it "has the system's keepalives, the given ones, or none" do
      skip "/proc tells of sockets only on Linux" unless File.directory?("/proc/self/fd")

      expect(options_on_both_routes(settings)).to include(keepalive: true, nodelay: true)
      expect(options_on_both_routes(settings(keepalives_idle: 111, keepalives_interval: 22, keepalives_count: 3,
                                             tcp_user_timeout: 4444)))
        .to include(keepalive: true, idle: 111, interval: 22, count: 3, user_timeout: 4444)
      expect(options_on_both_routes(settings(keepalives: 0))).to include(keepalive: false)
    end

    it "gives up after connect_timeout", :slow do
      mute_port do |port|
        %i[native active_record].each do |route|
          ActiveRecord::Base.establish_connection(settings(port:, connect_timeout: 1))
          taken = seconds do
            expect { Pgbus::Native.with_route(route) { presence.count } }
              .to(raise_error { |error| expect(reason(error)).to include("timeout expired") })
          end
          # ActiveRecord tries twice.
          expect(taken).to be_between(1.9, 6)
        end
      end
    end
  end

  describe "what the native client cannot do" do
    it "is left to ActiveRecord when the settings say it, with one warning" do
      expect_active_record(settings(encoding: "latin1"), "encoding is latin1") { expect(presence.count).to be >= 0 }
      Pgbus.start_over
      expect_active_record(settings(require_auth: "none"), "require_auth") { expect(presence.count).to be >= 0 }
    end

    it "is left to ActiveRecord when the server asks for GSSAPI" do
      expect_active_record(settings(username: "gssapi"), "unsupported authentication method") do
        expect { presence.count }
          .to raise_error(ActiveRecord::ConnectionNotEstablished) { |e| expect(reason(e)).to include("GSSAPI") }
      end
    end

    it "is left to ActiveRecord when only GSSAPI encryption would do" do
      expect_active_record(settings(username: "kerberized"), "no pg_hba.conf entry") do
        expect { presence.count }
          .to(raise_error { |error| expect(reason(error)).to include("no pg_hba.conf entry") })
      end
    end

    it "is left to ActiveRecord with a revocation list" do
      configuration = settings(sslrootcert: root_certificate, sslcrl: file("list", server.authority.revocation_list))
      expect_active_record(configuration, "revocation") { expect(session_of_now).to include("ssl" => true) }
    end

    # The metadata of a join on the route that the gem chooses.
    def session_of_now
      presence.join(member_id: "7", connection_id: "c1")["metadata"]
    end

    it "is left to ActiveRecord with an encrypted client key" do
      certificate = server.authority.issue("certified", password: "secret")
      configuration = settings(username: "certified", sslcert: file("client.crt", certificate.pem),
                               sslkey: file("client.key", certificate.key), sslpassword: "secret")
      expect_active_record(configuration, "client.key") { expect(session_of_now).to include("user" => "certified") }
    end

    it "is left to ActiveRecord with certificates that only OpenSSL accepts" do
      certificate = CertificateAuthority.new("localhost", subjectAltName: "DNS:localhost").self_signed
      configuration = settings(host: "localhost", sslmode: "verify-full", sslrootcert: file("root", certificate.pem))
      server.with_certificate(certificate) do
        expect_active_record(configuration, "invalid peer certificate") do
          expect(session_of_now).to include("ssl" => true)
        end
      end
    end

    it "is tried again after a while" do
      certificate = CertificateAuthority.new("localhost", subjectAltName: "DNS:localhost").self_signed
      roots = file("roots", certificate.pem + server.authority.pem)
      ActiveRecord::Base.establish_connection(settings(sslrootcert: roots))
      server.with_certificate(certificate) { expect(routes { 2.times { presence.count } }).to eq([:active_record]) }

      expect(routes { presence.count }).to eq([:active_record])
      later = Pgbus::Native::Databases.now + Pgbus::Native::Databases::SECOND_TRY
      allow(Pgbus::Native::Databases).to receive(:now).and_return(later)
      expect(routes { presence.count }).to eq([:native])
    end

    # The routes on which the block's calls ended.
    def routes
      before = Pgbus::Native.stats[:calls]
      yield
      after = Pgbus::Native.stats[:calls]
      after.keys.select { |route| after[route] > before[route] }
    end
  end

  it "are resolved without looking up a host or opening a socket" do
    configuration = ActiveRecord::DatabaseConfigurations::HashConfig.new(
      "test", "primary", settings(host: "a.invalid,b.invalid,192.0.2.1")
    )

    taken = seconds { Pgbus::Native::ConnectionSettings.new(configuration, :utc).keywords }
    expect(taken).to be < 0.1
  end
end
