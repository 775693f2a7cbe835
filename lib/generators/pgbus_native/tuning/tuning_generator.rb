# frozen_string_literal: true

require "generators/pgbus_native/base"

module PgbusNative
  module Generators
    # `rails generate pgbus_native:tuning`: the optional migration that keeps the presence table small.
    #
    # @api private
    class TuningGenerator < Base
      # What a migration says that tunes the table already.
      TUNING = /pgbus_presence_members.*\bfillfactor\b|Migrations::TunePresence/im

      private_constant :TUNING

      source_root File.expand_path("templates", __dir__)
      desc "Writes the optional migration that keeps the table of Pgbus::Streams::Presence small under heartbeats: " \
           "room in its pages, and no index on last_seen_at."

      # @return [void]
      def tune_the_table
        migration("tune_pgbus_presence_members", same: TUNING)
      end
    end
  end
end
