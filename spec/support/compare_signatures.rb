# frozen_string_literal: true

# Prints what Signatures finds, with every file of the gem loaded, as an application with Rails and Falcon has them.
# In a process of its own, since Rails changes much by being there.

require "json"
require "rails"
require "rails/generators"
require "rack"
require "pgbus_native"
require "pgbus_native/streams"

begin
  require "protocol/http/body/writable"
rescue LoadError
  # Debian 13's protocol-http is too old for a BodyQueue; forky's is not.
  without = "Pgbus::Web::Streamer::BodyQueue"
end

lib = File.expand_path("../../lib", __dir__)
files = Dir[File.join(lib, "pgbus_native/**/*.rb")]
# Where pgbus is missing it defines what is there otherwise.
files.reject! { |file| file.end_with?("/standalone.rb", *("/body_queue.rb" if without)) }
files.each { |file| require file }
require_relative "signatures"

differences = Signatures.new.differences
differences.reject! { |difference| difference.start_with?(without) } if without
puts JSON.generate(differences)
