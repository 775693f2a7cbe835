# frozen_string_literal: true

require "active_record"
require "logger"
require "stringio"

# `require "pgbus"` finds this file in the specs, whether pgbus is installed or not.
#
# What Presence needs of pgbus and no more: a configuration, a logger, BusRecord and
# ConfigurationError. `extend`ed by ::Pgbus, and by the module that the plain Ruby
# implementation lives in, so that each sees only its own.
module PgbusStandIn
  class Configuration
    attr_accessor :connects_to, :on_presence_change
    attr_reader :changes

    def initialize
      @changes = Thread::Queue.new
    end

    def notify_presence_change(stream_name, change)
      @changes << [stream_name, change]
      on_presence_change&.call(stream_name, change)
    end
  end

  def self.extended(pgbus)
    pgbus.const_set(:ConfigurationError, Class.new(StandardError))
    # Named before its body runs: ActiveRecord asks a class for its name.
    pgbus.const_set(:BusRecord, Class.new(ActiveRecord::Base) { def self.abstract_class? = true })
    pgbus.start_over
  end

  attr_accessor :configuration, :logger

  # A fresh configuration and an empty log, before each example.
  def start_over
    @configuration = Configuration.new
    @log = StringIO.new
    @logger = Logger.new(@log, level: Logger::DEBUG, formatter: ->(_, _, _, message) { "#{message}\n" })
  end

  def log_lines
    @log.string.lines(chomp: true)
  end
end

module Pgbus
  extend PgbusStandIn
end
