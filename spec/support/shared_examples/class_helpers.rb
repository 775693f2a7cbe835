# frozen_string_literal: true

RSpec.shared_examples "the helpers of the class" do
  describe ".text_array" do
    it "writes a text[] literal with every element quoted" do
      expect(presence_class.text_array(%w[a b])).to eq('{"a","b"}')
      expect(presence_class.text_array([])).to eq("{}")
    end

    it "takes whatever has a to_s" do
      expect(presence_class.text_array([1, :two, nil])).to eq('{"1","two",""}')
    end

    it "escapes quotes and backslashes" do
      expect(presence_class.text_array(['a"b', "c\\d"])).to eq('{"a\\"b","c\\\\d"}')
    end

    it "writes what PostgreSQL reads as the same texts" do
      texts = ["", " ", "NULL", "a,b", "{c}", 'd"e', "f\\g", "\\", '"', "h\ni", "ü😀"]

      expect(sql("SELECT unnest($1::text[]) AS text", presence_class.text_array(texts)).pluck("text")).to eq(texts)
    end
  end

  describe ".monotonic_now" do
    it "is the monotonic clock in seconds" do
      before = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      now = presence_class.monotonic_now

      expect(now).to be_a(Float)
      expect(now).to be_between(before, Process.clock_gettime(Process::CLOCK_MONOTONIC))
    end
  end

  describe ".report_change" do
    it "tells the configuration of pgbus the stream, the type and whose seat it is" do
      record = { "id" => "7", "connection_id" => "c1", "seat" => "left", "metadata" => { "a" => 1 } }

      presence_class.report_change("room:1", :leave, record)

      expect(changes).to eq([["room:1", { type: :leave, connection_id: "c1", seat: "left", member_id: "7" }]])
    end
  end

  describe ".connection" do
    it "is the PG::Connection that ActiveRecord uses on this thread" do
      expect(presence_class.connection).to be(ActiveRecord::Base.connection.raw_connection)
      expect(presence_class.connection).to be_a(PG::Connection)
    end

    it "is BusRecord's where pgbus has a database of its own" do
      SpecDatabase.establish(implementation.pgbus::BusRecord)
      implementation.pgbus.configuration.connects_to = { database: { writing: :pgbus } }

      expect(presence_class.connection).to be(implementation.pgbus::BusRecord.connection.raw_connection)
      expect(presence_class.connection).not_to be(ActiveRecord::Base.connection.raw_connection)
    ensure
      implementation.pgbus::BusRecord.remove_connection
    end

    it "needs ActiveRecord" do
      hide_const("ActiveRecord::Base")

      expect { presence_class.connection }
        .to raise_error(implementation.pgbus::ConfigurationError, /requires ActiveRecord/)
    end
  end
end
