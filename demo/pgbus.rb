# frozen_string_literal: true

# pgbus's own accessors, for a process without pgbus.
module Pgbus
  class << self
    attr_accessor :configuration, :logger
  end
end
