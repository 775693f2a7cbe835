# frozen_string_literal: true

require "open3"
require "rbconfig"

# `bin/bench --streamer --quick`, for real: both streamers, their clients and the report. What it measures is no matter
# here, only that it does.
RSpec.describe "The benchmark of the streamer", :slow do
  root = File.expand_path("..", __dir__)
  sides = ["native streamer", *("plain Ruby streamer" if Implementation::PLAIN_RUBY.unavailable.nil?)]

  result = nil

  # Of one run for all examples: what it printed, its errors, its status.
  define_method(:outcome) do
    # The first time the clients have to be compiled, too.
    command = ["timeout", "600", RbConfig.ruby, "-Ilib", "bench/streamer/run.rb", "--quick"]
    result ||= Open3.capture3({ "PGBUS_NATIVE_BENCH_URL" => ENV.fetch("DATABASE_URL") }, *command, chdir: root)
  end

  # The cells of a line of the first table, by the head's.
  def line(beginning)
    head, *lines = outcome.first.lines.grep(/^\|/).map { |text| text.split("|")[1..-2].map(&:strip) }
    cells = lines.find { |candidate| candidate.first.start_with?(beginning) } || raise("no #{beginning}: #{outcome}")
    head.zip(cells).to_h
  end

  it "runs to its end" do
    _, errors, status = outcome

    expect(status).to be_success, errors
  end

  {
    "200 clients connecting at once" => /\A[\d.]+ m?s\z/,
    "heartbeat of 400 connections with seats on 40 streams, CPU time" => /\A[\d.]+ (µs|ms)\z/,
    "longest delay of another Ruby thread meanwhile" => /\A[\d.]+ (µs|ms)\z/,
    "the same without heartbeat" => /\A[\d.]+ (µs|ms)\z/,
    "broadcast to 400 connections" => /\A[\d.]+ (µs|ms)\z/,
    "memory for each idle connection" => /\A-?[\d.]+ KB\z/,
    "400 connections held for 10 s, 1 in 100 not reading" => /\A\d+\z/,
    "longest time without a heartbeat" => /\A[\d.]+ m?s\z/,
    "slowest of those that came" => /\A[\d.]+ m?s\z/
  }.each do |work, figure|
    it "has a figure for each streamer: #{work}" do
      expect(line(work).values_at(*sides)).to all(match(figure))
    end
  end

  it "says how many times as good as the plain one the native one is", if: sides.size == 2 do
    ["200 clients", "heartbeat of 400", "broadcast to 400"].each do |work|
      expect(line(work).fetch("against plain Ruby")).to match(/\A[\d.]+ \(at least \d+\)\z/)
    end
  end

  it "finds that the native streamer loses nobody who reads, and cuts off whoever does not" do
    expect(line("others that were lost").fetch("native streamer")).to eq("0")
    expect(line("not reading, and not cut off").fetch("native streamer")).to eq("0")
  end

  it "leaves its figures where a part of the whole belongs" do
    written = File.join(root, "tmp/bench")

    expect(File.read(File.join(written, "streamer.md"))).to eq(outcome.first)
    expect(JSON.parse(File.read(File.join(written, "streamer.json"))).fetch("samples").keys)
      .to include("connect", "heartbeat cpu", "broadcast", "memory", "hold late")
  end
end
