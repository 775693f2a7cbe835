# frozen_string_literal: true

RSpec.shared_examples "expiring seats" do
  # A seat not heard of for so many seconds.
  def seat(connection_id, seconds, stream_name: stream.name, **columns)
    insert_row(stream_name:, connection_id:, **columns)
    age(seconds, connection_id:, stream_name:)
  end

  def expire(ttl: 100, min_ttl: 100)
    ttl_for = ttl.respond_to?(:call) ? ttl : ->(_stream_name) { ttl }
    presence_class.expire_seats!(ttl_for:, min_ttl:)
  end

  def connection_ids
    rows.map { |row| row["connection_id"] }
  end

  it "deletes the seats not touched within the ttl and returns their records, with the stream's name" do
    seat("old", 150, member_id: "7", seat: "left", metadata: '{"name": "Ada"}', state: '{"typing": true}')
    seat("new", 50)

    expect(expire).to match(
      [{ "stream_name" => "room:42", "id" => "7", "metadata" => { "name" => "Ada" }, "joined_at" => Time,
         "last_seen_at" => Time, "connection_id" => "old", "seat" => "left", "state" => { "typing" => true } }]
    )
    expect(connection_ids).to eq(["new"])
  end

  it "leaves members' own rows alone, however old" do
    insert_row
    age(1_000_000)

    expect(expire).to eq([])
    expect(rows.size).to eq(1)
  end

  it "gives each stream its own ttl, asked for by name" do
    seat("a", 150, stream_name: "short")
    seat("b", 150, stream_name: "long")
    seat("c", 250, stream_name: "long")
    ttls = { "short" => 100, "long" => 200 }

    expect(expire(ttl: ttls.method(:fetch)).map { |record| record.values_at("stream_name", "connection_id") })
      .to contain_exactly(%w[short a], %w[long c])
    expect(connection_ids).to eq(["b"])
  end

  it "asks for a stream's ttl once, and only where something may have expired" do
    3.times { |tab| seat("old#{tab}", 150, stream_name: "old") }
    seat("new", 50, stream_name: "new")
    asked = []
    expire(ttl: ->(stream_name) { asked.push(stream_name) && 100 })

    expect(asked).to eq(["old"])
  end

  it "narrows by min_ttl: what is younger is not even looked at" do
    seat("young", 50)

    expect(expire(ttl: 10, min_ttl: 100)).to eq([])
    expect(rows.size).to eq(1)
  end

  it "takes seconds as Integer, Float or Duration" do
    [[100, 100], [100.5, 99.5], [100.seconds, 1.minute], [Rational(201, 2).to_f, 2.minutes]].each do |ttl, min_ttl|
      seat("old", 150)
      seat("new", 50)

      expect(expire(ttl:, min_ttl:).map { |record| record["connection_id"] }).to eq(["old"])
      sql("DELETE FROM pgbus_presence_members")
    end
  end

  it "heeds fractions of a second" do
    seat("old", 1.0)

    expect(expire(ttl: 1000.5, min_ttl: 0.25)).to eq([])
    expect(expire(ttl: 0.5, min_ttl: 0.25).size).to eq(1)
  end

  it "expires everything not seen this instant for a ttl of 0" do
    seat("a", 0)

    expect(expire(ttl: 0, min_ttl: 0).size).to eq(1)
  end

  it "expires nothing of a stream whose ttl is nil" do
    seat("a", 150)

    expect(expire(ttl: nil)).to eq([])
    expect(rows.size).to eq(1)
  end

  it "keeps a seat that is touched between finding and deleting" do
    seat("touched", 150)
    seat("silent", 150)
    touching = lambda do |_stream_name|
      sql("UPDATE pgbus_presence_members SET last_seen_at = now() WHERE connection_id = 'touched'")
      100
    end

    expect(expire(ttl: touching).map { |record| record["connection_id"] }).to eq(["silent"])
    expect(connection_ids).to eq(["touched"])
  end

  it "does not report a seat that someone else deletes between finding and deleting" do
    seat("gone", 150)

    expect(expire(ttl: ->(_) { sql("DELETE FROM pgbus_presence_members") && 100 })).to eq([])
    expect(changes).to be_empty
  end

  it "reports every deleted row as a leave, through report_change" do
    seat("a", 150, member_id: "7", seat: "left")
    seat("b", 150, member_id: "8", stream_name: "room:43")
    allow(presence_class).to receive(:report_change).and_call_original
    expire

    expect(changes).to contain_exactly(
      ["room:42", { type: :leave, connection_id: "a", seat: "left", member_id: "7" }],
      ["room:43", { type: :leave, connection_id: "b", seat: nil, member_id: "8" }]
    )
    expect(presence_class).to have_received(:report_change)
      .with("room:42", :leave, include("id" => "7", "connection_id" => "a")).once
    expect(presence_class).to have_received(:report_change).with("room:43", :leave, include("id" => "8")).once
  end

  it "has deleted a row when it reports it" do
    seat("a", 150)
    rows_at_report = nil
    implementation.pgbus.configuration.on_presence_change = ->(*) { rows_at_report = rows.size }
    expire

    expect(rows_at_report).to eq(0)
  end

  it "handles names and ids of any kind" do
    names = ["", " ", 'a"b', "c\\d", "{e,f}", "NULL", "ü😀", "'"]
    names.each { |name| seat(name, 150, stream_name: "s#{name}", member_id: name) }

    expect(expire.map { |record| record["connection_id"] }).to match_array(names)
    expect(rows).to be_empty
  end

  it "reports each row once when several expire at once" do
    sql("INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, last_seen_at)
         SELECT 'room:' || n % 5, n, 'c' || n, now() - interval '150 s' FROM generate_series(1, 500) n")
    records = in_threads(8) { expire }.flatten

    expect(records.map { |record| record["connection_id"] }.uniq.size).to eq(500)
    expect(records.size).to eq(500)
    expect(changes.size).to eq(500)
  end

  it "passes on what ttl_for raises" do
    seat("a", 150)

    expect { expire(ttl: ->(_) { raise KeyError, "no ttl" }) }.to raise_error(KeyError, "no ttl")
    expect(rows.size).to eq(1)
  end

  context "when ttl_for raises at the second of two streams" do
    before { 2.times { |number| seat("c#{number}", 150, stream_name: "room:#{number}") } }

    def expire_until_it_raises
      ttls = [100].each
      expect { expire(ttl: ->(_) { ttls.next }) }.to raise_error(StopIteration)
    end

    on_the_gem do
      it "deletes and reports nothing" do
        expire_until_it_raises

        expect(rows.size).to eq(2)
        expect(changes).to be_empty
      end
    end

    on_plain_ruby do
      it "sweeps and reports the first all the same (the gem does not)" do
        expire_until_it_raises

        expect(rows.size).to eq(1)
        expect(changes.size).to eq(1)
      end
    end
  end

  context "when the report raises" do
    before do
      3.times { |number| seat("c#{number}", 150) }
      seat("d0", 150, stream_name: "room:43")
      calls = 0
      implementation.pgbus.configuration.on_presence_change = ->(*) { raise IOError, "report #{calls += 1}" }
    end

    on_the_gem do
      it "offers every deleted row to the report once, and raises the first error then" do
        expect { expire }.to raise_error(IOError, "report 1")

        expect(rows).to be_empty
        expect(changes.map { |_, change| change[:connection_id] }).to contain_exactly("c0", "c1", "c2", "d0")
      end
    end

    on_plain_ruby do
      it "offers only the first of the deleted rows (the gem offers all)" do
        expect { expire }.to raise_error(IOError, "report 1")

        expect(rows.size).to be < 4
        expect(changes.size).to eq(1)
      end
    end
  end

  context "with a table without seats", table: { seats: false } do
    it "gives []" do
      insert_row
      age(1_000_000)

      expect(expire(ttl: 0, min_ttl: 0)).to eq([])
      expect(rows.size).to eq(1)
    end
  end
end
