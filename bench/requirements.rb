# frozen_string_literal: true

require_relative "sections"

module Bench
  # A line of the table of what the gem must show.
  class Requirement
    attr_reader :label, :work, :unit

    # @param work [String] in the figures
    # @param unit [Symbol] `:time`, `:rate` (calls per second) or `:objects`
    # @param plain [Numeric] at least so many times as good as plain Ruby; of objects, at most this share
    # @param limit [Numeric, nil] at most so many times the time of the limit
    def initialize(label, work, unit: :time, plain: nil, limit: nil)
      @label = label
      @work = work
      @unit = unit
      @plain = plain
      @limit = limit
    end

    # @return [Array(Float, String, Boolean), nil] the ratio to plain Ruby, what it must be, whether it is
    def against_plain(figures)
      ratio = unit == :time ? figures.ratio(work, "plain", "native") : figures.ratio(work, "native", "plain")
      return unless ratio && @plain

      unit == :objects ? [ratio, "at most #{@plain}", ratio <= @plain] : [ratio, "at least #{@plain}", ratio >= @plain]
    end

    # @return [Array(Float, String, Boolean), nil] the ratio to the limit, what it must be, whether it is
    def against_limit(figures)
      ratio = figures.ratio(work, "native", "limit")
      [ratio, "at most #{@limit}", ratio <= @limit] if ratio && @limit
    end

    ALL = [
      new("`expire_seats!`, 1,000 streams with 5 stale seats", "expire 1000", plain: 15, limit: 1.3),
      new("the same with 1 ms delay", "delay expire 1000", plain: 40),
      new("`members`, 2,000 seats with metadata and state", "members 2000", plain: 3, limit: 1.6),
      new("`members`, objects allocated", "objects 2000", unit: :objects, plain: 0.75),
      *Calls::WORKS.map { |work| new("`#{work}`, one thread", work, plain: 1.25, limit: 1.15) },
      new("seat `join` from 32 threads", "threads 32", unit: :rate, plain: 6),
      new("the same with 1 ms delay", "delay threads 32", unit: :rate, plain: 12),
      new("`join` beside one busy Ruby thread", "busy join", plain: 6),
      new("`members` of 2,000 seats beside it", "busy members 2000", plain: 40),
      new("`expire_seats!` of 20 streams beside it", "busy expire 20", plain: 60)
    ].freeze
  end
end
