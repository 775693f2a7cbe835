# frozen_string_literal: true

module Bench
  # Figures as text.
  module Text
    private

    # @param unit [Symbol] `:time` (nanoseconds), `:rate` (per second), `:share`, `:bytes` or anything else for a number
    def text(value, unit)
      case unit
      when :time then time(value)
      when :rate then "#{thousands(value)}/s"
      when :share then "#{(value * 100).round} %"
      when :bytes then "#{significant(value / 1024.0)} KB"
      else thousands(value)
      end
    end

    def time(nanoseconds)
      case nanoseconds
      when ...1_000_000 then "#{significant(nanoseconds / 1e3)} µs"
      when ...1_000_000_000 then "#{significant(nanoseconds / 1e6)} ms"
      else "#{significant(nanoseconds / 1e9)} s"
      end
    end

    def milliseconds(seconds)
      "#{significant(seconds * 1000)} ms"
    end

    def megabytes(kilobytes)
      "#{(kilobytes / 1024.0).round(1)} MB"
    end

    # Three digits that count.
    def significant(number)
      return "0" if number.zero?

      rounded = number.to_f.round(2 - Math.log10(number.abs).floor)
      (rounded == rounded.to_i ? rounded.to_i : rounded).to_s
    end

    def thousands(number)
      number.round.to_s.gsub(/(?<=\d)(?=(\d{3})+$)/, ",")
    end

    # A Markdown table.
    def table(head, lines)
      [head, head.map { "---" }, *lines].map { |cells| "| #{cells.join(" | ")} |" }.join("\n")
    end
  end
end
