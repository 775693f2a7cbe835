# frozen_string_literal: true

module Bench
  # A process of the bench that answers requests, a line each: every public method is one, and returns numbers.
  module Answers
    def serve(input, output)
      output.sync = true
      input.each_line { |line| output.puts answer(line.split) }
    end

    private

    def answer(words)
      Array(public_send(*words)).join(" ")
    rescue StandardError => e
      "error #{e.class}: #{e.message.tr("\n", " ")}"
    end
  end
end
