# frozen_string_literal: true

# Required by an rspec of its own: it runs the examples with the arguments, the results and the blocks of all calls on
# the gem checked against the signatures in SIGNATURES.

require "spec_helper"
require_relative "signatures"

# A call that is refused may have had any arguments; that is what the example is about.
module UncheckedRefusals
  def call(receiver, trace)
    super unless trace.method_call.exception?
  end
end

RBS.logger_level = "warn"
RBS::Test::Tester::MethodCallTester.prepend(UncheckedRefusals)

signatures = Signatures.new(ENV.fetch("SIGNATURES"))
tester = RBS::Test::Tester.new(env: signatures.env)
signatures.modules.each { |mod| tester.install!(mod, sample_size: nil, unchecked_classes: []) }

RSpec.configure do |config|
  # A checked method takes whatever comes, and hands it on.
  config.define_derived_metadata(description: "the signatures of Presence") { |metadata| metadata[:spoilt] = true }
  config.filter_run_excluding spoilt: true, implementation: Implementation::PLAIN_RUBY
end
