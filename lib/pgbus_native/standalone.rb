# frozen_string_literal: true

# The constants that Presence stands on, for a process without the gem pgbus. Its owner provides
# Pgbus.configuration and Pgbus.logger.
module Pgbus
  class Error < StandardError; end unless const_defined?(:Error)
  class ConfigurationError < Error; end unless const_defined?(:ConfigurationError)

  module Streams
    Presence = Class.new
  end
end
