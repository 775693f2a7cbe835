# frozen_string_literal: true

# The constants that Presence stands on, for a process without the gem pgbus. Its owner provides
# Pgbus.configuration and Pgbus.logger.
module Pgbus
  # pgbus's own, where pgbus is there.
  class Error < StandardError; end unless const_defined?(:Error)
  # The process is not set up for what was called.
  class ConfigurationError < Error; end unless const_defined?(:ConfigurationError)

  module Streams
    # presence.rb says what it is.
    const_set(:Presence, Class.new)
  end
end
