# frozen_string_literal: true

require_relative "support/scripts"
require_relative "support/streaming_body"

RSpec.describe "require \"pgbus_native/streams\"" do
  include Scripts

  # Whose the parts are, as lines; a gem's own StreamApp is told by its method, like all.
  parts = <<~'RUBY'
    streams, web = Pgbus::Streams, Pgbus::Web
    puts whose(streams::SignedName.method(:verify!)), whose(streams::Cursor.method(:parse)),
         whose(streams::Envelope.method(:comment)), whose(web::Streamer::IoWriter.method(:write)),
         whose(web::Streamer::Connection.instance_method(:id)),
         whose(web::Streamer::FalconConnection.instance_method(:dead?)),
         whose(web::StreamApp.instance_method(:call))
  RUBY
  pgbus_parts = ["Ruby"] * 6

  {
    "after pgbus" => 'require "pgbus"; require "pgbus_native/streams"',
    "before pgbus" => 'require "pgbus_native/streams"; require "pgbus"',
    "after pgbus_native" => 'require "pgbus_native"; require "pgbus_native/streams"',
    "after pgbus has loaded its StreamApp" => 'require "pgbus"; Pgbus::Web::StreamApp; require "pgbus_native/streams"',
    "after pgbus has loaded everything" => 'require "pgbus"; Pgbus.loader.eager_load; require "pgbus_native/streams"'
  }.each do |order, requires|
    it "brings StreamApp, and uses pgbus's parts, when it is required #{order}" do
      expect(ruby(requires + "\n#{parts}").lines).to eq([*pgbus_parts, "native"])
    end

    it "lets eager_load pass when it is required #{order}" do
      expect(ruby("#{requires}\nPgbus.loader.eager_load(force: true)\n#{parts}").lines).to eq([*pgbus_parts, "native"])
    end

    it "warns of nothing under ruby -w when it is required #{order}" do
      result = ruby("#{requires}\nPgbus.loader.eager_load\n#{parts}", "-w")

      expect(result.lines.last).to eq("native")
      expect(result.err.lines.grep(/pgbus/)).to be_empty
    end
  end

  it "leaves an app that is mounted already as it is, with its authorize hook" do
    script = <<~'RUBY'
      require "pgbus"
      mounted = Pgbus::Web::StreamApp.new(authorize: ->(_env, name) { "refused by the hook of #{name}" })
      require "pgbus_native/streams"
      puts mounted.call({}), Pgbus::Web::StreamApp.new.is_a?(mounted.class)
    RUBY

    expect(ruby(script).lines).to eq(["refused by the hook of pgbus's app", "false"])
  end

  # What a call of the app gives with the parts of the fixture gem pgbus.
  calling = <<~'RUBY'
    require "logger"
    require "socket"
    require "pgbus_native/streams"

    Settings = Struct.new(:streams_authorize, :streams_test_mode, :streams_max_connections,
                          :streams_falcon_streaming_body, :streams_write_deadline_ms)
    Pgbus::Web::Streamer.current = Class.new do
      def registry = []
      def register(connection) = puts([connection.class, connection.id.size].join(" "))
    end.new
    near, far = UNIXSocket.pair
    env = { "REQUEST_METHOD" => "GET", "PATH_INFO" => "/number", "QUERY_STRING" => "since=5",
            "rack.hijack?" => true, "rack.hijack" => -> { near } }
    call = lambda do |path, streaming_body = false|
      settings = Settings.new(nil, false, 10, streaming_body, 500)
      Pgbus::Web::StreamApp.new(config: settings, logger: Logger.new($stderr)).call(env.merge("PATH_INFO" => path))
    end
  RUBY

  it "hands pgbus's connections to pgbus's streamer" do
    result = ruby("#{calling}\np call.(\"/a\")\nnear.close\nputs far.read")

    expect(result.lines).to eq(["Pgbus::Web::Streamer::Connection 16", "[-1, {}, []]",
                                "pgbus's head", "pgbus's retry 2000", "pgbus's comment the stream a from 5 on",
                                "written within 500 ms"])
  end

  it "hands pgbus's connections on a streaming body to pgbus's streamer", :streaming_body do
    result = ruby("#{calling}\nstatus, _headers, body = call.(\"/a\", true)\nputs status, body.read")

    expect(result.lines).to eq(["Pgbus::Web::Streamer::FalconConnection 16", "200", "pgbus's retry 2000",
                                "pgbus's comment the stream a from 5 on"])
  end

  it "takes no name that is no String, though pgbus's SignedName does" do
    expect(ruby("#{calling}\nputs call.(\"/number\").first").lines).to eq(["404"])
  end

  {
    "with PGBUS_NATIVE=0" => { pgbus_native: "0" },
    "with another version of pgbus" => { pgbus_fixture_version: "0.19.0" }
  }.each do |situation, environment|
    it "leaves pgbus's StreamApp in place #{situation}" do
      expect(ruby("require \"pgbus_native/streams\"\n#{parts}", **environment).lines).to eq([*pgbus_parts, "Ruby"])
    end
  end

  it "loads protocol-http for a streaming body only", :streaming_body do
    script = <<~RUBY
      #{calling}
      call.("/a")
      puts defined?(Protocol).inspect
      call.("/a", true)
      puts defined?(Protocol::HTTP)
    RUBY

    expect(ruby(script).lines.grep_v(/Connection/)).to eq(%w[nil constant])
  end

  context "without pgbus" do
    before do
      Gem::Specification.find_by_name("pgbus")
      skip "pgbus is installed here, and a process without it cannot be had"
    rescue Gem::MissingSpecError
      nil
    end

    [nil, "0"].each do |setting|
      it "brings all of it, with PGBUS_NATIVE #{setting.inspect}" do
        result = ruby("require \"pgbus_native/streams\"\n#{parts}", "-w", pgbus: false, pgbus_native: setting)

        expect(result.lines).to eq(["native"] * 7)
        expect(result.err.lines.grep(/pgbus/)).to be_empty
      end
    end
  end
end
