# frozen_string_literal: true

# What StreamApp and the streamer ask of pgbus's configuration. Streams named "room:..." are presence streams; a client
# says who it is in a header, and has no seat if it says nothing.
class StreamerSettings
  DEFAULTS = {
    connects_to: nil, streams_signed_name_secret: "a secret of examples", streams_test_mode: false,
    streams_max_connections: 100_000, streams_falcon_streaming_body: false, streams_write_deadline_ms: 5000,
    streams_idle_timeout: 3600,
    # Longer than any example: where nobody says otherwise, what is noticed is not noticed by a heartbeat.
    streams_heartbeat_interval: 60,
    streams_authorize: ->(env, _stream_name) { env["HTTP_X_USER"] || true },
    # Seconds, for a stream name.
    ttl: ->(_stream_name) { 3600 },
    # The member for a context.
    member: ->(context) { context && { id: context, metadata: { "name" => "user #{context}" } } },
    # Called with each change.
    on_change: nil
  }.freeze
  attr_accessor(*DEFAULTS.keys)

  # @return [Array] each change with its stream and the thread that reported it, in order
  attr_reader :changes

  def initialize(**settings)
    DEFAULTS.merge(settings).each { |name, value| public_send(:"#{name}=", value) }
    @changes = []
  end

  def stream_presence?(stream_name)
    stream_name.start_with?("room:")
  end

  def presence_member_for(context)
    member.call(context)
  end

  def presence_ttl_for(stream_name)
    ttl.call(stream_name)
  end

  def notify_presence_change(stream_name, change)
    changes << [stream_name, change, Thread.current]
    on_change&.call(stream_name, change)
  end
end
