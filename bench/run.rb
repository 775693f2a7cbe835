# frozen_string_literal: true

require "fileutils"
require "optparse"
require "pgbus_native/configuration"
require_relative "circumstances"
require_relative "database"
require_relative "figures"
require_relative "parts"
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
      @parts = Parts.new(SECTIONS)
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
        @parts.add_option(options)
      end
    end

    def build
      warn "bin/bench: building the limit"
      Program.build("limit", "delay")
    end

    def measure_and_write(database)
      circumstances = Circumstances.new
      measure(database)
      write(circumstances.to_h(database))
    end

    def measure(database)
      warn "no plain Ruby Presence: neither pgbus is installed nor PGBUS_REFERENCE set" unless PlainRuby.file
      @parts.measure do |section|
        database.clear
        section.new(database, @figures, quick: @quick).run
      end
    end

    def write(circumstances)
      report = Report.new(@figures, circumstances)
      directory = @parts.all? && !@quick ? PUBLISHED : PARTIAL
      FileUtils.mkdir_p(directory)
      markdown = report.markdown
      report.charts.each { |file, svg| File.write(File.join(directory, file), svg) }
      File.write(File.join(directory, "README.md"), markdown)
      File.write(File.join(directory, "figures.json"), @figures.json(circumstances))
      puts markdown
      warn "written to #{directory}"
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
