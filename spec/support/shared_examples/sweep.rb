# frozen_string_literal: true

RSpec.shared_examples "sweeping" do
  # A member last seen at the UTC time, given as text.
  def seen_at(time, member_id: "7", **columns)
    insert_row(member_id:, last_seen_at: time, **columns)
  end

  it "deletes the members last seen before the cutoff and returns how many" do
    seen_at("2024-05-01 11:59:59.999999", member_id: "before")
    seen_at("2024-05-01 12:00:00", member_id: "at")
    seen_at("2024-05-01 12:00:01", member_id: "after")

    expect(presence.sweep!(older_than: "2024-05-01 12:00:00")).to eq(1)
    expect(rows.map { |row| row["member_id"] }).to contain_exactly("at", "after")
  end

  it "yields the record of each, without the columns of a seat" do
    seen_at("2024-05-01", member_id: "7", metadata: '{"name": "Ada"}')
    seen_at("2024-05-01", member_id: "8")
    records = []
    presence.sweep!(older_than: "2024-06-01") { |record| records << record }

    expect(records).to contain_exactly(
      { "id" => "7", "metadata" => { "name" => "Ada" }, "joined_at" => Time, "last_seen_at" => Time.utc(2024, 5, 1) },
      { "id" => "8", "metadata" => {}, "joined_at" => Time, "last_seen_at" => Time.utc(2024, 5, 1) }
    )
  end

  it "has deleted the rows when it yields the first" do
    seen_at("2024-05-01")
    rows_at_yield = nil
    presence.sweep!(older_than: "2024-06-01") { rows_at_yield = rows.size }

    expect(rows_at_yield).to eq(0)
  end

  it "gives 0 and yields nothing where there is nothing to sweep" do
    seen_at("2024-05-01")

    expect { |block| presence.sweep!(older_than: "2024-01-01", &block) }.not_to yield_control
    expect(presence.sweep!(older_than: "2024-01-01")).to eq(0)
  end

  it "leaves other streams, and all seats, alone" do
    seen_at("2024-05-01", stream_name: "room:43")
    seen_at("2024-05-01", connection_id: "c1")

    expect(presence.sweep!(older_than: "2024-06-01")).to eq(0)
    expect(rows.size).to eq(2)
  end

  it "reports and broadcasts nothing, whatever the block gives" do
    seen_at("2024-05-01")
    presence.sweep!(older_than: "2024-06-01") { "<p>gone</p>" }

    expect(changes).to be_empty
    expect(stream.broadcasts).to be_empty
  end

  it "passes on what the block raises; the rows are gone" do
    seen_at("2024-05-01")

    expect { presence.sweep!(older_than: "2024-06-01") { raise IOError, "stop" } }.to raise_error(IOError, "stop")
    expect(rows).to be_empty
  end

  it "reports each row once when several sweep at once" do
    sql("INSERT INTO pgbus_presence_members (stream_name, member_id, last_seen_at)
         SELECT 'room:42', n, '2024-05-01' FROM generate_series(1, 500) n")
    records = Thread::Queue.new
    counts = in_threads(8) { presence.sweep!(older_than: "2024-06-01") { |record| records << record["id"] } }

    expect(counts.sum).to eq(500)
    expect(Array.new(records.size) { records.pop }.uniq.size).to eq(500)
  end

  describe "the cutoff" do
    before do
      seen_at("2024-05-01 11:59:59", member_id: "before")
      seen_at("2024-05-01 12:00:01", member_id: "after")
    end

    {
      "a Time in UTC" => Time.utc(2024, 5, 1, 12),
      "an ActiveSupport::TimeWithZone in UTC" => ActiveSupport::TimeZone["UTC"].local(2024, 5, 1, 12),
      "a DateTime in UTC" => DateTime.new(2024, 5, 1, 12),
      "a String" => "2024-05-01 12:00:00",
      "a String in another form that PostgreSQL reads" => "May 1 12:00 2024"
    }.each do |kind, cutoff|
      it "may be #{kind}" do
        expect(presence.sweep!(older_than: cutoff)).to eq(1)
        expect(row["member_id"]).to eq("after")
      end
    end

    it "may be one of PostgreSQL's words" do
      expect(presence.sweep!(older_than: "-infinity")).to eq(0)
      expect(presence.sweep!(older_than: "now")).to eq(2)
    end

    it "raises the server's error for a String that is no time" do
      expect { presence.sweep!(older_than: "yesterdayish") }.to raise_error(PG::InvalidDatetimeFormat, /yesterdayish/)
      expect(rows.size).to eq(2)
    end
  end

  shared_examples "a cutoff that means its instant" do
    before { seen_at("2024-05-01 12:00:00.25") }

    {
      "a Time" => ->(time) { time },
      "an ActiveSupport::TimeWithZone" => ->(time) { time.in_time_zone("Asia/Kolkata") },
      "a DateTime" => :to_datetime.to_proc
    }.each do |kind, convert|
      it "keeps the fraction of a second of #{kind}" do
        expect(presence.sweep!(older_than: convert.call(Time.utc(2024, 5, 1, 12, 0, Rational(1, 4))))).to eq(0)
        expect(presence.sweep!(older_than: convert.call(Time.utc(2024, 5, 1, 12, 0, Rational("0.250001"))))).to eq(1)
      end
    end

    {
      "a Time" => ->(time) { time.getlocal("+05:30") },
      "an ActiveSupport::TimeWithZone" => ->(time) { time.in_time_zone("America/New_York") },
      "a DateTime" => ->(time) { time.to_datetime.new_offset("-07:00") }
    }.each do |kind, convert|
      it "heeds the zone of #{kind}" do
        expect(presence.sweep!(older_than: convert.call(Time.utc(2024, 5, 1, 12)))).to eq(0)
        expect(presence.sweep!(older_than: convert.call(Time.utc(2024, 5, 1, 12, 0, 1)))).to eq(1)
      end
    end
  end

  on_the_gem do
    ["timestamp", "timestamp(6)", "timestamptz"].each do |times|
      context "with #{times} columns", table: { times: } do
        it_behaves_like "a cutoff that means its instant"
      end
    end

    it "says nothing on stderr, whatever the cutoff" do
      time = Time.utc(2024, 5, 1)
      cutoffs = [time, time.getlocal("+05:30"), time.in_time_zone("Asia/Kolkata"), time.to_datetime, "2024-05-01"]

      expect { cutoffs.each { |older_than| presence.sweep!(older_than:) } }.not_to output.to_stderr_from_any_process
    end

    it "leaves seats alone whatever was probed" do
      seen_at("2024-05-01", connection_id: "c1")
      allow(presence_class).to receive_messages(seats_supported?: false, seats_supported_now?: false)

      expect(presence.sweep!(older_than: "2024-06-01")).to eq(0)
      expect(rows.size).to eq(1)
    end
  end

  on_plain_ruby do
    it "loses the fraction of a Time's second (the gem does not)" do
      seen_at("2024-05-01 12:00:00.25")

      expect(presence.sweep!(older_than: Time.utc(2024, 5, 1, 12, 0, Rational(1, 2)))).to eq(0)
    end

    it "ignores the zone of a Time on a timestamp column (the gem does not)" do
      seen_at("2024-05-01 12:00:00")

      expect(presence.sweep!(older_than: Time.utc(2024, 5, 1, 11).getlocal("+05:30"))).to eq(1)
    end
  end

  context "with a table without seats", table: { seats: false } do
    it "deletes, yields and counts just so" do
      seen_at("2024-05-01", member_id: "old")
      seen_at("2024-07-01", member_id: "new")
      ids = []

      expect(presence.sweep!(older_than: "2024-06-01") { |record| ids << record["id"] }).to eq(1)
      expect(ids).to eq(["old"])
      expect(row["member_id"]).to eq("new")
    end

    it "finds that a table has just got seats, and leaves them alone" do
      presence.seats?
      SpecDatabase.add_seats
      seen_at("2024-05-01", connection_id: "c1")
      seen_at("2024-05-01", member_id: "8")

      expect(presence.sweep!(older_than: "2024-06-01")).to eq(1)
      expect(row["connection_id"]).to eq("c1")
    end
  end
end
