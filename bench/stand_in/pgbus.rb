# frozen_string_literal: true

# `require "pgbus"` finds this file in the bench, whether pgbus is installed or not: what Presence needs of
# pgbus, the same for all columns, with nobody listening.
module Pgbus
  class ConfigurationError < StandardError; end

  # The settings that Presence asks for.
  class Configuration
    def connects_to; end

    def notify_presence_change(stream_name, change); end
  end

  @configuration = Configuration.new

  class << self
    attr_reader :configuration

    def logger; end
  end
end
