# frozen_string_literal: true

# What an operator may listen to.
RSpec.describe "Events of Presence" do
  # The events that the block made, as [name, payload], without what a failure adds.
  def events(pattern = /\.pgbus_native\z/, &)
    events = Queue.new
    listener = ->(event) { events << event }
    ActiveSupport::Notifications.subscribed(listener, pattern, &)
    Array.new(events.size) { events.pop }
  end

  def seat(number, **others)
    presence.join(member_id: "7", connection_id: "c#{number}", **others)
  end

  Implementation::GEM.each do |route_implementation|
    route = route_implementation == Implementation::ACTIVE_RECORD ? :active_record : :native
    context "on the #{route} route", implementation: route_implementation do
      # Looking at the table is a call, too.
      before { presence.seats? }

      {
        "join" => [-> { presence.join(member_id: "7") }, 1],
        "leave" => [-> { presence.leave(connection_id: "c1") }, 1],
        "touch" => [-> { presence.touch(connection_id: %w[c1 c2 nobody]) }, 2],
        "set_state" => [-> { presence.set_state(connection_id: "c1", state: { "a" => 1 }) }, 1],
        "members" => [-> { presence.members }, 2],
        "count" => [-> { presence.count }, 1],
        "sweep" => [-> { presence.sweep!(older_than: Time.now) }, 0]
      }.each do |operation, (call, rows)|
        it "has one of each #{operation}, with stream, route, rows, batch size and retries" do
          seat(1)
          seat(2)
          made = events { instance_exec(&call) }

          expect(made.map(&:name)).to eq(["#{operation}.pgbus_native"])
          expect(made.first.payload).to eq(stream: "room:42", route:, rows:, batch_size: 1, retries: 0)
          expect(made.first.duration).to be_between(0.001, 10_000)
        end
      end

      it "has one of each expire_seats!, whatever its statements" do
        5.times { |number| seat(number) }
        age(60)
        made = events { presence_class.expire_seats!(ttl_for: ->(_) { 30 }, min_ttl: 30) }

        expect(made.map(&:name)).to eq(["expire_seats.pgbus_native"])
        expect(made.first.payload).to eq(stream: nil, route:, rows: 5, batch_size: 1, retries: 0)
      end

      it "has one of each look at the table" do
        presence_class.reset_schema_cache!
        expect(events { presence_class.seats_supported? }.map(&:name)).to eq(["seats_supported.pgbus_native"])
        expect(events { presence_class.seats_supported? }).to be_empty
      end

      it "says how a call failed" do
        made = events { presence.join(member_id: "7\0") rescue nil } # rubocop:disable Style/RescueModifier

        expect(made.map(&:name)).to eq(["join.pgbus_native"])
        expect(made.first.payload).to include(stream: "room:42", exception: ["ArgumentError", /null byte/])
        expect(made.first.payload).not_to have_key(:rows)
      end

      it "is only there for who listens" do
        expect(events("count.pgbus_native") { [presence.count, presence.members] }.size).to eq(1)
        expect(events("join.active_job") { presence.count }).to be_empty
      end
    end
  end

  it "says how many calls were run in one statement", implementation: Implementation::NATIVE do
    presence.count
    threads = []
    made = events("join.pgbus_native") do
      while_locked do
        threads = Array.new(24) { |number| in_thread { seat(number) } }
        wait_until("four wait for the lock, the others for a connection") do
          Pgbus::Native.stats[:busy] == 4 && threads.count { |thread| thread.status == "sleep" } == 24
        end
      end
      threads.each(&:join)
    end

    sizes = made.map { |event| event.payload[:batch_size] }
    expect(sizes.size).to eq(24)
    expect(sizes.max).to be > 1
    # So many calls say so of each batch as there are in it.
    expect(sizes.tally).to all(satisfy { |size, calls| (calls % size).zero? })
  end
end
