# frozen_string_literal: true

require "forwardable"
require_relative "column"

module Bench
  # A part of the bench. It starts the columns that it needs, so that one part leaves nothing to the next, and
  # lets them take turns, so that whatever else the machine does falls on all of them.
  class Section
    extend Forwardable

    # @param database [Database]
    # @param figures [Figures] where the samples go
    # @param quick [Boolean] fewer and smaller
    def initialize(database, figures, quick:)
      @database = database
      @figures = figures
      @quick = quick
    end

    private

    attr_reader :database, :figures

    def_delegators :database, :clear, :fill, :settle

    def quick?
      @quick
    end

    # Yields columns that have been started for this block.
    def columns(names = Column.names, port: nil, **options)
      started = names.map { |name| Column.new(name, url: database.url(application(name), port: port), **options) }
      yield started
    ensure
      started&.each(&:close)
    end

    def application(name)
      "bench-#{name}"
    end

    # Yields each column once a round, another one first in each.
    def in_turns(columns, rounds, &)
      rounds.times { |round| columns.rotate(round).each(&) }
    end

    def add(work, column, samples)
      figures.add(work, column.name, samples)
    end

    # Adds a sample of calls per second, of an answer with calls and nanoseconds.
    def add_rate(work, column, (calls, time))
      add(work, column, [calls * 1_000_000_000 / time])
    end

    # Another section, as a part of this one.
    def part(section)
      section.new(database, figures, quick: quick?)
    end

    # Runs the block while commits of new sessions do not wait for it.
    def without_waiting_for_the_disk
      database.synchronous_commit("off")
      yield
    ensure
      database.synchronous_commit("on")
    end

    # A table as it is in use: some rooms that nobody asks about here.
    def living_table
      clear
      fill(streams(100), 20)
      settle
    end

    def streams(count)
      Array.new(count) { |index| "stream#{index + 1}" }
    end
  end
end
