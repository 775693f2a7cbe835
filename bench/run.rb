# frozen_string_literal: true

require "etc"
require "fileutils"
require "json"
require "optparse"
require "pgbus_native/configuration"
require "pgbus_native/version"
require_relative "database"
require_relative "figures"
require_relative "report"
require_relative "server"

module Bench
  SECTIONS = {
    "calls" => Calls, "async" => Async, "members" => Members, "expire" => Expire, "touch" => Touch,
    "threads" => Threads, "busy" => Busy, "delay" => Delay, "memory" => Memory, "route" => Route, "grace" => Grace
  }.freeze

  # The whole of it: measures, prints, writes.
  class Run
    # What a complete run writes; a part of it must not replace the whole.
    PUBLISHED = "docs/performance"
    PARTIAL = "tmp/bench"

    def initialize(arguments)
      @only = []
      parser.parse!(arguments.dup)
      @figures = Figures.new
    end

    def call
      FileUtils.mkdir_p("tmp")
      build
      Server.open(ENV["PGBUS_NATIVE_BENCH_URL"].to_s) do |url|
        Database.open(url) { |database| measure_and_write(database) }
      end
    end

    private

    def parser
      OptionParser.new do |options|
        options.banner = "usage: bin/bench [--quick] [--only NAME]..."
        options.on("--quick", "fewer and smaller, about a minute") { @quick = true }
        options.on("--only NAME", SECTIONS.keys, "only this part: #{SECTIONS.keys.join(", ")}") { |name| @only << name }
      end
    end

    def build
      warn "bin/bench: building the limit"
      return if system("cargo", "build", "--quiet", "--release", "--example", "limit", "--example", "delay")

      raise Failure, "the limit does not compile"
    end

    def measure_and_write(database)
      before = load_average
      measure(database)
      circumstances = circumstances(database, before)
      write(Report.new(@figures, circumstances), circumstances)
    end

    def measure(database)
      warn "no plain Ruby Presence: neither pgbus is installed nor PGBUS_REFERENCE set" unless PlainRuby.file
      sections = @only.empty? ? SECTIONS : SECTIONS.slice(*@only)
      sections.each do |name, section|
        started = now
        database.clear
        section.new(database, @figures, quick: @quick).run
        warn "  #{name}: #{now - started} s"
      end
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :second)
    end

    def circumstances(database, load_before)
      {
        "Machine" => "#{Etc.nprocessors} cores, #{cpu}",
        "Load average" => "#{load_before} before the run, #{load_average} after it",
        "Software" => "Ruby #{RUBY_VERSION}, pg #{PG::VERSION}, ActiveRecord #{ActiveRecord.version}, " \
                      "pgbus_native #{Pgbus::Native::VERSION}",
        "PostgreSQL" => database.settings.map { |name, value| "#{name} #{value}" }.join(", ")
      }
    end

    def cpu
      File.read("/proc/cpuinfo")[/^model name\s*: (.*)/, 1] || RUBY_PLATFORM
    rescue SystemCallError
      RUBY_PLATFORM
    end

    def load_average
      File.read("/proc/loadavg").split.first
    rescue SystemCallError
      "unknown"
    end

    def write(report, circumstances)
      directory = @quick || @only.any? ? PARTIAL : PUBLISHED
      FileUtils.mkdir_p(directory)
      markdown = report.markdown
      report.charts.each { |file, svg| File.write(File.join(directory, file), svg) }
      File.write(File.join(directory, "README.md"), markdown)
      File.write(File.join(directory, "figures.json"), json(circumstances))
      puts markdown
      warn "written to #{directory}"
    end

    # A line for each work and column.
    def json(circumstances)
      works = @figures.to_h.map do |work, columns|
        lines = columns.map { |column, samples| "      #{column.to_json}: #{samples.to_json}" }
        "    #{work.to_json}: {\n#{lines.join(",\n")}\n    }"
      end
      "{\n  \"circumstances\": #{circumstances.to_json},\n  \"samples\": {\n#{works.join(",\n")}\n  }\n}\n"
    end
  end
end

begin
  Bench::Run.new(ARGV).call
rescue Bench::Failure, OptionParser::ParseError, PG::Error => e
  abort "bin/bench: #{e.message}"
rescue Interrupt
  abort "bin/bench: interrupted"
end
