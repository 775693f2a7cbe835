# frozen_string_literal: true

require_relative "worker"

module Pgbus
  module Native
    class Streamer
      # Looks after the seats on whatever route a call takes, where that is not the native one: in transactional tests,
      # or for a server that the native client cannot speak to.
      module RubySeats
        # What can be the fault of one row, as the core sees it: cardinality, data, constraints, triggers, size.
        OF_ONE_ROW = [
          PG::CardinalityViolation, PG::DataException, PG::IntegrityConstraintViolation, PG::ExternalRoutineException,
          PG::ExternalRoutineInvocationException, PG::WithCheckOptionViolation, PG::ProgramLimitExceeded,
          PG::PlpgsqlError
        ].freeze
        private_constant :OF_ONE_ROW

        # @param hub [Hub]
        # @param logger [Logger, nil]
        # @return [Worker]
        def self.start(hub, logger)
          number = hub.take_seats
          next_work = -> { hub.next_work(number)&.then { |work| [work] } }
          Worker.new("pgbus seats", logger, next_work) { |work| hub.work_done(work, perform(work)) }
        end

        # @param work [SeatWork]
        # @return [Array<Boolean, String, Array(String)>] for each seat whether it was there, why that is not known, or
        #   why the server does not take it
        def self.perform(work)
          batch(work)
        rescue *OF_ONE_ROW
          # One of them is at fault.
          work.each.map { |statement, params| single(statement, params) }
        rescue StandardError => e
          [e.message] * work.ids.size
        ensure
          ActiveRecord::Base.connection_handler.clear_active_connections!(:all) if defined?(ActiveRecord::Base)
        end

        def self.batch(work)
          found = Route.run(*work.batch).to_set { |row| row.is_a?(Hash) ? row["connection_id"] : row }
          work.ids.map { |id| found.include?(id) }
        end

        def self.single(statement, params)
          Route.run(statement, params).any?
        rescue *OF_ONE_ROW => e
          [e.message]
        rescue StandardError => e
          e.message
        end

        private_class_method :batch, :single
      end
    end
  end
end
