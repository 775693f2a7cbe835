# frozen_string_literal: true

RSpec.shared_examples "the answer whether the table has seats" do
  # Stands still until it is moved.
  let(:clock) { [1000.0] }

  def stop_clock
    allow(presence_class).to receive(:monotonic_now) { clock.first }
  end

  def move_clock(seconds)
    clock[0] += seconds
  end

  it "is yes for a table with seat columns" do
    expect(presence_class.seats_supported?).to be(true)
    expect(presence_class.seats_supported_now?).to be(true)
    expect(presence.seats?).to be(true)
    expect(presence.seats_now?).to be(true)
  end

  it "is kept for the life of the process when it is yes" do
    stop_clock
    presence_class.seats_supported?
    SpecDatabase.table(seats: false)
    move_clock(1_000_000)

    expect(presence_class.seats_supported?).to be(true)
    expect(presence_class.seats_supported_now?).to be(true)
  end

  it "is forgotten by reset_schema_cache!" do
    presence_class.seats_supported?
    SpecDatabase.table(seats: false)
    presence_class.reset_schema_cache!

    expect(presence_class.seats_supported?).to be(false)
  end

  it "is asked of the database once when many threads ask at once", :slow do
    # The probe waits for the view that it reads; the next one would wait for the second lock,
    # which is queued behind the first probe and held until all threads have their answer.
    lock_probes = lambda do |connection|
      connection.exec("BEGIN; ALTER VIEW information_schema.columns SET (security_barrier = false)")
    end
    threads = nil
    SpecDatabase.connect do |first|
      SpecDatabase.connect do |second|
        lock_probes.call(first)
        threads = Array.new(16) { in_thread { presence_class.seats_supported? } }
        wait_until("one probe waits") { blocked_sessions == 1 }
        queued = Thread.new { lock_probes.call(second) }
        wait_until("the second lock is queued") { blocked_sessions == 2 }
        first.exec("ROLLBACK")
        queued.join

        expect(threads.map { |thread| thread.join(5)&.value }).to eq([true] * 16)
      end
    end
  rescue PG::InsufficientPrivilege
    skip "only a superuser of the server may lock its information_schema"
  ensure
    threads&.each { |thread| thread.kill.join }
  end

  context "with a table without seats", table: { seats: false } do
    it "is no" do
      expect(presence_class.seats_supported?).to be(false)
      expect(presence_class.seats_supported_now?).to be(false)
      expect(presence.seats?).to be(false)
      expect(presence.seats_now?).to be(false)
    end

    it "keeps a no for 30 seconds, then asks again" do
      stop_clock
      presence_class.seats_supported?
      SpecDatabase.add_seats

      move_clock(29.9)
      expect(presence_class.seats_supported?).to be(false)
      move_clock(0.1)
      expect(presence_class.seats_supported?).to be(true)
    end

    it "counts the 30 seconds from each asking" do
      stop_clock
      presence_class.seats_supported?
      move_clock(30)
      presence_class.seats_supported?
      SpecDatabase.add_seats

      move_clock(29)
      expect(presence_class.seats_supported?).to be(false)
    end

    it "asks again at once after a no, where it is asked for now" do
      presence_class.seats_supported?
      SpecDatabase.add_seats

      expect(presence.seats?).to be(false)
      expect(presence.seats_now?).to be(true)
      expect(presence.seats?).to be(true)
    end

    it "looks at the session's schemas only" do
      sql("CREATE SCHEMA elsewhere")
      sql("CREATE TABLE elsewhere.pgbus_presence_members (connection_id varchar)")

      expect(presence_class.seats_supported?).to be(false)
    ensure
      sql("DROP SCHEMA elsewhere CASCADE")
    end

    it "looks where schema_search_path of database.yml points" do
      sql("CREATE SCHEMA elsewhere")
      sql("CREATE TABLE elsewhere.pgbus_presence_members (connection_id varchar)")

      with_connection_settings(schema_search_path: "elsewhere") do
        expect(presence_class.seats_supported?).to be(true)
      end
    ensure
      sql("DROP SCHEMA elsewhere CASCADE")
    end
  end

  it "is no where there is no such table" do
    SpecDatabase.table_changed
    sql("DROP TABLE pgbus_presence_members")

    expect(presence_class.seats_supported?).to be(false)
  end
end
