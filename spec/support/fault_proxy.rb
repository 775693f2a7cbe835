# frozen_string_literal: true

require "socket"

# A TCP proxy between clients and a server, whose network can be made to fail: answers late, answers cut
# after so many bytes, packets that vanish (a half-open connection: no end of stream ever arrives), ports that
# refuse.
class FaultProxy
  # Runs the block with a proxy to the port; it is gone afterwards, and its connections with it.
  def self.to(port)
    proxy = new(port)
    yield proxy
  ensure
    proxy&.close
  end

  attr_reader :port

  # When connections were cut, in monotonic seconds.
  attr_reader :cuts

  # Seconds by which every piece of an answer is late.
  attr_accessor :delay

  def initialize(server_port)
    @server_port = server_port
    @lock = Mutex.new
    @links = []
    @cuts = []
    @answered = 0
    @swallowing = false
    @delay = 0
    listen(0)
  end

  # Bytes that clients have been sent since this was last asked.
  def answered!
    @lock.synchronize { @answered.tap { @answered = 0 } }
  end

  # Connections that neither end has closed, as far as the other one knows.
  def connections
    links.count(&:whole?)
  end

  # Cuts the connection on which the next bytes of an answer arrive, after so many of them have been passed on.
  # `how` is :reset, or :end for a regular end of stream. One cut for each call of this.
  def cut_after(bytes, how: :reset)
    @lock.synchronize { @cut = [bytes, how] }
  end

  # Takes an ordered cut back; says whether it was still to be made.
  def spare
    @lock.synchronize { !@cut.nil?.tap { @cut = nil } }
  end

  # Ends all connections now.
  def cut(how: :reset)
    links.each { |link| link.sever(how) }
  end

  # From now on nothing passes on the connections that are open, in either direction, and neither end learns
  # of it. New connections work.
  def swallow
    links.each(&:swallow)
  end

  # The same for new connections too, until `heal`: they are accepted and get no answer.
  def swallow_everything
    @lock.synchronize { @swallowing = true }
    swallow
  end

  # Cuts the clients off. The server does not learn of it.
  def cut_clients
    links.each(&:cut_client)
  end

  # From now on nothing more is read from the connections that are open: what is sent there piles up.
  def stall
    links.each(&:stall)
  end

  # New connections are refused until `heal`.
  def refuse
    @listener.close
    @acceptor.join
  end

  # Lets new connections pass. Those that were swallowed stay so.
  def heal
    @lock.synchronize { @swallowing = false }
    @delay = 0
    listen(@port) if @listener.closed?
  end

  def close
    refuse unless @listener.closed?
    links.each { |link| link.sever(:reset) }
  end

  # How much of an answer may be passed on, and how the connection ends then, if it is to end within this piece.
  def due_cut(size)
    sleep @delay if @delay.positive?
    @lock.synchronize do
      limit, how = @cut
      due = limit && limit <= size
      @cut = due ? nil : @cut && [limit - size, how]
      @answered += due ? limit : size
      due ? [limit, how] : nil
    end
  end

  def forget(link)
    @lock.synchronize { @links.delete(link) }
  end

  def forget_cut(link)
    @lock.synchronize { @cuts << Process.clock_gettime(Process::CLOCK_MONOTONIC) if @links.delete(link) }
  end

  # A client's connection and the one to the server that belongs to it.
  class Link
    CHUNK = 16_384
    # So that closing sends a reset instead of an end of stream.
    NO_LINGER = [1, 0].pack("ii")

    def initialize(proxy, client, server, swallowing)
      @proxy = proxy
      @client = client
      @server = server
      @swallowing = swallowing
      @stalled = false
      @lock = Mutex.new
      @open_ends = 2
      [client, server].each { |socket| socket.setsockopt(:TCP, :NODELAY, true) }
      @pumps = [pump(client, server) { |bytes| server.write(bytes) }, pump(server, client) { |bytes| answer(bytes) }]
    end

    def swallow
      @swallowing = true
    end

    def cut_client
      swallow
      reset(@client)
    end

    def stall
      @stalled = true
    end

    def whole?
      @open_ends == 2
    end

    def sever(how)
      @proxy.forget_cut(self)
      reset(@server)
      how == :reset ? reset(@client) : close(@client)
    end

    private

    def pump(from, to)
      Thread.new do
        loop do
          bytes = from.readpartial(CHUNK)
          sleep if @stalled
          yield bytes unless @swallowing
        end
      rescue IOError, SystemCallError
        over(to) unless @swallowing
      end
    end

    def answer(bytes)
      limit, how = @proxy.due_cut(bytes.bytesize)
      @client.write(limit ? bytes.byteslice(0, limit) : bytes)
      sever(how) if limit
    end

    # One end has closed its side: the other learns it.
    def over(other)
      other.close_write
    rescue IOError, SystemCallError
      nil
    ensure
      if @lock.synchronize { (@open_ends -= 1).zero? }
        @proxy.forget(self)
        [@client, @server].each { |socket| close(socket) }
      end
    end

    def reset(socket)
      socket.setsockopt(:SOCKET, :LINGER, NO_LINGER)
    rescue IOError, SystemCallError
      nil
    ensure
      close(socket)
    end

    def close(socket)
      socket.close
    rescue IOError, SystemCallError
      nil
    end
  end

  private

  def links
    @lock.synchronize { @links.dup }
  end

  def listen(port)
    @listener = TCPServer.new("127.0.0.1", port)
    @listener.listen(128)
    @port = @listener.addr[1]
    @acceptor = Thread.new { accept }
  end

  def accept
    loop { link(@listener.accept) }
  rescue IOError, SystemCallError
    # The listener was closed.
  end

  def link(client)
    server = TCPSocket.new("127.0.0.1", @server_port)
    @lock.synchronize { @links << Link.new(self, client, server, @swallowing) }
  rescue SystemCallError
    # The server is not there: the client sees its connection end.
    client.close
  end
end
