# frozen_string_literal: true

require "json"
require "timeout"

require_relative "doctor/app"
require_relative "doctor/discretion"
require_relative "doctor/line"
require_relative "doctor/versions"
require_relative "doctor/server"
require_relative "doctor/chosen_route"
require_relative "doctor/columns"
require_relative "doctor/indexes"
require_relative "doctor/sizes"
require_relative "doctor/dead_rows"
require_relative "doctor/time_zones"
require_relative "doctor/encryption"
require_relative "doctor/prepared_statements"
require_relative "doctor/round_trip"
require_relative "doctor/operations"

module Pgbus
  module Native
    # Looks at everything that presence depends on, one check after the other, and says what it finds.
    # {Native.doctor} is how it is called.
    #
    # @api private
    class Doctor
      # Seconds for connecting, and for each check: a server that does not answer must become a line, too.
      PATIENCE = 10

      CHECKS = [Server, ChosenRoute, Columns, Indexes, Sizes, DeadRows, TimeZones, Encryption, PreparedStatements,
                RoundTrip, Operations].freeze
      private_constant :CHECKS

      # @param io [#puts]
      # @param json [Boolean]
      def initialize(io:, json:)
        @io = io
        @json = json
        @lines = []
      end

      # @return [Boolean] whether nothing is wrong
      def call
        examine(Versions, nil)
        examine_database
        @io.puts(@json ? JSON.generate(report) : summary)
        well?
      end

      private

      def well?
        @lines.none?(&:wrong?)
      end

      def examine_database
        app = patiently { App.new }
        CHECKS.each { |check| examine(check, app) }
      # A missing adapter is a LoadError.
      rescue StandardError, LoadError => e
        say(Server.unreachable(e))
      ensure
        app&.close
      end

      # A check that fails is a line; the next one may know more.
      def examine(check, app)
        patiently { check.new(app) { |line| say(line) }.call }
      rescue StandardError => e
        # What it waited for may still come, for the next one to take for its own answer.
        app&.discard if e.is_a?(Timeout::Error)
        say(Line.new(name: check::NAME, status: :error, message: "could not be looked at: #{Discretion.message(e)}",
                     advice: "see whether the database still answers, then ask again"))
      end

      def patiently(&)
        Timeout.timeout(PATIENCE, nil, "no answer within #{PATIENCE} s", &)
      end

      def say(line)
        @lines << line
        @io.puts(line.to_s) unless @json
      end

      def report
        { ok: well?, version: VERSION, checks: @lines.map(&:to_h) }
      end

      def summary
        return "\nAll is well." if well?

        wrong = @lines.select(&:wrong?).map(&:status).tally.sort
        "\n#{wrong.map { |status, number| "#{number} #{status}#{"s" if number > 1}" }.join(", ")}."
      end
    end
  end
end
