# frozen_string_literal: true

require "openssl"
require "socket"

# An HTTP client that shows each byte. Every wait has a deadline.
class RawClient
  DEADLINE = 10

  attr_reader :socket

  # @param address [Integer, String] a port on loopback, or the path of a Unix socket
  def initialize(address, tls: false)
    @socket = address.is_a?(String) ? UNIXSocket.new(address) : TCPSocket.new("127.0.0.1", address)
    if tls
      @socket = OpenSSL::SSL::SSLSocket.new(@socket)
      @socket.sync_close = true
      @socket.connect
    end
    @read = +"".b
  end

  # Sends a request.
  def request(target, verb: "GET", headers: {})
    lines = ["#{verb} #{target} HTTP/1.1", "Host: app", *headers.map { |name, value| "#{name}: #{value}" }]
    socket.write("#{lines.join("\r\n")}\r\n\r\n")
    self
  end

  # The first line and the headers of the answer, by name; waits for all of them.
  def head
    @head ||= read_until("\r\n\r\n").split("\r\n")
  end

  def status
    head.first[%r{\AHTTP/1\.1 (\d{3})}, 1].to_i
  end

  def headers
    head.drop(1).to_h { |line| line.split(": ", 2) }.transform_keys(&:downcase)
  end

  # What has come after the head, up to and with the text.
  def body_until(text)
    head
    read_until(text)
  end

  # What comes until the server closes.
  def rest
    head
    fill until @ended
    @read.slice!(0..)
  end

  # The whole body, whose end its length, or the last of its chunks, tells.
  def body
    head
    return read(headers.fetch("content-length").to_i) unless headers["transfer-encoding"] == "chunked"

    chunks = +"".b
    while (chunk = next_chunk)
      chunks << chunk
    end
    chunks
  end

  # One chunk; nil for the last one.
  def next_chunk
    head
    size = read_until("\r\n").to_i(16)
    chunk = read(size + 2).delete_suffix("\r\n")
    chunk unless size.zero?
  end

  # Whether nothing comes for so many seconds.
  def silent?(seconds)
    @read.empty? && !socket.to_io.wait_readable(seconds)
  end

  def close
    socket.close
  end

  private

  def read_until(text)
    fill until (found = @read.index(text.b)) || @ended
    raise EOFError, "no #{text.inspect} in #{@read.inspect}" unless found

    @read.slice!(0, found + text.bytesize)
  end

  def read(size)
    fill until @read.bytesize >= size || @ended
    @read.slice!(0, size)
  end

  def fill
    case bytes = socket.read_nonblock(65_536, exception: false)
    when :wait_readable
      raise "nothing came for #{DEADLINE} s, after #{@read.inspect}" unless socket.to_io.wait_readable(DEADLINE)
    when nil then @ended = true
    else @read << bytes
    end
  end
end
