# frozen_string_literal: true

# What the log tells of a database that is out of reach.
require "support/fault_server"

RSpec.describe "Outages in the log", :fault_server, implementation: Implementation::AUTO do
  def outage_lines
    log_lines.grep(/lost the connection|answers again/)
  end

  # As many connections as the pool has, all in use at once.
  def with_all_connections
    threads = []
    server.while_locked do
      threads = Array.new(4) { |number| in_thread { presence.join(member_id: number) } }
      wait_until("four calls wait for the lock") { server.blocked.size == 4 }
    end
    threads.each(&:join)
  end

  it "tells once of a restart, whatever the number of connections, and once that it is over" do
    with_all_connections
    server.restart("fast")
    8.times { presence.count }
    with_all_connections

    expect(outage_lines).to match([/lost the connection to database "primary"/, /answers again, \d+\.\d+ s after/])
  end

  it "tells once of a server that is gone, however many calls fail" do
    presence.count
    server.stop("fast")
    begin
      failures = in_threads(6) { Array.new(5) { presence.count rescue $!.class } } # rubocop:disable Style/RescueModifier, Style/SpecialGlobalVars
      expect(failures.flatten.uniq).to contain_exactly(ActiveRecord::ConnectionNotEstablished)
      expect(outage_lines.size).to eq(1)
    ensure
      server.start
    end
    presence.count

    expect(outage_lines.size).to eq(2)
  end

  it "tells of each outage" do
    2.times do
      presence.count
      server.terminate_sessions
      presence.count
    end

    expect(outage_lines.map { |line| line[/lost|again/] }).to eq(%w[lost again lost again])
  end

  it "counts what was run again, in the event of the call" do
    presence.count
    event = thread = nil
    ActiveSupport::Notifications.subscribed(->(made) { event = made }, "join.pgbus_native") do
      server.while_locked do
        thread = in_thread { presence.join(member_id: "7") }
        wait_until("it waits for the lock") { server.blocked.size == 1 }
        server.terminate(server.blocked.first)
        wait_until("it waits again, on another connection") { server.blocked.size == 1 }
      end
      thread.join
    end

    expect(event.payload).to include(route: :native, retries: 1, rows: 1)
  end
end
