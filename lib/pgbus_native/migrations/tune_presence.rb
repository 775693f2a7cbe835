# frozen_string_literal: true

require "active_record"

module Pgbus
  module Native
    module Migrations
      # Optional: keeps +pgbus_presence_members+ small under heartbeats. docs/tuning.md has the measurements.
      #
      # A heartbeat updates +last_seen_at+ of every row. Without an index on that column, and with room on the row's
      # own page, such an update touches no index and cleans up after itself (a HOT update).
      class TunePresence < ActiveRecord::Migration[7.1]
        # The table's name.
        TABLE = :pgbus_presence_members
        # The index that keeps updates from being HOT ones.
        SWEEP_INDEX = "idx_pgbus_presence_members_sweep"
        # Half of each page for new versions of its rows.
        FILLFACTOR = 50

        # Pages that are there already are filled less as their rows are updated.
        def up
          remove_index TABLE, name: SWEEP_INDEX, if_exists: true
          execute "ALTER TABLE #{quote_table_name(TABLE)} SET (fillfactor = #{FILLFACTOR})"
        end

        # Pages that are there already fill up as rows come.
        def down
          execute "ALTER TABLE #{quote_table_name(TABLE)} RESET (fillfactor)"
          add_index TABLE, %i[stream_name last_seen_at], name: SWEEP_INDEX, if_not_exists: true
        end
      end
    end
  end
end
