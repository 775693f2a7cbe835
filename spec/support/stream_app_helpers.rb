# frozen_string_literal: true

require "active_support"
require "active_support/message_verifier"
require "logger"
require "stringio"
require_relative "event_stream"
require_relative "puma_server"
require_relative "raw_client"

# A StreamApp behind a real Puma, its clients, and what they leave behind: all of it is closed after an example.
module StreamAppHelpers
  SECRET = "a secret of examples"

  Settings = Struct.new(
    :streams_signed_name_secret, :streams_authorize, :streams_test_mode, :streams_max_connections,
    :streams_falcon_streaming_body, :streams_write_deadline_ms
  )

  # In the place of the streamer: it keeps what it is given, and writes nothing.
  class RecordingStreamer
    attr_reader :registry

    def initialize
      @registry = Thread::Queue.new # its size is what StreamApp asks for
    end

    def register(connection)
      registry << connection
    end

    # The next connection that was registered.
    def connection
      registry.pop(timeout: 10) || raise("no connection was registered")
    end
  end

  def self.included(group)
    group.let(:streamer) { RecordingStreamer.new }
    group.let(:settings) { Settings.new(SECRET, nil, false, 100, false, 5000) }
    group.let(:log) { StringIO.new }
    group.let(:logger) { Logger.new(log) }
    group.before { allow(Pgbus).to receive(:configuration).and_return(settings) }
    group.after { closing.reverse_each(&:call) }
  end

  # What is done after the example, the last first.
  def closing
    @closing ||= []
  end

  def app(**options)
    Pgbus::Web::StreamApp.new(**{ streamer:, config: settings, logger: }.merge(options))
  end

  # Serves the app from now on.
  def serve(app, **)
    server = PumaServer.new(app, **)
    closing << -> { server.stop }
    @server = server
  end

  # Sends a request to the app that is served, or else to one with the settings of the example.
  def get(target, tls: false, **)
    serve(app) unless @server
    client = RawClient.new(@server.address, tls:)
    closing << -> { client.close }
    client.request(target, **)
  end

  # Opens a stream and waits until it is registered; the client and the connection.
  def open_stream(target = "/#{signed("room:1")}", **)
    client = get(target, **)
    connection = streamer.connection
    closing << -> { connection.close }
    [client, connection]
  end

  # Calls the app without a server.
  def call(app, target = "/#{signed("room:1")}", **env)
    path, query = target.b.split("?", 2)
    app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => path, "QUERY_STRING" => query.to_s, "rack.hijack?" => false,
               **env.transform_keys(&:to_s) })
  end

  # A token as pgbus makes it, without any code of this gem.
  def signed(name, secret: SECRET, digest: "SHA256", serializer: JSON, **)
    ActiveSupport::MessageVerifier.new(secret, digest:, serializer:).generate(name, **)
  end
end
