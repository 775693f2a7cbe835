# frozen_string_literal: true

require "active_record"

module Pgbus
  module Native
    module Migrations
      # Gives +pgbus_presence_members+ its seats: a row with a +connection_id+ belongs to one SSE connection,
      # a row without one to a member, as before. The unique index is replaced by one for each kind of row.
      class AddPresenceSeats < ActiveRecord::Migration[7.1]
        # The table's name.
        TABLE = :pgbus_presence_members
        # The unique index of the rows without a connection.
        MEMBER_INDEX = "idx_pgbus_presence_members_pk"
        # The unique index of the seats.
        SEAT_INDEX = "idx_pgbus_presence_members_seat"

        # Keeps every row; each becomes a member's.
        def up
          change_table TABLE, bulk: true do |t|
            t.string :connection_id
            t.string :seat
            t.jsonb :state, null: false, default: {}
          end
          remove_index TABLE, name: MEMBER_INDEX
          add_index TABLE, %i[stream_name member_id], unique: true, name: MEMBER_INDEX, where: "connection_id IS NULL"
          add_index TABLE, %i[stream_name connection_id], unique: true, name: SEAT_INDEX,
                                                          where: "connection_id IS NOT NULL"
        end

        # Deletes every seat, since the old shape has no place for it; keeps the members' rows.
        def down
          # Dropping the index first locks the table until the commit: a seat joined after the DELETE
          # would otherwise be left behind as a member that nobody ever removes.
          remove_index TABLE, name: SEAT_INDEX
          execute "DELETE FROM #{TABLE} WHERE connection_id IS NOT NULL"
          remove_index TABLE, name: MEMBER_INDEX
          change_table(TABLE, bulk: true) { |t| t.remove :connection_id, :seat, :state }
          add_index TABLE, %i[stream_name member_id], unique: true, name: MEMBER_INDEX
        end
      end
    end
  end
end
