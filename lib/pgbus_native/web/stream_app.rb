# frozen_string_literal: true

require "json"
require "rack/request"
require "securerandom"

module Pgbus
  module Web
    # The Rack app behind the SSE endpoint. It decides whether a request becomes a connection, and hands that to the
    # streamer. Safe on any thread; it keeps nothing between requests.
    #
    #   mount Pgbus::Web::StreamApp.new(authorize: ->(env, stream_name) { ... }) => "/pgbus/streams"
    class StreamApp
      # A client's own id of its tab. The whole of it: `\z`, not `$`, and no line end before it.
      SEAT_FORMAT = /\A[A-Za-z0-9_-]{1,64}\z/

      # How long a client waits in test mode until it connects again: 24 hours, longer than any test.
      TEST_MODE_RETRY_MS = 86_400_000

      ALLOW = ->(_env, _stream_name) { true }
      PREFIX = "/pgbus/streams"
      RETRY_MS = 2000
      EVENT_STREAM = {
        "content-type" => "text/event-stream",
        "cache-control" => "no-cache, no-transform",
        "x-accel-buffering" => "no"
      }.freeze
      # Loaded with the first streaming body, since it needs the gem protocol-http, 0.34 or newer, which Falcon brings.
      autoload :BodyQueue, File.join(__dir__, "body_queue")
      autoload :StreamingBody, File.join(__dir__, "streaming_body")
      private_constant :ALLOW, :PREFIX, :RETRY_MS, :EVENT_STREAM, :BodyQueue, :StreamingBody

      # @param streamer [#registry, #register, nil] Pgbus::Web::Streamer.current if nil, asked for at each request
      # @param config [Object, nil] Pgbus.configuration if nil, likewise
      # @param logger [Logger, nil] Pgbus.logger if nil, likewise
      # @param authorize [#call, nil] called with the environment and the stream name; `config.streams_authorize` if
      #   nil, and if that is nil, too, everybody may open every stream that he has a signed name of
      def initialize(streamer: nil, config: nil, logger: nil, authorize: nil)
        @streamer = streamer
        @config = config
        @logger = logger
        @authorize = authorize
      end

      # @param env [Hash] Rack's environment
      # @return [Array] Rack's response: the status is -1 when the socket was taken over
      def call(env)
        catch(:pgbus_refused) do
          request = ::Rack::Request.new(env)
          only_get(request)
          stream_name = verified(signed_name(env))
          context = authorized(env, stream_name)
          since_id = cursor(request)
          seat = seat(request)
          next test_mode if config.streams_test_mode

          room_for_one_more
          connect(env, stream_name:, since_id:, context:, seat:)
        end
      rescue StandardError, LoadError => e
        report(e)
        refusal(500, "internal error")
      end

      private

      def only_get(request)
        refuse(404, "streams are read with GET") unless request.get?
      end

      # Mounted, the app sees the path below its mount; otherwise all of it.
      def signed_name(env)
        token = env["PATH_INFO"].to_s.delete_prefix(PREFIX).delete_prefix("/")
        token.empty? ? refuse(404, "which stream?") : token
      end

      def verified(token)
        name = Streams::SignedName.verify!(token)
        # pgbus's own takes whatever was signed with the secret.
        name.is_a?(String) ? name : refuse(404, "no such stream")
      rescue Streams::SignedName::MissingSecret => e
        # To the client it is one of many wrong names, so only the log can tell.
        logger&.warn { "[pgbus_native] StreamApp: #{e.message}" }
        refuse(404, "no such stream")
      rescue Streams::SignedName::InvalidSignedName, JSON::ParserError, EncodingError
        refuse(404, "no such stream")
      end

      # @return [Object, nil] the connection's context
      def authorized(env, stream_name)
        answer = authorize_hook.call(env, stream_name)
        refuse(403, "forbidden") unless answer
        answer unless true.equal?(answer)
      end

      # Only nil is "not set": `false || default` would let everybody in where somebody meant to let nobody in. The
      # configuration is asked at each request, since an initializer may set it after the app was mounted.
      def authorize_hook
        hook = @authorize.nil? ? config.streams_authorize : @authorize
        hook.nil? ? ALLOW : hook
      end

      def cursor(request)
        query_since = request.GET["since"]
        begin
          Streams::Cursor.parse(query_since:, last_event_id: request.get_header("HTTP_LAST_EVENT_ID"))
        rescue ArgumentError # InvalidCursor; and what pgbus's own meets in bytes that are no text
          refuse(400, "the cursor is no number of a message")
        end
      end

      def seat(request)
        seat = request.GET["seat"]
        seat if seat.is_a?(String) && seat.ascii_only? && SEAT_FORMAT.match?(seat)
      end

      # Accepted, and at an end at once: a test's browser holds no connection, and does not come back.
      def test_mode
        [200, EVENT_STREAM.dup, [Streams::Envelope.retry_directive(TEST_MODE_RETRY_MS),
                                 Streams::Envelope.comment("test mode: there is nothing to come")]]
      end

      def room_for_one_more
        return if streamer.registry.size < config.streams_max_connections

        refuse(503, "too many connections", "retry-after" => "2")
      end

      def connect(env, **attributes)
        attributes.update(id: SecureRandom.hex(8), write_deadline_ms: config.streams_write_deadline_ms)
        if config.streams_falcon_streaming_body
          open_body(attributes)
        elsif env["rack.hijack?"]
          open_socket(env, attributes)
        else
          refuse(501, "this server cannot hand over its sockets (rack.hijack), as Puma and Falcon do")
        end
      end

      def open_body(attributes)
        body = StreamingBody.new(attributes[:write_deadline_ms])
        body.write(opening(attributes))
        hand_over(Streamer::FalconConnection.new(body:, **attributes))
        [200, EVENT_STREAM.dup, body]
      end

      def open_socket(env, attributes)
        io = env["rack.hijack"].call || env["rack.hijack_io"] || raise(IOError, "the server handed over no socket")
        connection = Streamer::Connection.new(io:, writer: Streamer::IoWriter, **attributes)
        hand_over(connection) do
          Streamer::IoWriter.write(connection, Streams::Envelope.http_response_headers + opening(attributes),
                                   deadline_ms: attributes[:write_deadline_ms])
        end
        [-1, {}, []]
      end

      # The `pgbus:connected` frame is not here: the streamer writes it when the connection can be found.
      def opening(attributes)
        Streams::Envelope.retry_directive(RETRY_MS) +
          Streams::Envelope.comment("#{attributes[:stream_name]} from #{attributes[:since_id]} on")
      end

      # Nobody else knows the connection until the streamer has it, so whatever goes wrong until then, a client that has
      # left included, it is closed here.
      def hand_over(connection)
        ready = block_given? ? yield : :ok
        return unless ready == :ok

        streamer.register(connection)
        handed_over = !connection.dead?
      ensure
        connection.close unless handed_over
      end

      def streamer
        @streamer || Streamer.current
      end

      def config
        @config || Pgbus.configuration
      end

      def logger
        @logger || Pgbus.logger
      end

      # Through pgbus's reporter, where it has one: an app's error tracking hangs on that.
      def report(error)
        return ErrorReporter.report(error, { action: "stream_connect" }, config:) if defined?(Pgbus::ErrorReporter)

        logger&.error { "[pgbus_native] StreamApp: #{error.class}: #{error.message}" }
      end

      def refuse(...)
        throw :pgbus_refused, refusal(...)
      end

      def refusal(status, reason, headers = {})
        [status, { "content-type" => "text/plain" }.merge(headers), ["pgbus: #{reason}\n"]]
      end
    end
  end
end
