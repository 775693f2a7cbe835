# frozen_string_literal: true

require "rails/railtie"
require_relative "boot_line"

module Pgbus
  module Native
    # What a Rails application gets by having the gem in its Gemfile: a line in its log at boot and the Rake tasks.
    # Nothing in here connects to a database.
    #
    # @api private
    class Railtie < ::Rails::Railtie
      rake_tasks { load File.expand_path("tasks.rake", __dir__) }

      # After the application's own initializers, which may configure both gems.
      config.after_initialize { |application| BootLine.new(application).log(::Rails.logger) }
    end
  end
end
