# frozen_string_literal: true

require "weakref"

module Pgbus
  module Native
    # Sums the counters of all native databases that this process has had. One is dropped when its settings lead
    # elsewhere or ActiveRecord drops its configuration; who reads the sums must not see them fall then.
    #
    # A forked child counts from zero: it counts its own calls, as {Database#stats} does.
    class Totals
      # Figures that only grow.
      COUNTERS = %i[calls connects batched retries].freeze
      ZERO = COUNTERS.to_h { |counter| [counter, 0] }.freeze

      # A database, not kept alive by this, and its counters when they were last read.
      Tally = Struct.new(:database, :counters)
      private_constant :ZERO, :Tally

      def initialize
        @lock = Mutex.new
        @process = ::Process.pid
        @tallies = []
        @gone = ZERO
      end

      # @param database [Database] from now on its counters are in the sums
      # @return [Database] the same
      def follow(database)
        synchronize { @tallies << Tally.new(WeakRef.new(database), ZERO) }
        database
      end

      # Reads every database that is still there. To be called before one is dropped, so that its last figures are
      # known.
      #
      # @return [Hash{Symbol => Integer}] the sums, by {COUNTERS}
      def counters
        synchronize do
          gone, @tallies = @tallies.partition { |tally| !read(tally) }
          @gone = sum([@gone, *gone.map(&:counters)])
          sum([@gone, *@tallies.map(&:counters)])
        end
      end

      private

      # Whether the database is still there.
      def read(tally)
        tally.counters = tally.database.__getobj__.stats.slice(*COUNTERS)
        true
      rescue WeakRef::RefError
        false
      end

      def sum(counters)
        counters.reduce { |sums, others| sums.merge(others) { |_, one, other| one + other } }
      end

      def synchronize
        @lock.synchronize do
          start_over unless @process == ::Process.pid
          yield
        end
      end

      def start_over
        @process = ::Process.pid
        @gone = ZERO
        @tallies.each { |tally| tally.counters = ZERO }
      end
    end
  end
end
