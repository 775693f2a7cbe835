# frozen_string_literal: true

require "rack/builder"
require_relative "configuration"
require_relative "guests"
require_relative "room"
require_relative "site"

module Demo
  module Web
    ADDRESS = "127.0.0.1"
    # Below those that the kernel gives to outgoing connections: a killed server's port stays free for it.
    PORTS = (20_000..31_999)
    NAMES = %w[A B].freeze

    # One server process: Puma, with the site and, mounted beside it, StreamApp and its streamer.
    #
    # It is told who runs by lines of JSON on `commands`, and ends, its seats leaving, when that pipe closes; what
    # its pages ask of the supervisor it writes as lines of JSON on `reports`.
    class Server
      def initialize(name:, port:, commands:, reports:, room:, secret:)
        @name = name
        @port = port
        @commands = commands
        @reports = reports.tap { |pipe| pipe.sync = true }
        @room = Room.new(room)
        @guests = Guests.new(@room, first: NAMES.index(name) * Guests::NAMES.size / NAMES.size)
        # Whatever changes who is here, on either server, ends in a picture for every page.
        Pgbus.configuration = Configuration.new(secret:, server: name) { @room.show }
      end

      def run
        # Ctrl-C reaches every process of the terminal; the supervisor is the one to end this one.
        trap("INT", "IGNORE")
        puma = serve
        report("ready", port: puma.connected_ports.first)
        while (line = @commands.gets)
          @room.servers = JSON.parse(line)
          @room.show
        end
      ensure
        # The connections go first: each was taken over from Puma, which knows nothing of them any more.
        Pgbus::Web::Streamer.reset!
        puma&.stop(true)
      end

      private

      def serve
        puma = Puma::Server.new(app, nil, min_threads: 1, max_threads: 8, force_shutdown_after: 1,
                                          environment: "production", log_writer: Puma::LogWriter.stdio)
        listen(puma)
        puma.run
        puma
      end

      # On its port of before, or else on one that is free.
      def listen(puma)
        puma.add_tcp_listener(ADDRESS, @port || rand(PORTS))
      rescue Errno::EADDRINUSE
        @port ? raise : retry
      end

      def app
        streams = Pgbus::Web::StreamApp.new(authorize: @guests)
        site = Site.new(server: @name, room: @room, guests: @guests) { |what, other| report(what, server: other) }
        Rack::Builder.app do
          map("/pgbus/streams") { run streams }
          run site
        end
      end

      # A line shorter than PIPE_BUF is written whole, so that the servers can share one pipe, killed or not.
      def report(what, server: @name, **details)
        @reports.write("#{JSON.generate({ what:, server:, **details })}\n")
      rescue Errno::EPIPE
        nil # the supervisor is gone, and this process is about to follow
      end
    end
  end
end
