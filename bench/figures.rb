# frozen_string_literal: true

require "json"

module Bench
  # What was measured: samples by work and column.
  class Figures
    # A column's samples of one work.
    Figure = Data.define(:samples) do
      def median
        quantile(0.5)
      end

      # Nine out of ten are above it.
      def low
        quantile(0.1)
      end

      # Nine out of ten are below it.
      def high
        quantile(0.9)
      end

      private

      def quantile(share)
        sorted = samples.sort
        position = share * (sorted.size - 1)
        below, above = sorted.values_at(position.floor, position.ceil)
        below + ((above - below) * (position - position.floor))
      end
    end

    def initialize
      @samples = {}
    end

    # @param work [String] such as "members 2000"
    # @param samples [Array<Numeric>] nanoseconds, or calls per second, or whatever the work counts
    def add(work, column, samples)
      ((@samples[work] ||= {})[column] ||= []).concat(samples)
    end

    # @return [Figure, nil]
    def fetch(work, column)
      samples = @samples.dig(work, column)
      Figure.new(samples) if samples
    end

    def median(work, column)
      fetch(work, column)&.median
    end

    # @return [Float, nil] how many times the one median is the other
    def ratio(work, column, other)
      one = median(work, column)
      two = median(work, other)
      one / two.to_f if one && two
    end

    # @return [Array<String>]
    def works
      @samples.keys
    end

    # @return [Array<String>] the columns that have figures for the work
    def columns(work)
      (@samples[work] || {}).keys
    end

    # The raw samples, a line for each work and column.
    #
    # @param circumstances [Hash{String => String}]
    # @return [String]
    def json(circumstances)
      works = @samples.map do |work, columns|
        lines = columns.map { |column, samples| "      #{column.to_json}: #{samples.to_json}" }
        "    #{work.to_json}: {\n#{lines.join(",\n")}\n    }"
      end
      "{\n  \"circumstances\": #{circumstances.to_json},\n  \"samples\": {\n#{works.join(",\n")}\n  }\n}\n"
    end
  end
end
