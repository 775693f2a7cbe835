# frozen_string_literal: true

require "rbconfig"
require_relative "plain_ruby"
require_relative "program"

module Bench
  # A column of the tables: one way to run presence, in a process of its own.
  class Column < Program
    LABELS = {
      "plain" => "plain Ruby",
      "active_record" => "active_record route",
      "native" => "native route",
      "limit" => "limit"
    }.freeze

    # @return [Array<String>] those that can be measured here
    def self.names
      LABELS.keys - (PlainRuby.file ? [] : ["plain"])
    end

    attr_reader :grace

    # @param url [String] of the database
    # @param threads [Integer] from so many threads at once ActiveRecord's connections will be used
    # @param grace [Numeric, nil] the gem's setting gvl_grace
    def initialize(name, url:, threads: 1, grace: nil)
      @grace = grace
      command = if name == "limit"
                  [File.join(EXAMPLES, "limit"), url]
                else
                  [RbConfig.ruby, File.join(__dir__, "worker.rb"), name, threads.to_s, *grace&.to_s]
                end
      super(name, command, { "DATABASE_URL" => url })
    end

    # @raise [Failure] if the column was not what its name says
    def close
      stray = name == "native" ? ask("routes").last : 0
      raise Failure, "the native column made #{stray} calls on ActiveRecord's connection" if stray.positive?
    ensure
      super
    end
  end
end
