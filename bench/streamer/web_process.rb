# frozen_string_literal: true

# bench/streamer/web_process.rb SIDE STREAMS INTERVAL
#
# A streamer in a process of its own, "plain" or "native", that accepts connections on a port of this machine: the
# first line that it prints. Then it answers requests, a line each, with numbers; times are in nanoseconds.
#
# A web server is left out: what it takes to read and route a request is the same for both sides. So a client says
# nothing, and connections go to the streams in turns.

require "active_record"
require "logger"
require "socket"

$LOAD_PATH.unshift(File.join(__dir__, "../stand_in"), File.join(__dir__, "../../lib"))
require "pgbus"
require_relative "../answers"
require_relative "settings"

module Bench
  # The streamers side by side.
  module Streamer
    # Every public method is a request.
    class WebProcess
      include Answers

      # What the kernel takes for a client that does not read; more hides it longer. It doubles it.
      SEND_BUFFER = 16_384
      BACKLOG = 4096
      # Without presence.
      NEWS = "news"

      # @param streamer [#register, #broadcast]
      # @param streams [Integer] presence streams; 0 for one stream without presence
      # @param deadline_ms [Integer] for each write
      def initialize(streamer, streams, deadline_ms)
        @streamer = streamer
        @streams = streams.zero? ? [NEWS] : Array.new(streams) { |index| "#{Settings::ROOM}#{index}" }
        @deadline_ms = deadline_ms
        @opening = Pgbus::Streams::Envelope.http_response_headers + Pgbus::Streams::Envelope.retry_directive(2000)
      end

      # @return [Integer] the port
      def listen
        listener = TCPServer.new("127.0.0.1", 0)
        # What is accepted has these, too: Puma sets the first.
        listener.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, true)
        listener.setsockopt(Socket::SOL_SOCKET, Socket::SO_SNDBUF, SEND_BUFFER)
        listener.listen(BACKLOG)
        Thread.new { accept_all(listener) }
        listener.addr[1]
      end

      # --- The process ---

      # Kilobytes of memory in use.
      def rss
        GC.start
        File.read("/proc/self/status")[/^VmRSS:\s+(\d+)/, 1]
      end

      # What the process uses of the processors within so many seconds.
      def cpu(seconds)
        before = used
        sleep seconds.to_f
        used - before
      end

      # How late a thread is, in the worst case, that wakes up every millisecond for so many seconds.
      def lateness(seconds)
        deadline = now + (seconds.to_f * 1e9)
        worst = 0
        while (started = now) < deadline
          sleep 0.001
          worst = [worst, now - started - 1_000_000].max
        end
        worst
      end

      # --- Broadcasts. Each says when it was sent. ---

      # One to each stream.
      def broadcast
        @streams.each { |stream| say(stream, 100) }
        @streams.size
      end

      # One of so many bytes to each stream, once a second, for so many seconds. How many to each.
      def keep_broadcasting(seconds, bytes)
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        seconds.to_i.times do |second|
          @streams.each_with_index do |stream, index|
            due = started + second + (index.to_f / @streams.size)
            wait = due - Process.clock_gettime(Process::CLOCK_MONOTONIC)
            sleep wait if wait.positive?
            say(stream, bytes.to_i)
          end
        end
        seconds
      end

      private

      def accept_all(listener)
        (0..).each do |number|
          socket = accept(listener)
          socket.write_nonblock(@opening)
          @streamer.register(connection(socket, number))
        end
      end

      # Keeps the GVL as long as somebody waits.
      def accept(listener)
        loop do
          socket = listener.accept_nonblock(exception: false)
          return socket unless socket == :wait_readable

          listener.wait_readable
        end
      end

      def connection(socket, number)
        Pgbus::Web::Streamer::Connection.new(
          id: format("%016x", number), stream_name: @streams[number % @streams.size], io: socket, since_id: 0,
          writer: Pgbus::Web::Streamer::IoWriter, write_deadline_ms: @deadline_ms,
          context: number, seat: "tab#{number}"
        )
      end

      def say(stream, bytes)
        at = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
        @streamer.broadcast(stream, %(<turbo-stream action="append" at="#{at}">#{"x" * bytes}</turbo-stream>))
      end

      def used
        Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      end
    end

    # Loads the side's streamer, on its Presence, and starts it.
    def self.start(side, config)
      logger = Logger.new($stderr, level: Logger::ERROR)
      if side == "plain"
        require_relative "../plain_ruby"
        load PlainRuby.file
        require "pgbus_native/web/connection" # Ruby; the extension is not loaded
        require_relative "plain_streamer"
        PlainStreamer.new(config:, logger:).start
      else
        require "pgbus_native/streams"
        Pgbus::Native::Streamer.new(config:, logger:).start
      end
    end
  end
end

Thread.abort_on_exception = true # nobody is served without the thread that accepts
side, streams, interval = ARGV
ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
config = Bench::Streamer::Settings.new(interval.to_f)
streamer = Bench::Streamer.start(side, config)
process = Bench::Streamer::WebProcess.new(streamer, streams.to_i, config.streams_write_deadline_ms)
$stdout.sync = true
puts process.listen
process.serve($stdin, $stdout)
exit! # without a farewell to each client
