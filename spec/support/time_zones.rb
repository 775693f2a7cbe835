# frozen_string_literal: true

# A server, a session and a process in zones of their own.
module TimeZones
  # @param server [String] the database's `timezone`
  # @param process [String, nil] TZ
  # @param local [String, nil] TZ, with default_timezone :local
  # @param settings [Hash] of database.yml
  def in_time_zones(server:, process: nil, local: nil, **settings, &)
    before = ENV.fetch("TZ", nil)
    ENV["TZ"] = local || process || before
    ActiveRecord.default_timezone = local ? :local : :utc
    SpecDatabase.sql("ALTER DATABASE #{SpecDatabase::NAME} SET timezone = '#{server}'")
    # Only new sessions have it.
    with_connection_settings(**settings, &)
  ensure
    ENV["TZ"] = before
    ActiveRecord.default_timezone = :utc
    SpecDatabase.sql("ALTER DATABASE #{SpecDatabase::NAME} RESET timezone")
    SpecDatabase.establish
  end
end
