# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/certificate_authority"
require_relative "support/stream_app_helpers"
require_relative "support/streaming_body"
require "tmpdir"

RSpec.describe "Pgbus::Web::StreamApp" do
  include StreamAppHelpers

  let(:token) { signed("room:1") }

  # A call that must end without a stream: the status, and no connection left with the streamer.
  def refusal(target, ...)
    client = get(target, ...)
    expect(streamer.registry).to be_empty
    client.status
  end

  it "has the signatures that callers know" do
    expect(Pgbus::Web::StreamApp.instance_method(:initialize).parameters)
      .to eq(%i[streamer config logger authorize].map { |name| [:key, name] })
    expect(Pgbus::Web::StreamApp.instance_method(:call).parameters).to eq([%i[req env]])
    expect(Pgbus::Web::StreamApp::TEST_MODE_RETRY_MS).to eq(24 * 60 * 60 * 1000)
  end

  describe "1. the verb" do
    %w[POST PUT PATCH DELETE OPTIONS HEAD].each do |verb|
      it "answers #{verb} with 404" do
        expect(refusal("/#{token}", verb:, headers: { "Content-Length" => "0" })).to eq(404)
      end
    end

    it "is looked at first" do
      expect(refusal("/", verb: "POST", headers: { "Content-Length" => "0" })).to eq(404)
      expect(log.string).to be_empty
    end
  end

  describe "2. the signed name in the path" do
    ["/", "/pgbus/streams", "/pgbus/streams/"].each do |path|
      it "is not in #{path}: 404" do
        expect(refusal(path)).to eq(404)
      end
    end

    it "is not in an empty path, as a mounted app sees it: 404" do
      expect(call(app, "").first).to eq(404)
    end

    it "is all of the path of a mounted app" do
      expect(open_stream("/#{token}").last.stream_name).to eq("room:1")
    end

    it "is what follows the prefix otherwise" do
      expect(open_stream("/pgbus/streams/#{token}").last.stream_name).to eq("room:1")
    end

    it "may have slashes and plus signs, as Base64 has" do
      name = (0..).lazy.map { |n| "#{n}?>~\u07FF\u0FBE" * 3 }.find { |text| signed(text).match?(%r{/.*\+|\+.*/}) }

      expect(open_stream("/pgbus/streams/#{signed(name)}").last.stream_name).to eq(name)
    end

    it "is taken with characters of any script" do
      name = "gid://app/Ordnung/é-日本"

      expect(open_stream("/#{signed(name)}").last.stream_name).to eq(name)
    end
  end

  describe "3. its signature" do
    it "is accepted as pgbus makes it" do
      expect(open_stream.last.stream_name).to eq("room:1")
    end

    {
      "changed" => -> { token.sub(/.\z/) { |digit| digit == "0" ? "1" : "0" } },
      "cut off" => -> { token[0..-2] },
      "without a signature" => -> { "room:1" },
      "of another secret" => -> { signed("room:1", secret: "another") },
      "of another digest" => -> { signed("room:1", digest: "SHA1") },
      "expired" => -> { signed("room:1", expires_at: Time.now - 1) },
      "for a purpose" => -> { signed("room:1", purpose: "login") },
      "of a number" => -> { signed(7) },
      "of a list" => -> { signed(["room:1"]) },
      "of an object" => -> { signed({ "name" => "room:1" }) },
      "of true" => -> { signed(true) },
      "of nothing" => -> { signed(nil) },
      "in another format than JSON" => -> { signed("room:1", serializer: Marshal) }
    }.each do |kind, wrong|
      it "is refused when the token is #{kind}: 404" do
        expect(refusal("/#{instance_exec(&wrong)}")).to eq(404)
        expect(log.string).to be_empty
      end
    end

    it "is refused when the token is no text: 404" do
      expect(call(app, "/\xFF\xC3--#{token}").first).to eq(404)
    end

    it "is accepted until it expires" do
      expect(open_stream("/#{signed("room:1", expires_at: Time.now + 60)}").last.stream_name).to eq("room:1")
    end

    [nil, ""].each do |secret|
      it "is refused with the secret #{secret.inspect}: 404, and the log says why" do
        settings.streams_signed_name_secret = secret

        expect(refusal("/#{signed("room:1", secret: secret.to_s)}")).to eq(404)
        expect(log.string).to include("streams_signed_name_secret")
      end
    end

    it "is also made with Turbo's key, which goes first" do
      turbo = Module.new { def self.signed_stream_verifier_key = "Turbo's" }
      stub_const("Turbo", turbo)

      expect(open_stream("/#{signed("room:1", secret: "Turbo's")}").last.stream_name).to eq("room:1")
      expect(refusal("/#{token}")).to eq(404)
    end
  end

  describe "4. authorization" do
    def hook(answer)
      ->(_env, _stream_name) { answer }
    end

    it "asks with the environment and the name of the stream" do
      asked = nil
      authorize = lambda do |env, stream_name|
        asked = [env["HTTP_COOKIE"], stream_name]
        true
      end
      serve(app(authorize:))
      open_stream(headers: { "Cookie" => "user=7" })

      expect(asked).to eq(["user=7", "room:1"])
    end

    it "allows everybody where nothing is set" do
      expect(open_stream.last.context).to be_nil
    end

    [nil, false].each do |answer|
      it "refuses when the hook says #{answer.inspect}: 403" do
        serve(app(authorize: hook(answer)))

        expect(refusal("/#{token}")).to eq(403)
      end

      it "refuses when the configuration's hook says #{answer.inspect}: 403" do
        settings.streams_authorize = hook(answer)

        expect(refusal("/#{token}")).to eq(403)
      end
    end

    it "reads the configuration's hook at each request" do
      serve(app)
      first = get("/#{token}").status
      settings.streams_authorize = hook(false)
      second = get("/#{token}").status
      settings.streams_authorize = hook("somebody")
      third = get("/#{token}").status
      settings.streams_authorize = nil

      expect([first, second, third, get("/#{token}").status]).to eq([200, 403, 200, 200])
    end

    it "asks the given hook and not the configuration's" do
      settings.streams_authorize = ->(*) { raise "asked" }
      serve(app(authorize: hook("given")))

      expect(open_stream.last.context).to eq("given")
    end

    [false, "allow", :allow, 1, Object].each do |setting|
      it "ends in 500 with #{setting.inspect}, which cannot be called, given to new" do
        serve(app(authorize: setting))

        expect(refusal("/#{token}")).to eq(500)
      end

      it "ends in 500 with #{setting.inspect}, which cannot be called, in the configuration" do
        settings.streams_authorize = setting

        expect(refusal("/#{token}")).to eq(500)
      end
    end

    it "lets false, given to new, not be outvoted by the configuration" do
      settings.streams_authorize = hook(true)
      serve(app(authorize: false))

      expect(refusal("/#{token}")).to eq(500)
    end

    it "makes no context of true" do
      serve(app(authorize: hook(true)))

      expect(open_stream.last.context).to be_nil
    end

    it "makes anything else that is truthy the context, that very object" do
      user = Struct.new(:id).new(7)
      serve(app(authorize: hook(user)))

      expect(open_stream.last.context).to be(user)
    end

    it "does not take for true what only says that it equals true" do
      everything = Class.new { def ==(_other) = true }.new
      serve(app(authorize: hook(everything)))

      expect(open_stream.last.context).to be(everything)
    end

    it "takes whatever can be called" do
      serve(app(authorize: Class.new { def self.call(_env, stream_name) = "may see #{stream_name}" }))

      expect(open_stream.last.context).to eq("may see room:1")
    end

    it "lets through what a hook throws to a middleware" do
      authorize = ->(*) { throw :login, "to the login" }

      expect(catch(:login) { call(app(authorize:)) }).to eq("to the login")
    end
  end

  describe "5. the cursor" do
    def cursor(query = "", **headers)
      open_stream("/#{token}#{query}", headers: headers.transform_keys { "Last-Event-ID" }).last.last_msg_id_sent
    end

    it "is 0 where none is given" do
      expect(cursor).to eq(0)
    end

    it "is in the query" do
      expect(cursor("?since=41")).to eq(41)
    end

    it "is in the header, which goes first" do
      expect(cursor("?since=41", id: "42")).to eq(42)
    end

    it "is the query's where the header is blank" do
      expect(cursor("?since=41", id: " ")).to eq(41)
    end

    it "is 0 where both are blank" do
      expect(cursor("?since=%20", id: "")).to eq(0)
    end

    it "may be as large as PostgreSQL's bigint" do
      expect(cursor("?since=9223372036854775807")).to eq((2**63) - 1)
    end

    ["-1", "%2B1", "1.5", "1e3", "0x10", "1_000", "seven", "%201", "1%0A", "9223372036854775808", "9" * 2000, "%FF",
     "%D9%A1"].each do |wrong|
      it "is invalid as #{wrong[0, 20]}: 400" do
        expect(refusal("/#{token}?since=#{wrong}")).to eq(400)
      end
    end

    it "is invalid as a list or an object: 400" do
      expect(refusal("/#{token}?since[]=1")).to eq(400)
      expect(refusal("/#{token}?since[a]=1")).to eq(400)
    end

    it "is invalid in the header whatever the query has: 400" do
      expect(refusal("/#{token}?since=41", headers: { "Last-Event-ID" => "x" })).to eq(400)
    end

    it "is not read from a body" do
      form = "since=41"
      headers = { "Content-Type" => "application/x-www-form-urlencoded", "Content-Length" => form.bytesize.to_s }
      client = get("/#{token}", headers:)
      client.socket.write(form)

      expect(streamer.connection.last_msg_id_sent).to eq(0)
    end
  end

  describe "6. the seat" do
    def seat(query)
      open_stream("/#{token}?#{query}").last.seat
    end

    it "is what the client says" do
      expect(seat("seat=aZ09_-")).to eq("aZ09_-")
    end

    it "has 1 to 64 characters" do
      expect(seat("seat=a")).to eq("a")
      expect(seat("seat=#{"a" * 64}")).to eq("a" * 64)
    end

    {
      "none" => "", "an empty one" => "seat=", "one that is too long" => "seat=#{"a" * 65}",
      "one with a space" => "seat=a%20b", "one with a line end after it" => "seat=a%0A",
      "one with lines" => "seat=a%0Ab", "letters of other scripts" => "seat=%C3%A9", "wide digits" => "seat=%EF%BC%91",
      "no text" => "seat=%FF", "NUL" => "seat=a%00", "a list" => "seat[]=a", "an object" => "seat[a]=b",
      "markup" => "seat=%3Cb%3E"
    }.each do |kind, query|
      it "is dropped silently when it is #{kind}: the stream opens without" do
        expect(seat(query)).to be_nil
        expect(log.string).to be_empty
      end
    end

    it "has a format that callers know" do
      expect(Pgbus::Web::StreamApp::SEAT_FORMAT).to eq(/\A[A-Za-z0-9_-]{1,64}\z/)
    end
  end

  describe "7. test mode" do
    before { settings.streams_test_mode = true }

    it "accepts, tells the client to come back in 24 hours, and ends" do
      client = get("/#{token}")
      body = client.body

      expect([client.status, client.headers["content-type"]]).to eq([200, "text/event-stream"])
      expect(EventStream.new(body)).to have_attributes(retry: 86_400_000, events: [], unknown: [])
      expect(EventStream.new(body).comments.size).to eq(1)
    end

    it "asks no streamer, and takes over no socket" do
      allow(streamer).to receive(:registry).and_raise("asked")
      status, = call(app, "rack.hijack?": true, "rack.hijack": -> { raise "taken over" })

      expect([status, log.string]).to eq([200, ""])
    end
  end

  describe "8. the number of connections" do
    before { settings.streams_max_connections = 2 }

    it "is limited: 503, and when to come again" do
      2.times { streamer.registry << :connection }
      client = get("/#{token}")

      expect([client.status, client.headers["retry-after"].to_i]).to match([503, be_positive])
      expect(streamer.registry.size).to eq(2)
    end

    it "may reach the limit" do
      streamer.registry << :connection
      client = get("/#{token}")

      expect(client.status).to eq(200)
      wait_until("the second is registered") { streamer.registry.size == 2 }
    end
  end

  describe "9. the way to the client" do
    it "is the socket, where the server hands it over" do
      _client, connection = open_stream

      expect(connection).to be_a(Pgbus::Web::Streamer::Connection)
      expect(connection.io).to be_a(TCPSocket)
    end

    it "is a Unix socket, too" do
      Dir.mktmpdir do |folder|
        serve(app, socket: "#{folder}/socket")
        client, connection = open_stream
        connection.write_comment("hello")

        expect(client.body_until("hello\n\n")).to include(": hello\n\n")
        expect(connection.io).to be_a(UNIXSocket)
      end
    end

    it "is Puma's own TLS, too" do
      Dir.mktmpdir do |folder|
        certificate = CertificateAuthority.new("app").self_signed
        paths = { "certificate" => certificate.pem, "key" => certificate.key }.map do |name, pem|
          "#{folder}/#{name}".tap { |path| File.write(path, pem) }
        end
        serve(app, tls: paths)
        client, connection = open_stream("/#{token}?since=3", tls: true)
        connection.write_comment("hello")

        stream = EventStream.new(client.body_until("hello\n\n"))

        expect(client.status).to eq(200)
        expect(stream).to have_attributes(retry: 2000, comments: [/room/, /hello/])
      end
    end

    it "is what the call hands over" do
      near, far = UNIXSocket.pair
      other, = UNIXSocket.pair
      response = call(app, "rack.hijack?": true, "rack.hijack": -> { near }, "rack.hijack_io": other)

      expect(response).to eq([-1, {}, []])
      expect(streamer.connection.io.fileno).to eq(near.fileno)
      expect(far.readpartial(15)).to eq("HTTP/1.1 200 OK")
    end

    it "is rack.hijack_io where the call hands over nothing" do
      near, far = UNIXSocket.pair
      env = { "rack.hijack?": true, "rack.hijack": -> {}, "rack.hijack_io": near }

      expect(call(app, **env)).to eq([-1, {}, []])
      expect(streamer.connection.io.fileno).to eq(near.fileno)
      expect(far.readpartial(15)).to eq("HTTP/1.1 200 OK")
    end

    it "is missing where the server can do neither: 501" do
      status, = call(app)

      expect(status).to eq(501)
      expect(streamer.registry).to be_empty
    end

    it "ends in 500 where the server promises a socket and has none" do
      expect(call(app, "rack.hijack?": true, "rack.hijack": -> {}).first).to eq(500)
      expect(streamer.registry).to be_empty
    end

    context "with a streaming body", :streaming_body do
      before { settings.streams_falcon_streaming_body = true }

      it "is a Protocol::HTTP::Body::Writable" do
        status, headers, body = call(app)

        expect([status, headers["content-type"], headers["cache-control"], headers["x-accel-buffering"]])
          .to eq([200, "text/event-stream", "no-cache, no-transform", "no"])
        expect(body).to be_a(Protocol::HTTP::Body::Writable)
        expect(streamer.connection.io).to be(body)
      end

      it "goes before the socket, and needs none" do
        _status, _headers, body = call(app, "rack.hijack?": true, "rack.hijack": -> { raise "taken over" })

        expect(body).to be_a(Protocol::HTTP::Body::Writable)
        expect(log.string).to be_empty
      end

      it "reaches a client through a real server, frame by frame" do
        client, connection = open_stream("/#{token}?since=5&seat=tab-1")
        opening = EventStream.new(client.next_chunk)
        connection.write_sentinel(Pgbus::Streams::Envelope.connected(id: connection.id))
        connected = EventStream.new(client.next_chunk)
        connection.enqueue([message(6, "<p>\n6</p>")])
        event = EventStream.new(client.next_chunk).events.first
        connection.close

        expect(client.status).to eq(200)
        expect(opening).to have_attributes(retry: 2000, events: [], unknown: [])
        expect(connected.events.map(&:type)).to eq(["pgbus:connected"])
        expect(event).to have_attributes(type: "turbo-stream", data: "<p>\n6</p>", id: "6")
        expect(client.next_chunk).to be_nil
        expect(connection).to have_attributes(stream_name: "room:1", seat: "tab-1", last_msg_id_sent: 6)
      end
    end
  end

  def message(id, payload)
    Struct.new(:msg_id, :payload).new(id, payload)
  end

  describe "10. the opening" do
    it "is the head, the time to wait before coming back, and a comment" do
      client, = open_stream("/#{token}?since=5")
      opening = EventStream.new(client.body_until("\n\n") + client.body_until("\n\n"))

      expect(client.head.first).to eq("HTTP/1.1 200 OK")
      expect(client.headers).to include("content-type" => "text/event-stream", "x-accel-buffering" => "no",
                                        "cache-control" => "no-cache, no-transform")
      expect(client.headers).not_to include("content-length", "transfer-encoding")
      expect(opening).to have_attributes(retry: 2000, events: [], unknown: [], comments: [/room:1.*5/])
    end

    it "has no pgbus:connected frame: nothing more comes until the streamer writes" do
      client, connection = open_stream
      opening = client.body_until("\n\n") + client.body_until("\n\n")

      expect(client).to be_silent(0.2)
      connection.write_sentinel(Pgbus::Streams::Envelope.connected(id: connection.id))
      expect(client.body_until("\n\n")).to include(connection.id)
      expect(opening).not_to include("connected", connection.id)
    end

    it "has none in a streaming body, either", :streaming_body do
      settings.streams_falcon_streaming_body = true
      _status, _headers, body = call(app)
      connection = streamer.connection
      connection.close

      expect(body.join).not_to include("connected", connection.id)
    end

    it "is there before the connection is registered" do
      near, far = UNIXSocket.pair
      seen = nil
      allow(streamer).to receive(:register) { seen = far.read_nonblock(4096) }
      call(app, "rack.hijack?": true, "rack.hijack": -> { near })

      expect(EventStream.new(seen.split("\r\n\r\n", 2).last)).to have_attributes(retry: 2000, comments: [/room:1/])
    end

    it "lets no name of a stream write lines of its own" do
      client, = open_stream("/#{signed("a\r\n\r\ndata: forged\n\nid: 9\n\n")}")
      opening = EventStream.new(client.body_until("\n\n") + client.body_until("\n\n"))

      expect(opening).to have_attributes(retry: 2000, events: [], unknown: [], last_event_id: "")
      expect(opening.comments.size).to eq(1)
      expect(client).to be_silent(0.1)
    end

    it "is not waited for longer than the deadline, and what cannot be opened is not registered" do
      near, far = UNIXSocket.pair
      nil until near.write_nonblock("x" * 4096, exception: false) == :wait_writable
      settings.streams_write_deadline_ms = 50
      response = nil
      took = seconds { response = call(app, "rack.hijack?": true, "rack.hijack": -> { near }) }

      expect(response).to eq([-1, {}, []])
      expect(streamer.registry).to be_empty
      expect(near).to be_closed
      expect(took).to be_between(0.05, 10)
      far.close
    end

    it "closes the socket of a client that has left already" do
      near, far = UNIXSocket.pair
      far.close

      expect(call(app, "rack.hijack?": true, "rack.hijack": -> { near })).to eq([-1, {}, []])
      expect([near.closed?, streamer.registry.size, log.string]).to eq([true, 0, ""])
    end
  end

  describe "11. the connection" do
    it "answers id, stream_name, last_msg_id_sent, context and seat" do
      serve(app(authorize: ->(*) { "user 7" }))
      _client, connection = open_stream("/#{token}?since=5&seat=tab-1")

      expect(connection).to have_attributes(id: /\A[0-9a-f]{16}\z/, stream_name: "room:1", last_msg_id_sent: 5,
                                            context: "user 7", seat: "tab-1", dead?: false)
    end

    it "has an id of its own" do
      expect(Array.new(20) { open_stream.last.id }.uniq.size).to eq(20)
    end

    it "is registered once" do
      open_stream

      expect(streamer.registry).to be_empty
    end

    it "outlives the request, and the server's thread is free" do
      serve(app)
      streams = Array.new(12) { open_stream } # Puma has 8 threads
      streams.each { |_client, connection| connection.write_comment("to #{connection.id}") }

      expect(streams.map { |client, connection| client.body_until("to #{connection.id}\n\n") }.size).to eq(12)
    end

    it "closes for the client when it is closed" do
      client, connection = open_stream
      connection.close

      expect(client.rest).to start_with("retry: 2000")
    end

    it "is closed if the streamer does not want it" do
      allow(streamer).to receive(:register, &:mark_dead!) # as one that is shutting down does

      expect(get("/#{token}").rest).to start_with("retry: 2000")
    end

    it "is ended if the streamer does not want it", :streaming_body do
      settings.streams_falcon_streaming_body = true
      allow(streamer).to receive(:register, &:mark_dead!)

      expect(get("/#{token}").body).to start_with("retry: 2000")
    end
  end

  describe "the order of the steps" do
    refuse = ->(*) { false }
    invalid = "invalid"

    {
      "a wrong verb before a wrong name" => [404, /GET/, { verb: "POST", token: invalid }],
      "a wrong name before authorization" => [404, /no such/, { token: invalid, authorize: refuse }],
      "a wrong name before a hook that cannot be called" => [404, /no such/, { token: invalid, authorize: :no }],
      "authorization before the cursor" => [403, /forbidden/, { authorize: refuse, query: "since=x" }],
      "a hook that cannot be called before the cursor" => [500, /internal/, { authorize: :no, query: "since=x" }],
      "authorization before test mode" => [403, /forbidden/, { authorize: refuse, test_mode: true }],
      "authorization before the limit" => [403, /forbidden/, { authorize: refuse, max: 0 }],
      "authorization before a server that can do nothing" => [403, /forbidden/, { authorize: refuse, hijack: false }],
      "the cursor before a seat that is dropped" => [400, /cursor/, { query: "seat=%20&since=x" }],
      "the cursor before test mode" => [400, /cursor/, { query: "since=x", test_mode: true }],
      "the cursor before the limit" => [400, /cursor/, { query: "since=x", max: 0 }],
      "test mode before the limit" => [200, /test mode/, { test_mode: true, max: 0 }],
      "test mode before a server that can do nothing" => [200, /test mode/, { test_mode: true, hijack: false }],
      "test mode before a streaming body" => [200, /test mode/, { test_mode: true, streaming_body: true }],
      "the limit before a server that can do nothing" => [503, /too many/, { max: 0, hijack: false }],
      "the limit before a streaming body" => [503, /too many/, { max: 0, streaming_body: true }]
    }.each do |order, (expected, text, wrong)|
      it "is #{order}: #{expected}" do
        settings.streams_test_mode = wrong[:test_mode]
        settings.streams_max_connections = wrong.fetch(:max, 100)
        settings.streams_falcon_streaming_body = wrong[:streaming_body]
        target = "/#{wrong.fetch(:token, token)}?#{wrong[:query]}"
        status, _headers, body = call(app(authorize: wrong[:authorize]), target,
                                      REQUEST_METHOD: wrong.fetch(:verb, "GET"),
                                      "rack.hijack?": wrong.fetch(:hijack, true), "rack.hijack": -> { raise "taken" })

        expect([status, body.join]).to match([expected, text])
        expect(streamer.registry).to be_empty
      end
    end

    it "asks nobody for authorization without a valid name" do
      asked = false
      call(app(authorize: ->(*) { asked = true }), "/invalid")

      expect(asked).to be(false)
    end
  end

  describe "an error on the way" do
    def failing_with(error)
      ->(*) { raise error }
    end

    it "is logged and ends in 500 with no detail of it" do
      serve(app(authorize: failing_with(KeyError.new("the password is 12345"))))
      client = get("/#{token}")
      body = client.body

      expect([client.status, body]).to match([500, /internal error/])
      expect(client.headers["content-type"]).to eq("text/plain")
      expect(body).not_to match(/KeyError|12345|rb:/)
      expect(log.string).to include("KeyError", "the password is 12345")
    end

    it "in the streamer ends in 500" do
      allow(streamer).to receive(:registry).and_raise("no database")
      status, = call(app)

      expect([status, log.string]).to match([500, /no database/])
    end

    it "in registering closes the socket, which nobody knows" do
      allow(streamer).to receive(:register).and_raise("full of connections")
      client = get("/#{token}")

      expect(client.rest).to start_with("retry: 2000")
      wait_until("it is logged") { log.string.include?("full of connections") }
    end

    it "in registering ends a streaming body", :streaming_body do
      settings.streams_falcon_streaming_body = true
      given = nil
      allow(streamer).to receive(:register) do |connection|
        given = connection
        raise "full of connections"
      end
      client = get("/#{token}")

      expect(client.status).to eq(500)
      expect(given).to be_dead
      expect(log.string).to include("full of connections")
    end

    it "is logged where protocol-http is missing, or too old" do
      settings.streams_falcon_streaming_body = true
      allow(Pgbus::Web::StreamApp).to receive(:new).and_wrap_original do |original, **options|
        original.call(**options).tap do |made|
          allow(made).to receive(:open_body).and_raise(LoadError, "cannot load such file -- protocol/http/body")
        end
      end

      expect(call(app).first).to eq(500)
      expect(log.string).to include("LoadError", "protocol/http/body")
    end

    it "that is no StandardError closes the socket on its way" do
      near, = UNIXSocket.pair
      allow(streamer).to receive(:register).and_raise(NoMemoryError)

      expect { call(app, "rack.hijack?": true, "rack.hijack": -> { near }) }.to raise_error(NoMemoryError)
      expect(near).to be_closed
    end

    it "in a query that nobody can read ends in 500, but not before authorization" do
      expect(call(app, "/#{token}?since=1&since[a]=1").first).to eq(500)
      expect(call(app(authorize: ->(*) {}), "/#{token}?since=1&since[a]=1").first).to eq(403)
    end

    it "ends in 500 without any logger" do
      allow(Pgbus).to receive(:logger).and_return(nil)

      expect(call(app(logger: nil, authorize: failing_with("x"))).first).to eq(500)
    end

    it "goes through pgbus's reporter where there is one" do
      reported = []
      stub_const("Pgbus::ErrorReporter", Module.new do
        define_singleton_method(:report) { |error, context, config:| reported << [error.message, context, config] }
      end)
      call(app(authorize: failing_with("x")))

      expect(reported).to eq([["x", { action: "stream_connect" }, settings]])
    end
  end

  describe "its defaults" do
    let(:other_log) { StringIO.new }

    before { without_partial_double_verification { allow(Pgbus::Web::Streamer).to receive(:current) { streamer } } }

    it "are the current streamer and pgbus's configuration and logger" do
      serve(Pgbus::Web::StreamApp.new)
      open_stream
      allow(Pgbus).to receive(:logger).and_return(Logger.new(other_log))
      settings.streams_authorize = ->(*) { raise "refused with an error" }

      expect(get("/#{token}").status).to eq(500)
      expect(other_log.string).to include("refused with an error")
    end

    it "are asked for at each call" do
      default = Pgbus::Web::StreamApp.new
      first = call(default).first
      allow(Pgbus).to receive(:configuration).and_return(settings.dup.tap { |other| other.streams_test_mode = true })
      second = call(default).first
      allow(Pgbus).to receive(:configuration).and_return(settings.dup.tap { |other| other.streams_max_connections = 0 })

      expect([first, second, call(default).first]).to eq([501, 200, 503])
    end
  end

  it "serves many clients at once, each with a connection of its own" do
    serve(app)
    clients = Array.new(40) { |number| get("/#{signed("room:#{number}")}?since=#{number}&seat=seat-#{number}") }
    connections = Array.new(40) { streamer.connection }
    connections.each { |connection| connection.write_comment("for #{connection.seat}") }

    clients.each_with_index do |client, number|
      expect(client.body_until("for seat-#{number}\n\n")).to include("room:#{number} ")
    end
    expect(connections.map { |connection| [connection.stream_name, connection.last_msg_id_sent] })
      .to match_array(Array.new(40) { |number| ["room:#{number}", number] })
    connections.each(&:close)
  end
end
