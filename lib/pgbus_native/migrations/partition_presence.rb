# frozen_string_literal: true

require "active_record"

module Pgbus
  module Native
    module Migrations
      # Optional: partitions +pgbus_presence_members+ by the hash of +stream_name+. docs/scaling.md says when and how.
      #
      # Rows are copied into a new table, which takes the old one's place in the same transaction. Calls made
      # meanwhile wait for its end, then go on. Columns, defaults, checks, indexes, storage options and privileges of
      # the table come along, and keep their names; triggers, policies and publications do not.
      class PartitionPresence < ActiveRecord::Migration[7.1]
        # The table's name.
        TABLE = "pgbus_presence_members"
        # The name of the table that is replaced, while the migration runs.
        REPLACED = "#{TABLE}_replaced".freeze

        # What has to be known of the table, or of its partitions, to build it anew.
        Table = Struct.new(:schema, :storage, :options, :indexes, :grants)
        private_constant :Table
        private_constant :Table

        # @return [Integer] how many partitions; a subclass may say otherwise
        def partitions
          16
        end

        # Partitions of the same schema, storage and options as the table has now.
        # Copies every row into the partitions.
        def up
          replace("PARTITION BY HASH (stream_name)") do |table|
            partitions.times do |number|
              execute <<~SQL
                CREATE #{table.storage} TABLE #{table.schema}.#{TABLE}_#{number}
                PARTITION OF #{table.schema}.#{TABLE}
                FOR VALUES WITH (MODULUS #{partitions}, REMAINDER #{number}) #{table.options}
              SQL
            end
          end
        end

        # One plain table again.
        def down
          replace
        end

        private

        # Yields the table as it was, after the new one was created; the block adds partitions.
        def replace(partitioning = nil)
          connection.transaction do
            # Before anything is read: what is written until then is copied, and nothing is written after it.
            execute "LOCK TABLE #{TABLE} IN ACCESS EXCLUSIVE MODE"
            table = look_up
            create(table, partitioning)
            yield table if partitioning
            move_into(table)
          end
        end

        def create(table, partitioning)
          # A partitioned table has no storage of its own.
          storage, options = partitioning ? [] : [table.storage, table.options]
          execute "ALTER TABLE #{table.schema}.#{TABLE} RENAME TO #{REPLACED}"
          execute <<~SQL
            CREATE #{storage} TABLE #{table.schema}.#{TABLE}
            (LIKE #{table.schema}.#{REPLACED} INCLUDING ALL EXCLUDING INDEXES) #{partitioning} #{options}
          SQL
        end

        def move_into(table)
          execute "INSERT INTO #{table.schema}.#{TABLE} SELECT * FROM #{table.schema}.#{REPLACED}"
          # Names of indexes are unique in a schema: the old ones go first.
          execute "DROP TABLE #{table.schema}.#{REPLACED}"
          [*table.indexes, *table.grants].each { |statement| execute statement }
          # Autovacuum never looks at a partitioned table as a whole.
          execute "ANALYZE #{table.schema}.#{TABLE}"
        end

        def look_up
          schema = connection.select_value(<<~SQL)
            SELECT quote_ident(nspname) FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
            WHERE c.oid = '#{TABLE}'::regclass
          SQL
          Table.new(schema, *storage, indexes, grants)
        end

        # Where the table is partitioned, its partitions have it; all the same.
        def storage
          storage, options = connection.select_rows(<<~SQL).first
            SELECT max(relpersistence::text), array_to_string(max(reloptions), ', ') FROM pg_class
            WHERE oid = '#{TABLE}'::regclass
               OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '#{TABLE}'::regclass)
          SQL
          [("UNLOGGED" if storage == "u"), ("WITH (#{options})" if options)]
        end

        # The statements that create the indexes. On a table without partitions the ONLY of a partitioned one's has no
        # meaning.
        def indexes
          connection.select_values(<<~SQL)
            SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = '#{TABLE}'::regclass
          SQL
        end

        def grants
          connection.select_values(<<~SQL)
            SELECT format('GRANT %s ON %s TO %s%s', privilege_type, c.oid::regclass,
                          CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
                          CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END)
            FROM pg_class c, aclexplode(c.relacl) WHERE c.oid = '#{TABLE}'::regclass
          SQL
        end
      end
    end
  end
end
