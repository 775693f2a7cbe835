# frozen_string_literal: true

require_relative "sections"

module Bench
  # The gem's setting gvl_grace, seconds for which a call keeps the GVL: what it brings and what it costs.
  class Grace < Section
    SECONDS = [0, 0.0005, 0.001, 0.002].freeze
    # For each turn of each work.
    DURATION = 0.5
    FEW_THREADS = 4

    # The name under which the figures of a setting stand.
    def self.column(seconds)
      "grace #{seconds}"
    end

    def run
      unless Pgbus::Native::Configuration.method_defined?(:gvl_grace=)
        return warn("  left out: the gem has no setting gvl_grace")
      end

      setting("")
      without_waiting_for_the_disk { setting(Async::PREFIX) }
      return unless database.address

      DelayProxy.open(*database.address, Delay::ROUND_TRIP / 2) { |port| setting(Delay::PREFIX, port) }
    end

    private

    def setting(prefix, port = nil)
      living_table
      url = database.url("bench-grace", port: port)
      columns = SECONDS.map { |grace| Column.new("native", url: url, grace: grace, threads: Threads::MANY) }
      in_turns(columns, 1) { |column| column.ask("join", "grace", 10) }
      in_turns(columns, quick? ? 1 : 3) { |column| measure(prefix, column) }
    ensure
      columns&.each(&:close)
    end

    def measure(prefix, column)
      name = self.class.column(column.grace)
      beside(prefix, name, column)
      figures.add("grace #{prefix}join", name, column.ask("join_for", "grace", DURATION))
      figures.add("grace #{prefix}lateness", name, column.ask("lateness", "grace", DURATION))
      [FEW_THREADS, Threads::MANY].each do |threads|
        calls, time = column.ask("threads", "grace", threads, DURATION)
        figures.add("grace #{prefix}threads #{threads}", name, [calls * 1_000_000_000 / time])
        living_table
      end
    end

    # The join beside a busy thread, and what is left to that thread of the turns that it makes alone.
    def beside(prefix, name, column)
      column.ask("busy")
      sleep DURATION
      alone = turns(column)
      column.ask("busy")
      figures.add("grace #{prefix}busy join", name, column.ask("join_for", "grace", DURATION * 2))
      figures.add("grace #{prefix}busy turns", name, [turns(column) / alone])
    end

    # Of the busy thread, a second.
    def turns(column)
      turns, time = column.ask("idle")
      turns * 1e9 / time
    end
  end
end
