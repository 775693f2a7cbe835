# frozen_string_literal: true

require "fileutils"
require "optparse"
require_relative "../circumstances"
require_relative "../database"
require_relative "../figures"
require_relative "../parts"
require_relative "../server"
require_relative "report"

module Bench
  module Streamer
    SECTIONS = { "connect" => Connect, "heartbeat" => Heartbeat, "broadcast" => Broadcast, "hold" => Hold }.freeze

    # The whole of it: measures, prints, writes.
    class Run
      # What a complete run writes; a part of it must not replace the whole.
      PUBLISHED = "docs/performance"
      PARTIAL = "tmp/bench"
      # Files that a process may have open: connections, and some more.
      DESCRIPTORS = 200

      def initialize(arguments)
        @parts = Parts.new(SECTIONS)
        @only_sides = []
        @sizes = FULL
        parser.parse!(arguments.dup)
        @sides = @only_sides.empty? ? Side.names : @only_sides
        @figures = Figures.new
      end

      def call
        allow_descriptors
        Program.build(Clients::PROGRAM, Side::PROGRAM)
        Bench::Server.open(ENV["PGBUS_NATIVE_BENCH_URL"].to_s) do |url|
          Database.open(url) { |database| measure_and_write(database) }
        end
      end

      private

      def parser
        OptionParser.new do |options|
          options.banner = "usage: bin/bench --streamer [--quick] [--only NAME]... [--side SIDE]..."
          options.on("--quick", "few connections, about a minute") { @sizes = QUICK }
          @parts.add_option(options)
          options.on("--side SIDE", Side::LABELS.keys, "only this side: #{Side::LABELS.keys.join(", ")}") do |side|
            @only_sides << side
          end
        end
      end

      # What is started has the same limit.
      def allow_descriptors
        wanted = @sizes.held + DESCRIPTORS
        now, most = Process.getrlimit(:NOFILE)
        return if now >= wanted
        raise Failure, "a process may have #{most} files open, and #{wanted} are needed" if most < wanted

        Process.setrlimit(:NOFILE, wanted, most)
      end

      def measure_and_write(database)
        circumstances = Circumstances.new
        warn "no plain Ruby Presence: neither pgbus is installed nor PGBUS_REFERENCE set" unless PlainRuby.file
        @parts.measure { |section| section.new(database, @figures, sizes: @sizes, sides: @sides).run }
        write(circumstances.to_h(database))
      end

      def write(circumstances)
        directory = complete? ? PUBLISHED : PARTIAL
        FileUtils.mkdir_p(directory)
        markdown = Report.new(@figures, circumstances, @sizes).markdown
        File.write(File.join(directory, "streamer.md"), markdown)
        File.write(File.join(directory, "streamer.json"), @figures.json(circumstances))
        puts markdown
        warn "written to #{directory}"
      end

      def complete?
        @sizes == FULL && @parts.all? && @sides == Side::LABELS.keys
      end
    end
  end
end

begin
  Bench::Streamer::Run.new(ARGV).call
rescue Bench::Failure, OptionParser::ParseError, PG::Error => e
  abort "bin/bench: #{e.message}"
rescue Interrupt
  abort "bin/bench: interrupted"
end
