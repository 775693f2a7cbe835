# frozen_string_literal: true

# The connection path: `require "pgbus_native/streams"` brings Pgbus::Web::StreamApp, the Rack app behind the SSE
# endpoint, the streamer that keeps its connections, and what both lean on. pgbus's own SignedName, Cursor, Envelope,
# filters and connections are used where pgbus has them, and its streamer unless `Pgbus::Native.configuration.streamer`
# is set.

require "pgbus_native"

require_relative "streams/signed_name" unless defined?(Pgbus::Streams::SignedName)
require_relative "streams/cursor" unless defined?(Pgbus::Streams::Cursor)
require_relative "streams/envelope" unless defined?(Pgbus::Streams::Envelope)
require_relative "streams/filters" unless defined?(Pgbus::Streams::Filters)
require_relative "web/connection" unless defined?(Pgbus::Web::Streamer::Connection)

if !defined?(Pgbus::Web::StreamApp)
  require_relative "web/stream_app"
elsif Pgbus::Native.enabled?
  # It is a new class, not pgbus's with other methods: an app that is mounted already keeps all of its own, its
  # authorize hook above all. pgbus's is loaded first, so that its autoloader is done with the name.
  Pgbus::Web::StreamApp.name
  Pgbus::Web.send(:remove_const, :StreamApp)
  require_relative "web/stream_app"
end

if Pgbus::Native.enabled?
  if Pgbus::Web::Streamer.respond_to?(:current)
    require_relative "streamer"
    require_relative "streamer/takeover"
    Pgbus::Web::Streamer.singleton_class.prepend(Pgbus::Native::Streamer::Takeover)
  else
    require_relative "web/streamer"
  end
  at_exit { Pgbus::Native::Streamer.reset! }
end
