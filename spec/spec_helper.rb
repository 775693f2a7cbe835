# frozen_string_literal: true

unless ENV["DATABASE_URL"]
  abort <<~MESSAGE
    The specs need a PostgreSQL server: set DATABASE_URL to one on which they may create a
    database of their own, or let the project start a throwaway one:

        bin/env rspec
  MESSAGE
end

require "active_record"
require "active_support/time"
require "json"
require "pg"
require "timeout"

$LOAD_PATH.unshift(File.join(__dir__, "support/stand_in"))
require "pgbus_native"

require_relative "support/spec_database"
require_relative "support/spec_stream"
require_relative "support/implementation"
require_relative "support/waiting"
require_relative "support/children"
require_relative "support/presence_helpers"
Dir[File.join(__dir__, "support/shared_examples/*.rb")].each { |file| require file }

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.expect_with(:rspec) { |expectations| expectations.syntax = :expect }
  config.mock_with(:rspec) { |mocks| mocks.verify_partial_doubles = true }
  config.shared_context_metadata_behavior = :apply_to_host_groups
  config.filter_run_when_matching :focus
  # Times mean something on a quiet machine only: PRESENCE_SPEED=1 bin/env rspec spec/speed_spec.rb
  config.filter_run_excluding speed: true unless ENV["PRESENCE_SPEED"] == "1"

  config.include Waiting
  config.include Children
  config.include PresenceHelpers
  config.extend PresenceHelpers::Groups

  # Each run has a database of its own, so runs side by side do not meet.
  config.before(:suite) { SpecDatabase.create }
  config.after(:suite) { SpecDatabase.drop }
end
