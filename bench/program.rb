# frozen_string_literal: true

module Bench
  class Failure < StandardError; end

  # A process of its own that answers requests, a line each.
  class Program
    # A request that takes longer has gone wrong.
    PATIENCE = 300

    # Where Cargo puts the examples.
    EXAMPLES = File.join(ENV.fetch("CARGO_TARGET_DIR", "target"), "release/examples")

    # @raise [Failure] if they do not compile
    def self.build(*examples)
      return if system("cargo", "build", "--quiet", "--release", *examples.flat_map { |name| ["--example", name] })

      raise Failure, "#{examples.join(", ")}: this does not compile"
    end

    attr_reader :name

    # @param name [String] for messages
    # @param command [Array<String>]
    # @param environment [Hash{String => String}]
    def initialize(name, command, environment = {})
      @name = name
      @process = IO.popen([environment, *command], "r+")
      @process.timeout = PATIENCE
    end

    # @return [Array<Integer>] the numbers that answer the request
    def ask(*words)
      @process.puts words.join(" ")
      numbers(words)
    end

    def close
      @process.close
    end

    private

    def numbers(words = [])
      answer = @process.gets
      return answer.split.map(&:to_i) unless answer.nil? || answer.start_with?("error")

      raise Failure, "#{name}: #{words.join(" ")}: #{answer || "the process has ended"}"
    rescue IO::TimeoutError
      raise Failure, "#{name}: #{words.join(" ")}: no answer within #{PATIENCE} s"
    end
  end
end
