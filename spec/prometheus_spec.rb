# frozen_string_literal: true

require_relative "support/fault_proxy"
require_relative "support/prometheus_parser"
require_relative "support/settings_server"
require_relative "support/subprocess"

RSpec.describe "Figures for a scrape" do
  # What only grows while a process lives.
  def counters
    stats = Pgbus::Native.stats
    { native: stats[:calls][:native], active_record: stats[:calls][:active_record],
      **stats.slice(:connects, :batched, :retries) }
  end

  # Expects that no counter has fallen by the end of the block, nor after what it dropped is collected.
  def expect_growing
    before = counters
    yield
    2.times do
      expect(counters).to(satisfy { |now| before.all? { |name, number| now[name] >= number } })
      GC.start
    end
  end

  describe "Pgbus::Native.prometheus", implementation: Implementation::AUTO do
    before { skip PrometheusParser.unavailable if PrometheusParser.unavailable }

    def families
      PrometheusParser.families(Pgbus::Native.prometheus).to_h { |family| [family[:name], family] }
    end

    def values
      families.values.flat_map { |family| family[:samples] }.to_h { |name, labels, value| [[name, labels], value] }
    end

    it "is read by Prometheus's parser, with a type and a help for each metric" do
      expect(families.transform_values { |family| family[:type] }).to eq(
        "pgbus_native_pool_size" => "gauge", "pgbus_native_connections" => "gauge",
        "pgbus_native_busy_connections" => "gauge", "pgbus_native_connects" => "counter",
        "pgbus_native_calls" => "counter", "pgbus_native_batched" => "counter", "pgbus_native_retries" => "counter"
      )
      expect(families.values.map { |family| family[:help] }).to all(end_with("."))
    end

    it "has the figures of stats, the calls by route" do
      presence.count
      Pgbus::Native.with_route(:active_record) { 2.times { presence.count } }
      stats = Pgbus::Native.stats

      expect(values).to eq(
        ["pgbus_native_pool_size", {}] => stats[:pool_size], ["pgbus_native_connections", {}] => stats[:connections],
        ["pgbus_native_busy_connections", {}] => 0, ["pgbus_native_connects_total", {}] => stats[:connects],
        ["pgbus_native_calls_total", { route: "native" }] => stats[:calls][:native],
        ["pgbus_native_calls_total", { route: "active_record" }] => stats[:calls][:active_record],
        ["pgbus_native_batched_total", {}] => stats[:batched], ["pgbus_native_retries_total", {}] => stats[:retries]
      )
    end

    it "counts what is called between two scrapes" do
      before = values
      3.times { presence.count }
      after = values

      calls = ["pgbus_native_calls_total", { route: "native" }]
      expect(after[calls] - before[calls]).to eq(3)
    end

    it "is there while nothing was called yet, and while native code is off" do
      off = Subprocess.lines("print Pgbus::Native.prometheus", environment: { "PGBUS_NATIVE" => "0" })
      on = Subprocess.lines("print Pgbus::Native.prometheus")

      expect(off).to eq(on)
      expect(PrometheusParser.families("#{on.join("\n")}\n").size).to eq(7)
    end
  end

  describe "Pgbus::Native.stats", implementation: Implementation::AUTO do
    it "keeps the counters of a database whose configuration ActiveRecord has dropped" do
      5.times { presence.count }
      expect_growing { with_connection_settings(application_name: "another") { presence.count } }
      before = counters[:native]
      ActiveRecord::Base.remove_connection
      expect(counters[:native]).to eq(before)
    ensure
      SpecDatabase.establish
    end

    it "starts at zero in a forked child, and goes on where it was in the parent" do
      presence.count
      Pgbus::Native.with_route(:active_record) { presence.count }
      before = counters
      child = fork_child do
        first = counters
        presence.count
        [first, counters]
      end
      inherited, own = child.value

      expect(inherited.values).to all(eq(0))
      expect(own).to include(native: 1, connects: 1, active_record: 0)
      expect(counters).to eq(before)
    end
  end

  describe "the counters of a database", :settings_server do
    it "stay when its settings lead elsewhere" do
      FaultProxy.to(server.port) do |proxy|
        ActiveRecord::Base.establish_connection(settings(port: proxy.port))
        presence.count
        expect_growing { lead_elsewhere(proxy) }
      end
    end

    # The settings are looked at anew when no connection can be made.
    def lead_elsewhere(proxy)
      proxy.refuse
      proxy.cut
      with_env("PGAPPNAME" => "another") do
        expect { presence.count }.to raise_error(ActiveRecord::ConnectionNotEstablished)
        proxy.heal
        expect(presence.count).to eq(0)
      end
    end

    it "stay when it is left to ActiveRecord" do
      certificate = CertificateAuthority.new("localhost", subjectAltName: "DNS:localhost").self_signed
      roots = file("roots", certificate.pem + server.authority.pem)
      ActiveRecord::Base.establish_connection(settings(sslrootcert: roots))
      3.times { presence.count }
      expect_growing { server.with_certificate(certificate) { end_sessions && presence.count } }

      expect(Pgbus.log_lines).to include(/served on ActiveRecord's connection/)
    end

    def end_sessions
      server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'trusted'")
    end
  end

  describe "Pgbus::Native::Totals" do
    # Databases as far as their figures go.
    let(:database) { Struct.new(:calls) { def stats = { calls:, connects: 1, batched: 0, retries: 0, busy: 1 } } }

    it "keeps what a database counted that is no longer there" do
      totals = Pgbus::Native::Totals.new
      follow_some(totals)
      expect(totals.counters).to eq(calls: 500, connects: 100, batched: 0, retries: 0)
      wait_until("most of them are collected") { GC.start || ObjectSpace.each_object(database).count < 50 }

      2.times { expect(totals.counters).to eq(calls: 500, connects: 100, batched: 0, retries: 0) }
    end

    def follow_some(totals)
      100.times { totals.follow(database.new(5)) }
    end

    it "counts on while a database is there" do
      totals = Pgbus::Native::Totals.new
      followed = totals.follow(database.new(1))
      followed.calls = 7

      expect(totals.counters).to include(calls: 7)
    end
  end
end
