# frozen_string_literal: true

# Callers rescue what they rescued before.
RSpec.shared_examples "errors" do
  context "with a table without seats", table: { seats: false } do
    it "are PG::UndefinedColumn where seats are asked for" do
      expect { presence.join(member_id: "7", connection_id: "c1") }
        .to raise_error(PG::UndefinedColumn, /column "connection_id" .*does not exist/)
      expect { presence.leave(connection_id: "c1") }.to raise_error(PG::UndefinedColumn)
      expect { presence.touch(connection_id: "c1") }.to raise_error(PG::UndefinedColumn)
      expect { presence.set_state(connection_id: "c1", state: {}) }.to raise_error(PG::UndefinedColumn)
    end
  end

  context "without the table" do
    before do
      presence.seats?
      SpecDatabase.table_changed
      sql("DROP TABLE pgbus_presence_members")
    end

    {
      "join" => ->(presence) { presence.join(member_id: "7") },
      "join of a seat" => ->(presence) { presence.join(member_id: "7", connection_id: "c1") },
      "leave" => ->(presence) { presence.leave(member_id: "7") },
      "touch" => ->(presence) { presence.touch(connection_id: ["c1"]) },
      "set_state" => ->(presence) { presence.set_state(connection_id: "c1", state: {}) },
      "members" => lambda(&:members),
      "count" => lambda(&:count),
      "sweep!" => ->(presence) { presence.sweep!(older_than: "now") },
      "expire_seats!" => ->(presence) { presence.class.expire_seats!(ttl_for: ->(_) { 1 }, min_ttl: 1) }
    }.each do |name, call|
      it "are PG::UndefinedTable with the server's message: #{name}" do
        expect { call.call(presence) }
          .to raise_error(PG::UndefinedTable, /relation "pgbus_presence_members" does not exist/)
      end
    end
  end

  context "with short columns", table: { ids: "varchar(5)" } do
    it "are PG::StringDataRightTruncation, and nothing is stored" do
      expect { presence_of("room").join(member_id: "123456") }
        .to raise_error(PG::StringDataRightTruncation, /value too long for type character varying\(5\)/)
      expect { presence_of("room").join(member_id: "12345", connection_id: "c1", seat: "123456") }
        .to raise_error(PG::StringDataRightTruncation)
      expect(rows).to be_empty
      expect(changes).to be_empty
    end
  end

  it "are those of a trigger of the application, with its message" do
    sql("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'full: ü' USING ERRCODE = 'P0001'; END $$")
    sql("CREATE TRIGGER refuse BEFORE INSERT ON pgbus_presence_members FOR EACH ROW EXECUTE FUNCTION refuse()")

    expect { presence.join(member_id: "7") }.to raise_error(PG::RaiseException, /full: ü/)
  ensure
    sql("DROP FUNCTION refuse() CASCADE")
  end

  it "are the PG class of an unknown code's kind" do
    sql("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = '22ZZZ'; END $$")
    sql("CREATE TRIGGER refuse BEFORE INSERT ON pgbus_presence_members FOR EACH ROW EXECUTE FUNCTION refuse()")

    expect { presence.join(member_id: "7") }
      .to raise_error(PG::Error) { |error| expect(error.class).to eq(as_pg_raises("22ZZZ")) }
  ensure
    sql("DROP FUNCTION refuse() CASCADE")
  end

  def as_pg_raises(code)
    sql("DO $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = '#{code}'; END $$")
  rescue PG::Error => e
    e.class
  end

  it "leave the next call right" do
    presence.seats?
    expect { presence.sweep!(older_than: "no time") }.to raise_error(PG::InvalidDatetimeFormat)

    expect(presence.join(member_id: "7")).to include("id" => "7")
    expect(presence.count).to eq(1)
  end

  it "are ActiveRecord::ConnectionNotEstablished where no connection can be made" do
    with_connection_settings(host: "127.0.0.1", port: 1) do
      expect { presence.members }.to raise_error(ActiveRecord::ConnectionNotEstablished)
      expect { presence.join(member_id: "7") }.to raise_error(ActiveRecord::ConnectionNotEstablished)
    end
  end

  it "are ActiveRecord's where there is no such database, or no such role" do
    with_connection_settings(database: "#{SpecDatabase::NAME}_nowhere") do
      expect { presence.count }.to raise_error(ActiveRecord::NoDatabaseError)
    end
    with_connection_settings(username: "pgbus_native_nobody") do
      expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished)
    end
  end

  it "are PG::ConnectionBad where the connection breaks under a statement" do
    presence.join(member_id: "7")
    thread = while_locked do
      in_thread { presence.leave(member_id: "7") }.tap do
        wait_until("the call waits") { blocked_sessions == 1 }
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'")
        wait_until("its session is gone") { blocked_sessions.zero? }
      end
    end

    expect { thread.value }.to raise_error(PG::ConnectionBad)
  end
end
