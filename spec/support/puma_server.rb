# frozen_string_literal: true

require "puma"
require "puma/log_writer"
require "puma/minissl"
require "puma/server"
require "socket"

# Puma in this process, on threads, with an app that examples can look into.
class PumaServer
  # @return [Integer, String] the port on loopback, or the path of the Unix socket
  attr_reader :address

  # @return [StringIO] what it complained of
  attr_reader :complaints

  # @param app [#call]
  # @param socket [String, nil] the path of a Unix socket, instead of a port
  # @param tls [Array<String>, nil] paths of a certificate and its key
  def initialize(app, socket: nil, tls: nil)
    @complaints = StringIO.new
    @server = Puma::Server.new(app, nil, min_threads: 0, max_threads: 8, force_shutdown_after: 1, environment: "test",
                                         log_writer: Puma::LogWriter.new(@complaints, @complaints))
    @address = listen(socket, tls)
    @server.run
  end

  # Ends it; connections that were taken over go on.
  def stop
    @server.stop(true)
  end

  private

  def listen(socket, tls)
    return @server.add_unix_listener(socket) && socket if socket
    return @server.add_tcp_listener("127.0.0.1", 0) && @server.connected_ports.first unless tls

    context = Puma::MiniSSL::Context.new
    context.cert, context.key = tls
    @server.add_ssl_listener("127.0.0.1", 0, context)
    @server.connected_ports.first
  end
end
