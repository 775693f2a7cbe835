# frozen_string_literal: true

# One of the three ways to run Presence that the suites compare: the gem on its native
# route, the gem on its active_record route, and the plain Ruby code of pgbus, the yardstick.
class Implementation
  attr_reader :name, :route, :pgbus

  def initialize(name, route: nil, pgbus: nil)
    @name = name
    @route = route
    @pgbus = pgbus
  end

  # Runs the block so that Presence calls made in it, on this thread and fiber, are this
  # implementation's.
  def use(&)
    route ? Pgbus::Native.with_route(route, &) : yield
  end

  def presence_class
    pgbus::Streams::Presence
  end

  def gem?
    !route.nil?
  end

  # Why it cannot be tested here; nil when it can.
  def unavailable
    "no plain Ruby Presence: install pgbus or set PGBUS_REFERENCE" unless pgbus
  end

  # The plain Ruby source, evaluated inside a module so that it does not meet the gem's
  # class of the same name.
  module PlainRuby
    module Pgbus
      extend PgbusStandIn
    end

    def self.source
      installed = Gem::Specification.find_by_name("pgbus", "~> 0.18.0")
      File.join(installed.full_gem_path, "lib/pgbus/streams/presence.rb")
    rescue Gem::MissingSpecError
      ENV.fetch("PGBUS_REFERENCE", nil)
    end

    def self.load
      return unless source

      module_eval(File.read(source), source, 1)
      self::Pgbus
    end
  end

  NATIVE = new("native route", route: :native, pgbus: ::Pgbus)
  ACTIVE_RECORD = new("active_record route", route: :active_record, pgbus: ::Pgbus)
  PLAIN_RUBY = new("plain Ruby", pgbus: PlainRuby.load)
  # The gem as it runs where nobody chose a route.
  AUTO = new("automatic route", route: :auto, pgbus: ::Pgbus)
  GEM = [NATIVE, ACTIVE_RECORD].freeze
  ALL = [*GEM, PLAIN_RUBY].freeze
end
