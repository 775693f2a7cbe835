# frozen_string_literal: true

# A model of the application that lives in the second database.
class OtherDatabaseRecord < ActiveRecord::Base
  self.abstract_class = true
end

# A second database on the server, for applications that have several.
module OtherDatabase
  NAME = "#{SpecDatabase::NAME}_other".freeze

  # Makes it, with a presence table, for the time of the block.
  def with_other_database(seats: true)
    sql("CREATE DATABASE #{NAME}")
    SpecDatabase.establish(OtherDatabaseRecord, database: NAME)
    migrations = SpecDatabase::MIGRATIONS.first(seats ? 2 : 1)
    migrations.each { |migration| migration.new.exec_migration(OtherDatabaseRecord.connection, :up) }
    yield
  ensure
    OtherDatabaseRecord.remove_connection
    sql("DROP DATABASE IF EXISTS #{NAME} WITH (FORCE)")
  end

  # Ids of the members in each of the two databases.
  def members_by_database
    other = OtherDatabaseRecord.connection.select_values("SELECT member_id FROM pgbus_presence_members ORDER BY 1")
    { here: rows.map { |row| row["member_id"] }, other: }
  end

  # Has the record's class connect to both databases, as `connects_to` of the application would.
  #
  # @param shards [Hash] of roles, of `:here` or `:other`
  def with_connects_to(record, shards)
    databases = { here: {}, other: { database: NAME } }
    shards = shards.transform_values do |roles|
      roles.transform_values { |name| SpecDatabase.configuration(**databases.fetch(name)) }
    end
    record.abstract_class = true unless record == ActiveRecord::Base
    record.connects_to(shards:)
    yield
  ensure
    disconnect(record, shards)
  end

  private

  def disconnect(record, shards)
    handler = ActiveRecord::Base.connection_handler
    shards.each do |shard, roles|
      roles.each_key { |role| handler.remove_connection_pool(record.name, role:, shard:) }
    end
    record.default_shard = :default
    SpecDatabase.establish
  end
end
