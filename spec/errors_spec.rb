# frozen_string_literal: true

require_relative "support/fault_proxy"
require_relative "support/fault_server"

# Each kind of error that callers may meet, brought about for real, on the native route; and what its message
# tells the reader to do.
RSpec.describe "Errors of Presence", :fault_server, implementation: Implementation::NATIVE do
  # The error that the block raises.
  def error
    yield
    raise "nothing was raised"
  rescue PG::Error, ActiveRecord::ActiveRecordError, ArgumentError, Pgbus::ConfigurationError => e
    e
  end

  # The class that the pg gem raises for a statement that fails with the same SQLSTATE.
  def class_of(sqlstate)
    server.sql("DO $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = '#{sqlstate}'; END $$")
  rescue PG::Error => e
    e.class
  end

  def with_settings(**settings)
    SpecDatabase.establish(**server.settings(**settings))
    presence_class.reset_schema_cache!
    yield
  end

  def rows
    server.sql("SELECT * FROM pgbus_presence_members")
  end

  describe "of the server" do
    it "is PG::UndefinedTable without the table, and says which generator makes it" do
      server.sql("DROP TABLE pgbus_presence_members")

      message = /relation "pgbus_presence_members" does not exist.*rails generate pgbus:\w+.*db:migrate/m
      [-> { presence.join(member_id: "7") }, -> { presence.members }, -> { presence.leave(member_id: "7") },
       -> { presence.count }].each { |call| expect { call.call }.to raise_error(PG::UndefinedTable, message) }
    end

    it "is PG::UndefinedColumn for a seat on a table without seats, and says which generator adds them" do
      server.sql("ALTER TABLE pgbus_presence_members DROP connection_id, DROP seat, DROP state")
      presence_class.reset_schema_cache!

      message = /column .*does not exist.*connection_id:.*rails generate pgbus:\w+seats.*db:migrate/m
      [-> { presence.join(member_id: "7", connection_id: "c1") }, -> { presence.leave(connection_id: "c1") },
       -> { presence.touch(connection_id: "c1") }, -> { presence.set_state(connection_id: "c1", state: {}) }]
        .each { |call| expect { call.call }.to raise_error(PG::UndefinedColumn, message) }
    end

    it "is PG::UntranslatableCharacter for text that the database's encoding has not, and stores nothing" do
      server.administer do |connection|
        connection.exec("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
      end
      with_settings(database: "latin") do
        SpecDatabase::MIGRATIONS.each { |migration| migration.new.exec_migration(ActiveRecord::Base.connection, :up) }
        presence_class.reset_schema_cache!

        expect { presence.join(member_id: "日本") }.to raise_error(PG::UntranslatableCharacter, /LATIN1/)
        expect { presence.join(member_id: "7", metadata: { a: "日本" }) }.to raise_error(PG::UntranslatableCharacter)
        expect(presence.join(member_id: "é")["id"]).to eq("é")
        expect(presence.members.map { |record| record["id"] }).to eq(["é"])
      end
    ensure
      SpecDatabase.establish(**server.settings)
      server.administer { |connection| connection.exec("DROP DATABASE latin WITH (FORCE)") }
    end

    it "is PG::UntranslatableCharacter for a NUL in JSON, PG::CharacterNotInRepertoire for text that is none" do
      expect { presence.join(member_id: "7", metadata: { a: "\0" }) }.to raise_error(PG::UntranslatableCharacter)
      expect { presence.join(member_id: "a\xFF") }.to raise_error(PG::CharacterNotInRepertoire)
      expect(rows).to be_empty
    end

    it "is PG::StringDataRightTruncation for what is too long, and stores nothing" do
      server.sql("ALTER TABLE pgbus_presence_members ALTER member_id TYPE varchar(3)")

      expect { presence.join(member_id: "1234") }
        .to raise_error(PG::StringDataRightTruncation, /character varying\(3\)/)
      expect(rows).to be_empty
    end

    it "is PG::ProgramLimitExceeded for an id that no index holds" do
      id = Random.new(1).bytes(20_000).unpack1("H*")

      expect { presence.join(member_id: id) }.to raise_error(PG::ProgramLimitExceeded, /index row/)
    end

    it "is PG::QueryCanceled where the statement times out, or an administrator cancels it" do
      with_settings(variables: { statement_timeout: "100ms" }) do
        presence.seats?
        server.while_locked { expect { presence.count }.to raise_error(PG::QueryCanceled, /statement timeout/) }
      end
      SpecDatabase.establish(**server.settings)
      server.while_locked do
        calling = in_thread { presence.count }
        wait_until("the call waits") { server.blocked.any? }
        server.sql("SELECT pg_cancel_backend($1)", server.blocked.first)
        expect { calling.value }.to raise_error(PG::QueryCanceled, /user request/)
      end
    end

    it "is PG::LockNotAvailable where a lock is waited for too long" do
      with_settings(variables: { lock_timeout: "100ms" }) do
        presence.seats?
        server.while_locked { expect { presence.join(member_id: "7") }.to raise_error(PG::LockNotAvailable) }
      end
    end

    it "is PG::ReadOnlySqlTransaction where sessions are read-only" do
      with_settings(variables: { default_transaction_read_only: "on" }) do
        expect { presence.join(member_id: "7") }.to raise_error(PG::ReadOnlySqlTransaction)
        expect(presence.count).to eq(0)
      end
    end

    it "is PG::InsufficientPrivilege where the user may not" do
      server.sql("CREATE ROLE reader LOGIN")
      server.sql("GRANT SELECT ON pgbus_presence_members TO reader")
      with_settings(username: "reader") do
        expect { presence.join(member_id: "7") }.to raise_error(PG::InsufficientPrivilege, /permission denied/)
        expect(presence.count).to eq(0)
      end
    end

    it "is PG::InvalidDatetimeFormat for a cutoff that is none" do
      expect { presence.sweep!(older_than: "no time") }.to raise_error(PG::InvalidDatetimeFormat, /no time/)
    end

    %w[22012 23514 40001 40P01 53100 54000 55000 58030 P0001 XX000 22ZZZ ZZ123].each do |sqlstate|
      it "is the class of SQLSTATE #{sqlstate}, with message, detail and hint" do
        server.sql("CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                      RAISE EXCEPTION 'no: ü' USING ERRCODE = '#{sqlstate}', DETAIL = 'the detail', HINT = 'the hint';
                    END $$")
        server.sql("CREATE TRIGGER refuse BEFORE INSERT ON pgbus_presence_members
                    FOR EACH ROW EXECUTE FUNCTION refuse()")

        raised = error { presence.join(member_id: "7") }
        expect(raised.class).to eq(class_of(sqlstate))
        expect(raised.message).to match(/\AERROR:  no: ü\nDETAIL:  the detail\nHINT:  the hint\n/)
        expect(presence.count).to eq(0)
      end
    end
  end

  describe "of arguments" do
    it "is an ArgumentError for a NUL byte, wherever it stands" do
      calls = [-> { presence.join(member_id: "a\0") }, -> { presence.join(member_id: "7", connection_id: "\0") },
               -> { presence.join(member_id: "7", connection_id: "c1", seat: "\0") },
               -> { presence.touch(connection_id: %W[a b\0]) }, -> { presence.leave(member_id: "\0") },
               -> { presence_of("\0").count }, -> { presence.sweep!(older_than: "\0") }]

      calls.each { |call| expect { call.call }.to raise_error(ArgumentError, /null byte/) }
      expect(rows).to be_empty
    end
  end

  describe "of connections" do
    it "is ActiveRecord::ConnectionNotEstablished where nobody listens, and says where and why" do
      with_settings(port: 1) do
        expect { presence.count }
          .to raise_error(ActiveRecord::ConnectionNotEstablished, /"127\.0\.0\.1".*port 1\b.*refused/m)
      end
    end

    it "is that for a host that does not exist, a socket that is not there, and names them" do
      with_settings(host: "nowhere.invalid") do
        expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished, /nowhere\.invalid/)
      end
      with_settings(host: "/nowhere") do
        expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished, %r{/nowhere.*No such file}m)
      end
    end

    it "is that for a user who may not log in, with the server's reason" do
      with_settings(username: "nobody_here") do
        expect { presence.count }
          .to raise_error(ActiveRecord::ConnectionNotEstablished, /role "nobody_here" does not exist/)
      end
    end

    it "is that for a server that is not one" do
      listener = TCPServer.new("127.0.0.1", 0)
      echo = Thread.new do
        loop do
          client = listener.accept
          client.write("HTTP/1.1 400 Bad Request\r\n\r\n")
          client.close
        end
      end
      with_settings(port: listener.addr[1]) do
        expect { presence.count }
          .to raise_error(ActiveRecord::ConnectionNotEstablished, /port #{listener.addr[1]}/)
      end
    ensure
      echo&.kill&.join
      listener&.close
    end

    it "is that while the server shuts down" do
      presence.count
      server.administer do # a session that a shutdown waits for
        stopping = Thread.new { server.stop("smart") }
        SpecDatabase.establish(**server.settings)
        refused = wait_until("the server takes no new sessions") do
          SpecDatabase.establish(**server.settings)
          presence.count
          nil
        rescue ActiveRecord::ConnectionNotEstablished => e
          e
        end
        expect(refused.message).to match(/the database system is shutting down/)
        server.stop("fast")
        stopping.join
      end
    ensure
      server.start
    end

    it "is ActiveRecord's own for a database that does not exist" do
      with_settings(database: "no_such_database") do
        expect { presence.count }.to raise_error(ActiveRecord::NoDatabaseError, /no_such_database/)
      end
    end

    it "is PG::ConnectionBad where the connection breaks under a statement, with the server's reason" do
      presence.join(member_id: "7")
      server.while_locked do
        calling = in_thread { presence.leave(member_id: "7") }
        wait_until("the call waits") { server.blocked.any? }
        server.terminate(server.blocked.first)
        expect { calling.value }
          .to raise_error(PG::ConnectionBad, /terminating connection due to administrator command/)
      end
    end

    it "is ActiveRecord::ConnectionTimeoutError where all native connections stay busy, and says what to do" do
      before = Pgbus::Native.configuration.checkout_timeout
      Pgbus::Native.configure { |config| config.checkout_timeout = 0.2 }
      with_settings do
        presence.join(member_id: "7")
        server.while_locked do
          busy = Array.new(4) { in_thread { presence.members } }
          wait_until("all are busy") { server.blocked.size == 4 }
          expect { presence.count }
            .to raise_error(ActiveRecord::ConnectionTimeoutError, /4 native connections.*0\.2 seconds.*pool_size/m)
          busy.each(&:kill)
        end
      end
    ensure
      Pgbus::Native.configure { |config| config.checkout_timeout = before }
    end

    it "never shows a password" do
      with_settings(username: "nobody_here", password: "s3cret") do
        raised = error { presence.count }
        expect([raised.message, raised.full_message, Pgbus.log_lines.join]).not_to include(/s3cret/)
      end
    end

    it "is a Pgbus::ConfigurationError without ActiveRecord" do
      # Back again before the hooks after the example.
      RSpec::Mocks.with_temporary_scope do
        hide_const("ActiveRecord")
        expect { presence.count }.to raise_error(Pgbus::ConfigurationError, /requires ActiveRecord/)
        expect { presence_class.connection }.to raise_error(Pgbus::ConfigurationError, /requires ActiveRecord/)
      end
    end
  end

  it "leaves nothing behind for the next call, whatever went wrong before" do
    bad = [-> { presence.join(member_id: "a\xFF") }, -> { presence.sweep!(older_than: "no time") },
           -> { presence.join(member_id: "7", metadata: { a: "\0" }) }, -> { presence.join(member_id: "\0") }]
    200.times do |number|
      error { bad[number % bad.size].call }
      expect(presence.join(member_id: number)["id"]).to eq(number.to_s)
    end

    expect(presence.count).to eq(200)
  end
end
