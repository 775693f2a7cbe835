# frozen_string_literal: true

module Bench
  # pgbus's own Presence, without this gem: that of the installed pgbus, else the file that PGBUS_REFERENCE names.
  module PlainRuby
    # @return [String, nil] the file
    def self.file
      installed = Gem::Specification.find_by_name("pgbus", "~> 0.18.0")
      File.join(installed.full_gem_path, "lib/pgbus/streams/presence.rb")
    rescue Gem::MissingSpecError
      path = ENV["PGBUS_REFERENCE"].to_s
      path unless path.empty?
    end
  end
end
