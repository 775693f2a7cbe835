# frozen_string_literal: true

require_relative "chart"
require_relative "column"
require_relative "grace"
require_relative "requirements"
require_relative "text"

module Bench
  # The figures as Markdown, which is what the terminal shows as well, and as charts.
  class Report
    include Text

    CURVES = {
      "members" => ["members: time by rows", "rows", :time],
      "expire" => ["expire_seats!: time by streams with 5 stale seats each", "streams", :time],
      "touch_ids" => ["touch: time by connection ids", "ids", :time],
      "threads" => ["seat join: calls per second by threads", "threads", :rate]
    }.freeze

    LEGEND = <<~TEXT.chomp
      The numbers are rows for `members` and `objects` (those that `members` allocates), streams with 5 stale seats each
      for `expire`, ids for `touch_ids`, threads for `threads` (seat joins per second) and `connections` (to PostgreSQL,
      during those). `async` is with `synchronous_commit = off`, so that commits do not wait for the disk; `delay` with a
      network whose round trip takes 1 ms; `busy` beside a Ruby thread that computes all the time. `route` is the choice
      of the route, a part of every call.
    TEXT

    GRACE_WORKS = {
      "busy join" => "`join` beside a busy thread",
      "busy turns" => "what the busy thread keeps of its speed meanwhile",
      "lateness" => "how late a thread is that wakes up each millisecond, beside one that joins without a pause",
      "join" => "`join`, alone"
    }.freeze

    # @param figures [Figures]
    # @param circumstances [Hash{String => String}] machine, versions, settings
    def initialize(figures, circumstances)
      @figures = figures
      @circumstances = circumstances
    end

    # @return [String]
    def markdown
      ["# Performance", introduction, *requirements, *curves, *all_figures, *memory, *grace].join("\n\n") << "\n"
    end

    # @return [Hash{String => String}] SVG by file name
    def charts
      drawn_curves.to_h do |work, (title, x_label, unit)|
        lines = Column::LABELS.each_with_index.filter_map do |(column, label), color|
          points = points(work, column)
          [label, color, points] if points.any?
        end
        format = ->(value) { text(value, unit) }
        ["#{work}.svg", Chart.new(title, x_label: x_label, lines: lines, format: format).svg]
      end
    end

    private

    def introduction
      missing = "\nThere was no plain Ruby implementation at hand, so its column is left out." unless plain?
      <<~TEXT.chomp
        Written by `bin/bench`. All columns of a line come from one run in which they took turns, each in a process of
        its own; compare figures of one run only. Medians; in brackets, nine of ten samples are above the first and
        below the second figure.

        - plain Ruby: pgbus's own `Pgbus::Streams::Presence`
        - active_record route: this gem's statements on ActiveRecord's connection
        - native route: this gem as it is used
        - limit: the same statements, prepared, straight from Rust with tokio-postgres, nothing around them; where it
          says threads, one statement for each join on four connections at once
        #{missing}
        #{@circumstances.map { |name, value| "#{name}: #{value}" }.join("  \n")}
      TEXT
    end

    def plain?
      @figures.works.any? { |work| @figures.columns(work).include?("plain") }
    end

    # --- What it must show ---

    def requirements
      measured = Requirement::ALL.select { |requirement| @figures.columns(requirement.work).include?("native") }
      return [] if measured.empty?

      names = Column::LABELS.keys & measured.flat_map { |requirement| @figures.columns(requirement.work) }
      head = ["work", *Column::LABELS.values_at(*names), "against plain Ruby", "against the limit"]
      ["## What it must show", table(head, measured.map { |requirement| requirement_line(requirement, names) })]
    end

    def requirement_line(requirement, names)
      cells = names.map { |name| cell(@figures.median(requirement.work, name), requirement.unit) }
      [requirement.label, *cells, verdict(requirement.against_plain(@figures)),
       verdict(requirement.against_limit(@figures))]
    end

    def verdict(result)
      return "" unless result

      ratio, wanted, met = result
      "#{significant(ratio)} (#{wanted}): #{met ? "met" : "**missed**"}"
    end

    # --- Curves ---

    def curves
      return [] if drawn_curves.empty?

      images = drawn_curves.map { |work, (title, *)| "![#{title}](#{work}.svg)" }
      ["## How it grows", *images]
    end

    # Those with more than one point.
    def drawn_curves
      CURVES.select { |work, _| points(work, "native").size > 1 }
    end

    def points(work, column)
      sizes = @figures.works.filter_map { |name| name[/\A#{work} (\d+)\z/, 1]&.to_i }
      sizes.sort.filter_map do |size|
        figure = @figures.fetch("#{work} #{size}", column)
        [size, figure.low, figure.median, figure.high] if figure
      end
    end

    # --- The rest ---

    def all_figures
      works = @figures.works.grep_v(/\A(grace |rss|sessions|(delay|async) connections)/)
      return [] if works.empty?

      head = ["work", *Column::LABELS.values]
      lines = works.map do |work|
        ["`#{work}`", *Column::LABELS.keys.map { |column| spread(@figures.fetch(work, column), unit(work)) }]
      end
      ["## All figures", LEGEND, table(head, lines)]
    end

    def memory
      return [] unless @figures.columns("rss").any?

      lines = @figures.columns("rss").map do |column|
        rss = @figures.fetch("rss", column).samples
        sessions = @figures.fetch("sessions", column).samples.max
        [Column::LABELS.fetch(column), megabytes(rss.first), megabytes(rss.last), "#{rss.last - rss[1]} KB", sessions]
      end
      calls = Memory::CALLS * Calls::WORKS.size
      samples = @figures.fetch("rss", "native").samples.size
      head = ["column", "after #{calls} calls", "after #{calls * samples} calls",
              "growth since the first #{calls * 2} calls", "PostgreSQL connections"]
      ["## Memory and connections, one thread", table(head, lines)]
    end

    def grace
      columns = Grace::SECONDS.map { |seconds| Grace.column(seconds) }
      works = @figures.works.grep(/\Agrace /)
      return [] if works.empty?

      head = ["work", *Grace::SECONDS.map { |seconds| seconds.zero? ? "0 (off)" : milliseconds(seconds) }]
      lines = works.map do |work|
        [grace_name(work), *columns.map { |column| spread(@figures.fetch(work, column), unit(work)) }]
      end
      ["## The setting gvl_grace", "How long a call keeps the GVL while it waits for the server, before it lets " \
                                   "other threads run.", table(head, lines)]
    end

    def grace_name(work)
      where = { "delay" => ", 1 ms delay", "async" => ", no waiting for the disk" }[work[/delay|async/]]
      what = work.sub(/grace (delay |async )?/, "")
      "#{GRACE_WORKS.fetch(what) { "`join` from #{what[/\d+/]} threads" }}#{where}"
    end

    def unit(work)
      case work
      when /threads/ then :rate
      when /objects|connections/ then :objects
      when /turns/ then :share
      else :time
      end
    end

    def spread(figure, unit)
      return "" unless figure
      return text(figure.median, unit) if unit == :objects

      "#{text(figure.median, unit)} (#{text(figure.low, unit)} to #{text(figure.high, unit)})"
    end

    def cell(value, unit)
      value ? text(value, unit) : ""
    end
  end
end
