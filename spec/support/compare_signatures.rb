# frozen_string_literal: true

# Prints what Signatures finds, with every file of the gem loaded, as an application with Rails and Falcon has them.
# In a process of its own, since Rails changes much by being there.

require "json"
require "rails"
require "rails/generators"
require "rack"
require "pgbus_native"
require "pgbus_native/streams"

lib = File.expand_path("../../lib", __dir__)
files = Dir[File.join(lib, "pgbus_native/**/*.rb")]
# One defines, where pgbus is missing, what is there otherwise; two are private, and Debian 13's protocol-http is too
# old for them.
files.reject! { |file| file.end_with?("/standalone.rb", "/body_queue.rb", "/streaming_body.rb") }
files.each { |file| require file }
require_relative "signatures"

puts JSON.generate(Signatures.new.differences)
