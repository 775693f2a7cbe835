# frozen_string_literal: true

module Bench
  # The parts of a benchmark, all of them or those that were asked for.
  class Parts
    # @param sections [Hash{String => Class}] by name
    def initialize(sections)
      @sections = sections
      @only = []
    end

    # @param options [OptionParser] gets `--only`
    def add_option(options)
      names = @sections.keys
      options.on("--only NAME", names, "only this part: #{names.join(", ")}") { |name| @only << name }
    end

    def all?
      @only.empty?
    end

    # Yields each, and says how long it took.
    def measure
      (all? ? @sections : @sections.slice(*@only)).each do |name, section|
        started = now
        yield section
        warn "  #{name}: #{now - started} s"
      end
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :second)
    end
  end
end
