# frozen_string_literal: true

module Pgbus
  module Native
    class Doctor
      # What may be said of an error: what a server or libpq said, never a password. A URL that cannot be parsed is
      # quoted whole in the message that says so.
      module Discretion
        # User and password of a URL end at its last "@", since a password may hold one that is not escaped.
        URL = %r{(\w://).*@}m
        KEYWORD = /(password\s*[=:]>?\s*)("[^"]*"|'(?:[^'\\]|\\.)*'|\S+)/i
        private_constant :URL, :KEYWORD

        # @param error [Exception]
        # @return [String] in one line
        def self.message(error)
          # ActiveRecord may wrap the reason in a sentence without it.
          error = error.cause if defined?(PG::Error) && error.cause.is_a?(PG::Error)
          text = error.message.dup.force_encoding(Encoding::UTF_8).scrub.delete_prefix("ERROR:  ")
          text = text.gsub(URL, '\1***@').gsub(KEYWORD, '\1***').split("\n").map(&:strip).reject(&:empty?).join(" ")
          "#{text} (#{error.class})"
        end
      end
    end
  end
end
