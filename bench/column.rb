# frozen_string_literal: true

require "rbconfig"
require_relative "plain_ruby"

module Bench
  class Failure < StandardError; end

  # A column of the tables: one way to run presence, in a process of its own that answers requests.
  class Column
    LABELS = {
      "plain" => "plain Ruby",
      "active_record" => "active_record route",
      "native" => "native route",
      "limit" => "limit"
    }.freeze

    # A request that takes longer has gone wrong.
    PATIENCE = 300

    PROGRAMS = File.join(ENV.fetch("CARGO_TARGET_DIR", "target"), "release/examples")

    # @return [Array<String>] those that can be measured here
    def self.names
      LABELS.keys - (PlainRuby.file ? [] : ["plain"])
    end

    attr_reader :name, :grace

    # @param url [String] of the database
    # @param threads [Integer] from so many threads at once ActiveRecord's connections will be used
    # @param grace [Numeric, nil] the gem's setting gvl_grace
    def initialize(name, url:, threads: 1, grace: nil)
      @name = name
      @grace = grace
      command = if name == "limit"
                  [File.join(PROGRAMS, "limit"), url]
                else
                  [RbConfig.ruby, File.join(__dir__, "worker.rb"), name, threads.to_s, *grace&.to_s]
                end
      @process = IO.popen([{ "DATABASE_URL" => url }, *command], "r+")
      @process.timeout = PATIENCE
    end

    # @return [Array<Integer>] the numbers that answer the request
    def ask(*words)
      @process.puts words.join(" ")
      answer = @process.gets
      return answer.split.map(&:to_i) unless answer.nil? || answer.start_with?("error")

      raise Failure, "#{name}: #{words.join(" ")}: #{answer || "the process has ended"}"
    rescue IO::TimeoutError
      raise Failure, "#{name}: #{words.join(" ")}: no answer within #{PATIENCE} s"
    end

    # @raise [Failure] if the column was not what its name says
    def close
      stray = name == "native" ? ask("routes").last : 0
      raise Failure, "the native column made #{stray} calls on ActiveRecord's connection" if stray.positive?
    ensure
      @process.close
    end
  end
end
