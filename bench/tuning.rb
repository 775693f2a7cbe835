# frozen_string_literal: true

require "fileutils"
require "json"
require "optparse"

$LOAD_PATH.unshift(File.join(__dir__, "stand_in"))
require "active_record"
require "pgbus_native"
require_relative "database"
require_relative "figures"
require_relative "server"
require_relative "text"
require_relative "tuning_table"

module Bench
  # Which indexes, fillfactor, autovacuum settings and kind of table keep the presence table small and its sweep fast:
  # an hour of heartbeats, compressed into a minute, on one variant of the table after the other.
  class Tuning
    # The hour has one heartbeat every 15 s. Autovacuum looks every second instead of every minute, and does not
    # pause in its work.
    COMPRESSED = { "autovacuum_naptime" => "1s", "autovacuum_vacuum_cost_delay" => "0" }.freeze
    BEATS = 240
    INTERVAL = 0.25

    Variant = Data.define(:name, :index, :fillfactor, :options, :unlogged) do
      def initialize(name:, index: :none, fillfactor: 100, options: {}, unlogged: false)
        super
      end

      # @return [Array<String>] what makes this of the table as the migrations leave it
      def statements
        table = Database::TABLE
        settings = { "fillfactor" => fillfactor, **options }.map { |name, value| "#{name} = #{value}" }
        ["DROP INDEX idx_pgbus_presence_members_sweep", *INDEXES.fetch(index),
         "ALTER TABLE #{table} SET (#{settings.join(", ")})", *("ALTER TABLE #{table} SET UNLOGGED" if unlogged)]
      end
    end

    INDEXES = {
      none: [],
      as_shipped: ["CREATE INDEX sweep ON #{Database::TABLE} (stream_name, last_seen_at)"],
      partial: ["CREATE INDEX sweep ON #{Database::TABLE} (stream_name, last_seen_at) WHERE connection_id IS NULL"],
      brin: ["CREATE INDEX sweep ON #{Database::TABLE} USING brin (last_seen_at)"]
    }.freeze

    EAGER = { "autovacuum_vacuum_scale_factor" => 0, "autovacuum_vacuum_threshold" => 1000 }.freeze
    VARIANTS = [
      Variant.new(name: "as shipped: index on (stream_name, last_seen_at)", index: :as_shipped),
      Variant.new(name: "that index, fillfactor 50", index: :as_shipped, fillfactor: 50),
      Variant.new(name: "that index where connection_id is null", index: :partial),
      Variant.new(name: "BRIN on (last_seen_at)", index: :brin),
      Variant.new(name: "BRIN, fillfactor 50", index: :brin, fillfactor: 50),
      Variant.new(name: "no such index"),
      Variant.new(name: "no such index, fillfactor 70", fillfactor: 70),
      Variant.new(name: "no such index, fillfactor 50", fillfactor: 50),
      Variant.new(name: "the same, autovacuum from 1,000 dead rows on", fillfactor: 50, options: EAGER),
      Variant.new(name: "the same, autovacuum off", fillfactor: 50, options: { "autovacuum_enabled" => false }),
      Variant.new(name: "as shipped, UNLOGGED", index: :as_shipped, unlogged: true),
      Variant.new(name: "no such index, fillfactor 50, UNLOGGED", fillfactor: 50, unlogged: true)
    ].freeze

    FIGURES = "docs/performance/tuning.json"
    TEXT = "docs/tuning.md"
    PARTIAL = "tmp/bench/tuning.json"

    def initialize(arguments)
      parser.parse!(arguments.dup)
    end

    def call
      results = Server.open("", COMPRESSED) do |url|
        Database.open(url) { |database| VARIANTS.map { |variant| measure(database, variant) } }
      end
      write(results)
    end

    private

    def parser
      OptionParser.new do |options|
        options.banner = "usage: bin/bench --tuning [--quick]"
        options.on("--quick", "only to see that it works: a few heartbeats") { @quick = true }
      end
    end

    def measure(database, variant)
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC, :second)
      table = TuningTable.new(database, variant.statements)
      beats(table)
      result = { "variant" => variant.name, **table.sizes, **table.times, "search_100000" => table.search_in_many }
      warn "  #{variant.name}: #{Process.clock_gettime(Process::CLOCK_MONOTONIC, :second) - started} s"
      result
    ensure
      ActiveRecord::Base.connection_pool.disconnect!
    end

    # A heartbeat that takes longer than the interval holds up the next ones, as it would in earnest.
    def beats(table)
      table.fill
      start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      (@quick ? 8 : BEATS).times do |beat|
        wait = start + (beat * INTERVAL) - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        sleep wait if wait.positive?
        table.beat
      end
    end

    def write(results)
      text = TuningText.new(results).table
      puts text
      file = @quick ? PARTIAL : FIGURES
      FileUtils.mkdir_p(File.dirname(file))
      File.write(file, "#{JSON.pretty_generate(results)}\n")
      TuningText.insert(TEXT, text) if !@quick && File.exist?(TEXT)
    end
  end
end

begin
  Bench::Tuning.new(ARGV).call
rescue OptionParser::ParseError, PG::Error => e
  abort "bin/bench: #{e.message}"
rescue Interrupt
  abort "bin/bench: interrupted"
end
