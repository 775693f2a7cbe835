# frozen_string_literal: true

require "generators/pgbus_native/base"

module PgbusNative
  module Generators
    # `rails generate pgbus_native:presence`: the presence table in its first shape, and its seats.
    #
    # @api private
    class PresenceGenerator < Base
      # What a migration says that makes the table, this gem's, pgbus's or somebody's own.
      TABLE = /create.table\W+(?:if not exists\W+)?pgbus_presence_members|Migrations::CreatePresenceMembers/i

      # What a migration says that gives it seats.
      SEATS = /pgbus_presence_members.*\bconnection_id\b|Migrations::AddPresenceSeats/m

      private_constant :TABLE, :SEATS

      source_root File.expand_path("templates", __dir__)
      desc "Writes the migrations of the table of Pgbus::Streams::Presence: one that creates it, one that adds its " \
           "seats. What the application has already is left out."

      class_option :timestamptz, type: :boolean, default: false,
                                 desc: "Make its times timestamptz, whatever ActiveRecord's datetime_type."

      # @return [void]
      def create_the_table
        migration("create_pgbus_presence_members", same: TABLE)
      end

      # @return [void]
      def add_the_seats
        migration("add_seats_to_pgbus_presence_members", same: SEATS)
      end

      private

      def time_type
        options[:timestamptz] ? "timestamptz" : "datetime"
      end
    end
  end
end
