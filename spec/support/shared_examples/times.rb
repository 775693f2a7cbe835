# frozen_string_literal: true

RSpec.shared_examples "times" do
  written = ["2024-02-29 12:34:56.123456", "2024-07-01 00:00:00", "2024-07-01 23:59:59.000001",
             "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "1901-01-01 00:00:00", "0001-01-01 00:00:00",
             "9999-12-31 23:59:59.999999", "2024-03-10 02:30:00", "2024-11-03 01:30:00"]

  # As it stands in the two columns of one row, compared with ActiveRecord's own connection.
  def expect_as_active_record(time)
    sql("DELETE FROM pgbus_presence_members")
    insert_row(joined_at: time, last_seen_at: time)
    expected = as_active_record_gives("joined_at")
    record = presence.members.first

    expect(record["last_seen_at"]).to eq(record["joined_at"])
    expect(record["joined_at"].class).to eq(expected.class)
    expect(record["joined_at"]).to eq(expected)
    yield record["joined_at"], expected if block_given?
  end

  def expect_same_clock(time)
    expect_as_active_record(time) do |given, expected|
      expect([given.nsec, given.utc?, given.utc_offset, given.zone])
        .to eq([expected.nsec, expected.utc?, expected.utc_offset, expected.zone])
    end
  end

  def in_zone(zone)
    before = ENV.fetch("TZ", nil)
    ENV["TZ"] = zone
    yield
  ensure
    ENV["TZ"] = before
  end

  # As an application has it that sets default_timezone to :local.
  def with_local_times(**settings, &)
    in_zone("America/New_York") do
      ActiveRecord.default_timezone = :local
      with_connection_settings(**settings, &)
    ensure
      ActiveRecord.default_timezone = :utc
    end
  end

  ["timestamp", "timestamp(6)", "timestamp(0)"].each do |times|
    context "with #{times} columns", table: { times: } do
      written.each { |time| it("are in UTC and exact: #{time}") { expect_same_clock(time) } }

      it "are in UTC wherever the process is" do
        in_zone("Asia/Kolkata") { written.each { |time| expect_same_clock(time) } }
      end

      it "are local where default_timezone is :local" do
        with_local_times { written.each { |time| expect_same_clock(time) } }
      end
    end
  end

  context "with timestamptz columns", table: { times: "timestamptz" } do
    written.each do |time|
      it("are the same instant as ActiveRecord's: #{time}") { expect_as_active_record("#{time}+00") }
    end

    it "are the same instant where default_timezone is :local" do
      with_local_times { written.each { |time| expect_as_active_record("#{time}+05:30") } }
    end
  end

  %w[timestamp timestamptz].each do |times|
    context "with #{times} columns out of the ordinary", table: { times: } do
      ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC", "10000-01-01 00:00:00",
       "294276-12-31 23:59:59.999999"].each do |time|
        it("are as ActiveRecord gives them: #{time}") { expect_as_active_record(time) }
      end
    end
  end

  it "are those of the server's clock, in each record of one call the same" do
    record = presence.join(member_id: "7")
    server_time = Time.parse("#{sql("SELECT now() AT TIME ZONE 'UTC' AS now").first["now"]} UTC")

    expect(record["joined_at"]).to be_within(60).of(server_time)
    expect(record["joined_at"]).to eq(record["last_seen_at"])
    expect(record["joined_at"]).to eq(presence.members.first["joined_at"])
  end

  it "are written in the session's zone" do
    with_connection_settings(variables: { timezone: "Asia/Kolkata" }) do
      record = presence.join(member_id: "7")
      server_time = Time.parse("#{sql("SELECT now() AT TIME ZONE 'Asia/Kolkata' AS now").first["now"]} UTC")

      expect(record["joined_at"]).to be_within(60).of(server_time)
    end
  end

  on_the_gem do
    %w[timestamp timestamptz].each do |times|
      context "with a #{times} column and default_timezone :local", table: { times: } do
        it "make a cutoff mean its instant" do
          with_local_times(variables: { timezone: "America/New_York" }) do
            presence.join(member_id: "7")
            now = presence.members.first["last_seen_at"]

            expect(presence.sweep!(older_than: (now - 1).utc)).to eq(0)
            expect(presence.sweep!(older_than: (now + 1).getlocal("+09:00"))).to eq(1)
          end
        end
      end
    end
  end
end
