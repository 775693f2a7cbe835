# frozen_string_literal: true

require "json"
require_relative "puma_cluster"
require_relative "streamer_settings"

# Puma in a process of its own, or several, with StreamApp and a streamer.
class StreamerProcess < PumaCluster
  # With Puma 6.6 on Ruby 3.3, a process whose server closes a pipe while a signal's handler still writes to it may hang
  # there, with any app.
  PATIENCE = <<~RUBY
    require "puma/server"
    Puma::Server.prepend(Module.new { private def handle_check = super.tap { sleep 0.05 } })
  RUBY
  private_constant :PATIENCE

  # @param configuration [String] lines of Puma's; without any it is a single process
  # @param settings [Hash] of StreamerSettings
  def initialize(configuration = "workers 0", url: SpecDatabase.url, **settings)
    app = File.join(SPEC, "fixtures/puma/streams.ru")
    super(PATIENCE + configuration, url:, app:, STREAMER: JSON.generate(settings))
  end

  # Runs the block with one that answers; it is gone afterwards.
  def self.run(configuration = "workers 0", **settings)
    process = new(configuration, **settings)
    process.wait
    yield process
  ensure
    process&.remove
  end

  # Has it broadcast.
  def broadcast(stream, html, **options)
    body = JSON.generate([stream, html, options])
    socket = UNIXSocket.new(self.socket)
    socket.write("POST /broadcast HTTP/1.0\r\nHost: app\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}")
    raise "no answer within 20 s\n#{log}" unless socket.wait_readable(20)

    answer = socket.read
    raise "#{answer}\n#{log}" unless answer.start_with?("HTTP/1.0 200")
  ensure
    socket&.close
  end
end

# Groups with `:other_process` have such a process, `other`, beside this one.
RSpec.shared_context "with another process" do
  before(:context) { @other_process = StreamerProcess.new.tap(&:wait) }

  after(:context) { other&.remove }

  def other
    @other_process # rubocop:disable RSpec/InstanceVariable
  end
end

RSpec.configure do |config|
  config.include_context "with another process", :other_process
end
