# frozen_string_literal: true

# Examples tagged streaming_body need a protocol-http that has bodies to write to: 0.34 or newer. Debian 13 has an older
# one, Debian forky and Bundler have it.
RSpec.configure do |config|
  config.before(:example, :streaming_body) do
    require "protocol/http/body/writable"
  rescue LoadError => e
    skip e.message
  end
end
