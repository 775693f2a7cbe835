# frozen_string_literal: true

require_relative "line"

module Pgbus
  module Native
    class Doctor
      # One kind of check. A subclass has a NAME and an `examine` that says what it finds.
      class Check
        # @param app [App, nil]
        # @yieldparam line [Line] one for each finding
        def initialize(app, &say)
          @app = app
          @say = say
        end

        # @return [void]
        def call
          examine
        end

        private

        attr_reader :app

        def ok(message, name: self.class::NAME, **figures)
          @say.call(Line.new(name:, status: :ok, message:, figures:))
        end

        def note(message, advice, name: self.class::NAME, **figures)
          @say.call(Line.new(name:, status: :note, message:, advice:, figures:))
        end

        def warning(message, advice, name: self.class::NAME, **figures)
          @say.call(Line.new(name:, status: :warning, message:, advice:, figures:))
        end

        def error(message, advice, name: self.class::NAME, **figures)
          @say.call(Line.new(name:, status: :error, message:, advice:, figures:))
        end

        # Seconds that the block took.
        def seconds
          started = ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
          yield
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC) - started
        end

        def milliseconds(seconds)
          (seconds * 1000).round(2)
        end
      end

      # A check that has something to look at only if there is a table. That there is none, {Columns} says.
      class TableCheck < Check
        # @return [void]
        def call
          super if app.table
        end
      end
    end
  end
end
