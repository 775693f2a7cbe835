# frozen_string_literal: true

require "etc"
require "pgbus_native/version"

module Bench
  # What figures depend on beside the code. Made before the run.
  class Circumstances
    def initialize
      @load_before = load_average
    end

    # @param database [Database]
    # @return [Hash{String => String}] machine, versions, settings
    def to_h(database)
      {
        "Machine" => "#{Etc.nprocessors} cores, #{cpu}",
        "Load average" => "#{@load_before} before the run, #{load_average} after it",
        "Software" => "Ruby #{RUBY_VERSION}, pg #{PG::VERSION}, ActiveRecord #{ActiveRecord.version}, " \
                      "pgbus_native #{Pgbus::Native::VERSION}",
        "PostgreSQL" => database.settings.map { |name, value| "#{name} #{value}" }.join(", ")
      }
    end

    private

    def cpu
      File.read("/proc/cpuinfo")[/^model name\s*: (.*)/, 1] || RUBY_PLATFORM
    rescue SystemCallError
      RUBY_PLATFORM
    end

    def load_average
      File.read("/proc/loadavg").split.first
    rescue SystemCallError
      "unknown"
    end
  end
end
