# frozen_string_literal: true

require "active_record"

module Pgbus
  module Native
    # The tables of presence as migrations, for an application without pgbus's own and for tests.
    module Migrations
      # Creates +pgbus_presence_members+ in its first shape: one row for each member of a stream.
      # AddPresenceSeats brings it to its present shape.
      #
      # The time columns are of ActiveRecord's +datetime_type+, as every +datetime+ column of the application is.
      class CreatePresenceMembers < ActiveRecord::Migration[7.1]
        # Fails where the table is there already; reverted, it drops it.
        def change
          create_table :pgbus_presence_members, id: false do |t|
            t.string :stream_name, null: false
            t.string :member_id, null: false
            t.jsonb :metadata, null: false, default: {}
            t.datetime :joined_at, null: false, default: -> { "CURRENT_TIMESTAMP" }
            t.datetime :last_seen_at, null: false, default: -> { "CURRENT_TIMESTAMP" }
            t.index %i[stream_name member_id], unique: true, name: "idx_pgbus_presence_members_pk"
            t.index %i[stream_name last_seen_at], name: "idx_pgbus_presence_members_sweep"
          end
        end
      end
    end
  end
end
