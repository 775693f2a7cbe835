# frozen_string_literal: true

require_relative "support/pgbouncer"
require_relative "support/settings_server"

# A connection pooler between the calls and the database.
RSpec.describe "Presence behind PgBouncer", :settings_server do
  # What every operation there is answers, one after the other on a stream of its own.
  def answers(number)
    presence = presence_class.new(SpecStream.new("room:#{number}"))
    seat = "c#{number}"
    [
      presence.join(member_id: "7")["id"], presence.join(member_id: "7", connection_id: seat, seat: "s")["seat"],
      presence.touch(member_id: "7"), presence.touch(connection_id: [seat, "nobody"]),
      presence.set_state(connection_id: seat, state: { a: 1 })["state"], presence.members.size,
      presence.leave(connection_id: seat)["connection_id"], presence.leave(member_id: "8"),
      presence.sweep!(older_than: Time.now + 60), presence.count,
      presence_class.expire_seats!(ttl_for: ->(_) { 3600 }, min_ttl: 3600), presence.seats?
    ]
  end

  def expected(number)
    ["7", "s", 1, ["c#{number}"], { "a" => 1 }, 2, "c#{number}", nil, 1, 0, [], true]
  end

  def in_sixteen_threads(&)
    threads = Array.new(16) do |number|
      Thread.new do
        Thread.current.report_on_exception = false
        10.times { |round| yield(number, round) }
      ensure
        ActiveRecord::Base.connection_handler.clear_active_connections!(:all)
      end
    end
    threads.each(&:value)
  ensure
    threads.each(&:kill)
  end

  # Points the calls at a PgBouncer.
  def behind(mode:, sessions:, **others)
    skip PgBouncer.unavailable if PgBouncer.unavailable

    bouncer = PgBouncer.new(server, mode:, sessions:)
    ActiveRecord::Base.establish_connection(settings(port: bouncer.port, pool: 16, **others))
    server.set(log_statement: "all")
    yield
  ensure
    ActiveRecord::Base.remove_connection
    bouncer&.stop
    server.set(log_statement: nil)
  end

  # The statements that the server carried out in the block, by name. Those of the simple protocol have none.
  def names_of_statements
    logged = server.log.size
    yield
    server.log[logged..].scan(/LOG:  execute ([^:]+):/).flatten.tally
  end

  around do |example|
    before = Pgbus::Native.configuration.pool_size
    Pgbus::Native.configure { |config| config.pool_size = 8 }
    example.run
  ensure
    Pgbus::Native.configure { |config| config.pool_size = before }
  end

  it "works in transaction mode without prepared statements, and names none" do
    behind(mode: "transaction", sessions: 3, prepared_statements: false) do
      names = names_of_statements do
        before = Pgbus::Native.stats[:calls]
        in_sixteen_threads { |number| expect(answers(number)).to eq(expected(number)) }
        expect(Pgbus::Native.stats[:calls]).to include(native: a_value >= before[:native] + 1600,
                                                       active_record: before[:active_record])
      end

      expect(names.keys).to eq(["<unnamed>"])
    end
  end

  it "works in transaction mode inside transactions, too" do
    behind(mode: "transaction", sessions: 3, prepared_statements: false) do
      in_sixteen_threads do |number, round|
        ActiveRecord::Base.transaction do
          expect(answers(number)).to eq(expected(number))
          raise ActiveRecord::Rollback if round.odd?
        end
      end

      expect(presence.seats?).to be(true)
    end
  end

  it "works in session mode with prepared statements" do
    # Sessions keep their connection to the server: ActiveRecord's and the native ones.
    behind(mode: "session", sessions: 32) do
      names = names_of_statements do
        in_sixteen_threads { |number| expect(answers(number)).to eq(expected(number)) }
      end

      expect(names.keys).to include(a_string_matching(/\A\w+\z/))
    end
  end

  it "ends a call that is interrupted, through PgBouncer" do
    behind(mode: "transaction", sessions: 3, prepared_statements: false) do
      presence.seats?
      server.while_locked do
        expect { Timeout.timeout(0.3) { presence.count } }.to raise_error(Timeout::Error)
        wait_until("the statement is cancelled") do
          server.sql("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").empty?
        end
      end
    end
  end
end
