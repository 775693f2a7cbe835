# frozen_string_literal: true

module Pgbus
  module Native
    # What is known about one database's presence table: has it seats? A yes is kept; a no is trusted for a
    # while, so that a table migrated under a running process is noticed.
    class SchemaAnswer
      @lock = Mutex.new
      @answers = ObjectSpace::WeakKeyMap.new

      class << self
        # @param db_config [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @return [SchemaAnswer] the database's one
        def for(db_config)
          @answers[db_config] || @lock.synchronize { @answers[db_config] ||= new }
        end

        # Forgets every database's answer.
        #
        # @return [void]
        def forget
          @lock.synchronize { @answers = ObjectSpace::WeakKeyMap.new }
        end
      end

      def initialize
        @lock = Mutex.new
        # One object, so that a reader without the lock sees an answer and its time together.
        @known = nil
      end

      # @param clock [#call] monotonic seconds
      # @param recheck [Numeric] seconds for which a no is trusted
      # @yieldreturn [Boolean] what a probe of the table says; one thread probes, others wait for it
      # @return [Boolean]
      def fetch(clock, recheck)
        known = @known
        return known.first if fresh?(known, clock, recheck)

        @lock.synchronize do
          @known = [yield, clock.call] unless fresh?(@known, clock, recheck)
          @known.first
        end
      end

      # @return [void]
      def forget
        @lock.synchronize { @known = nil }
      end

      private

      def fresh?(known, clock, recheck)
        return false unless known

        supported, probed_at = known
        supported || clock.call - probed_at < recheck
      end
    end
  end
end
