# frozen_string_literal: true

# pgbus first, whatever the order in the Gemfile: its own autoloading must see its own files.
begin
  require "pgbus"
rescue LoadError => e
  raise unless e.path == "pgbus"
end

require_relative "pgbus_native/version"
require_relative "pgbus_native/native"

Pgbus::Native.install
require_relative "pgbus_native/railtie" if defined?(Rails::Railtie)
