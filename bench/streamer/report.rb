# frozen_string_literal: true

require_relative "../text"
require_relative "requirements"

module Bench
  module Streamer
    # The figures as Markdown, which is what the terminal shows as well.
    class Report
      include Text

      # @param figures [Figures]
      # @param circumstances [Hash{String => String}] machine, versions, settings
      # @param sizes [Sizes]
      def initialize(figures, circumstances, sizes)
        @figures = figures
        @circumstances = circumstances
        @sizes = sizes
        @requirements = Requirements.new(sizes).select { |requirement| figures.works.include?(requirement.work) }
      end

      # @return [String]
      def markdown
        ["# The streamer under load", introduction, "## What it must show", table(head, requirement_lines),
         "## All figures", legend, table(["work", *Side::LABELS.values], figure_lines)].join("\n\n") << "\n"
      end

      private

      def introduction
        <<~TEXT.chomp
          Written by `bin/bench --streamer`. Both streamers took turns in one run, each turn in a process of its own;
          compare figures of one run only.

          - plain Ruby streamer: built as pgbus's is, with pgbus's own `Pgbus::Streams::Presence`. One thread takes
            connects, disconnects and broadcasts from a queue, another one does the heartbeat, each with
            `write_nonblock` on one socket after the other and one call of Presence after the other. Each connection
            makes its frames, as there; but a broadcast's text does not come from a table
          - native streamer: this gem's, as it is used
          - limit: the same frames written to the same sockets one after the other, in Rust, and nothing else: no seats,
            no registry. What the kernel takes, for its side and the clients', is in it
          #{missing}
          Under both is the same small loop that accepts a connection, writes the head of the response and hands it to
          the streamer, instead of a web server, whose work would be the same on both sides. The clients are a process
          of their own; the kernel notes when bytes arrive at their sockets, and they do not read while a broadcast is
          written or CPU time measured, so what they take is in no such figure.

          #{@circumstances.map { |name, value| "#{name}: #{value}" }.join("  \n")}
        TEXT
      end

      def missing
        return if @figures.works.any? { |work| @figures.columns(work).include?("plain") }

        "\nThere was no plain Ruby Presence at hand, so its column is left out.\n"
      end

      def head
        ["work", *Side::LABELS.values, "against plain Ruby", "at most"]
      end

      def requirement_lines
        @requirements.map do |requirement|
          cells = Side::LABELS.keys.map { |side| cell(requirement, @figures.median(requirement.work, side)) }
          [requirement.label, *cells, against_plain(requirement), bound(requirement)]
        end
      end

      def cell(requirement, value)
        value ? text(value, requirement.unit) : ""
      end

      def against_plain(requirement)
        ratio = requirement.ratio(@figures)
        return "" unless ratio

        "#{significant(ratio)} (at least #{requirement.times})#{verdict(ratio >= requirement.times)}"
      end

      def bound(requirement)
        value = @figures.median(requirement.work, "native")
        return "" unless value && requirement.most

        "#{text(requirement.most, requirement.unit)}#{verdict(value <= requirement.most)}"
      end

      # Of a small load there is none: what has to be shown is about the large one.
      def verdict(met)
        return unless @sizes == FULL

        met ? ": met" : ": **missed**"
      end

      def legend
        <<~TEXT.chomp
          Medians; in brackets, nine of ten samples are above the first and below the second figure. `lateness` is how
          late a Ruby thread is in the worst case that wakes up every millisecond for #{Heartbeat::BEATS} intervals of
          #{@sizes.interval} s; `without` heartbeats, before there are connections. `memory` is the growth of the
          resident set. While connections are held, a broadcast of #{thousands(@sizes.bytes)} bytes goes to each stream
          once a second; late is a heartbeat that comes more than #{Hold::GRACE} s after its interval of
          #{@sizes.held_interval} s, or a broadcast that takes longer than #{Hold::LATEST} s or is missing.
        TEXT
      end

      def figure_lines
        @requirements.map do |requirement|
          figures = Side::LABELS.keys.map { |side| @figures.fetch(requirement.work, side) }
          ["`#{requirement.work}`", *figures.map { |figure| figure ? spread(figure, requirement.unit) : "" }]
        end
      end

      def spread(figure, unit)
        return text(figure.median, unit) if figure.samples.one?

        "#{text(figure.median, unit)} (#{text(figure.low, unit)} to #{text(figure.high, unit)})"
      end
    end
  end
end
