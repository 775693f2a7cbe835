# frozen_string_literal: true

require_relative "event_stream"
require_relative "raw_client"

# Clients of event streams. One thread reads for all of them, so that examples can look at what any of them has.
class StreamClients
  # One client and all that it has been sent.
  class Client
    # A socket filter of one instruction, which drops everything that comes in: to the other end it is as if the machine
    # were gone.
    DROP_ALL = [0x06, 0, 0, 0].pack("SCCL")
    private_constant :DROP_ALL

    # @return [IO] the plain socket, TLS or not
    attr_reader :io

    # @return [Array] pieces of what has come, with the monotonic time of each
    attr_reader :arrivals

    # @return [Float, nil] the monotonic time at which the other side closed
    attr_reader :ended_at

    def initialize(socket)
      @socket = socket
      @io = socket.to_io
      @arrivals = []
      @bytes = +"".b
      @reads = true
    end

    # Takes what is there.
    def read
      until (piece = @socket.read_nonblock(262_144, exception: false)).is_a?(Symbol)
        return note_end unless piece

        @arrivals << [now, piece]
        @bytes << piece
      end
    rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
      note_end
    end

    def reads?
      @reads && !ended? && !closed?
    end

    def closed?
      @socket.closed?
    end

    # @return [Boolean] whether the server has closed
    def ended?
      !ended_at.nil?
    end

    # @param buffer [Integer, nil] bytes that the system takes for it meanwhile, about
    def stop_reading(buffer: nil)
      @reads = false
      io.setsockopt(:SOCKET, :RCVBUF, buffer) if buffer
    end

    def read_again
      @reads = true
    end

    # From now on it answers nothing, not even to what TCP asks, and the server learns nothing of it.
    def vanish
      io.setsockopt(:SOCKET, :ATTACH_FILTER, [1, DROP_ALL].pack("Sx6P"))
    end

    # @param reset [Boolean] as a process that is killed with unread data does
    def close(reset: false)
      io.setsockopt(:SOCKET, :LINGER, [1, 0].pack("ii")) if reset
      # A TLS client that is asked to close says so first; one that is gone does not.
      (reset ? io : @socket).close
    rescue IOError, SystemCallError
      nil
    end

    def write(bytes)
      @socket.write(bytes)
    end

    def status
      @bytes[%r{\AHTTP/1\.1 (\d{3})}, 1].to_i
    end

    # What has come after the head.
    def body
      head, body = @bytes.split("\r\n\r\n", 2)
      return "" unless body

      head.match?(/^transfer-encoding: chunked/i) ? unchunked(body) : body
    end

    def stream
      EventStream.new(body)
    end

    # The data of the events of a type, in order.
    def data(type = "turbo-stream")
      stream.events.select { |event| event.type == type }.map(&:data)
    end

    # Its connection's id, from the frame; nil as long as it has none.
    def id
      @id ||= @bytes[/^event: pgbus:connected\ndata: {"connectionId":"([^"]*)"}\n\n/, 1]
    end

    alias connected? id

    # When heartbeats came.
    def heartbeats
      arrivals.filter_map { |time, piece| time if piece.match?(/^: ?heartbeat/) }
    end

    # Whether the text has come. Faster than parsing everything.
    def got?(text)
      @bytes.include?(text.b)
    end

    private

    def note_end
      @ended_at = now
    end

    def unchunked(rest)
      text = +"".b
      while (size = rest[/\A(\h+)\r\n/, 1])
        text << rest.byteslice(size.bytesize + 2, size.hex).to_s
        rest = rest.byteslice((size.bytesize + size.hex + 4)..).to_s
      end
      text
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end

  def initialize
    # Each client takes two descriptors, one of them the server's.
    Process.setrlimit(:NOFILE, Process.getrlimit(:NOFILE).last)
    @clients = Thread::Queue.new
    @known = []
    @thread = Thread.new { read until @closed }
  end

  # Sends a request, and has its answer read from now on.
  def open(address, target, tls: false, headers: {})
    add(RawClient.new(address, tls:).request(target, headers:).socket)
  end

  # Has the socket read from now on.
  def add(socket)
    Client.new(socket).tap { |client| @clients << client }
  end

  def close
    @closed = true
    @thread.join
    take_new.each(&:close)
  end

  private

  def read
    reading = take_new.select(&:reads?).to_h { |client| [client.io, client] }.compare_by_identity
    ready, = IO.select(reading.keys, nil, nil, 0.01)
    ready&.each { |io| reading.fetch(io).read }
  rescue IOError, SystemCallError
    nil # one was closed meanwhile
  end

  def take_new
    @known << @clients.pop until @clients.empty?
    @known.delete_if(&:closed?)
  end
end
