# frozen_string_literal: true

require_relative "sections"
require_relative "../text"

module Bench
  module Streamer
    # A line of the table of what the streamer must show.
    #
    # - work: in the figures
    # - unit: `:time` (nanoseconds), `:bytes` or `:number`; of each, less is better
    # - times: so many times as good as the plain streamer, at least
    # - most: no more than this, whatever the plain streamer's figure is
    Requirement = Data.define(:label, :work, :unit, :times, :most) do
      def initialize(label:, work:, unit: :time, times: nil, most: nil)
        super
      end

      # @return [Float, nil] how many times as good as the plain streamer, where that is asked
      def ratio(figures)
        figures.ratio(work, "plain", "native") if times && figures.median(work, "native")&.positive?
      end
    end

    # All of them, for a load of some size.
    class Requirements
      include Enumerable
      include Text

      MILLISECOND = 1_000_000

      # @param sizes [Sizes]
      def initialize(sizes)
        @sizes = sizes
      end

      def each(&)
        [connect, *heartbeat, *idle, *held].each(&)
      end

      private

      def connect
        Requirement.new(label: "#{thousands(@sizes.connecting)} clients connecting at once, until the last has its " \
                               "connected frame", work: Connect::WORK, times: 5)
      end

      def heartbeat
        [
          Requirement.new(label: "heartbeat of #{thousands(@sizes.connections)} connections with seats on " \
                                 "#{@sizes.streams} streams, CPU time", work: Heartbeat::CPU, times: 10),
          Requirement.new(label: "longest delay of another Ruby thread meanwhile", work: Heartbeat::LATENESS,
                          most: 5 * MILLISECOND),
          Requirement.new(label: "the same without heartbeat", work: Heartbeat::WITHOUT)
        ]
      end

      def idle
        [
          Requirement.new(label: "broadcast to #{thousands(@sizes.connections)} connections, until the last has it",
                          work: Broadcast::WORK, times: 5),
          Requirement.new(label: "memory for each idle connection", work: Heartbeat::MEMORY, unit: :bytes, times: 2,
                          most: 16 * 1024)
        ]
      end

      def held
        [
          Requirement.new(label: "#{thousands(@sizes.held)} connections held for #{@sizes.seconds} s, 1 in " \
                                 "#{Hold::SLOW} not reading: others that were late",
                          work: Hold::LATE, unit: :number, most: 0),
          Requirement.new(label: "others that were lost", work: Hold::LOST, unit: :number, most: 0),
          Requirement.new(label: "not reading, and not cut off", work: Hold::KEPT, unit: :number, most: 0),
          Requirement.new(label: "longest time without a heartbeat, of the others", work: Hold::GAP),
          Requirement.new(label: "broadcasts to them that did not come", work: Hold::MISSING, unit: :number, most: 0),
          Requirement.new(label: "slowest of those that came", work: Hold::SLOWEST)
        ]
      end
    end
  end
end
