# frozen_string_literal: true

require "logger"
require "stringio"
require "tmpdir"
require_relative "certificate_authority"
require_relative "puma_server"
require_relative "stream_clients"
require_relative "streamer_process"
require_relative "streamer_settings"
require_relative "streaming_body"

# A streamer behind StreamApp and a real Puma, and its clients. All of it is gone after an example.
module StreamerHelpers
  # The ways to a client, with what an example of them needs.
  TRANSPORTS = { tcp: {}, unix: {}, tls: {}, body: { streaming_body: true } }.freeze

  def self.included(group)
    group.let(:settings) { StreamerSettings.new }
    group.let(:log) { StringIO.new }
    group.let(:streamer) { start_streamer }
    group.let(:clients) { StreamClients.new.tap { |all| closing << -> { all.close } } }
    group.before do
      Pgbus.configuration = settings
      Pgbus.logger = Logger.new(log)
    end
    group.before(:each, :after_commit) do
      skip "ActiveRecord 7.1 has none" unless ActiveRecord.respond_to?(:after_all_transactions_commit)
    end
    group.after { finish }
  end

  # What is done after the example, the last first.
  def closing
    @closing ||= []
  end

  def finish
    closing.pop.call until closing.empty?
  end

  # Starts a streamer, of those settings.
  def start_streamer(config = settings)
    streamer = Pgbus::Native::Streamer.new(config:, logger: Pgbus.logger).start
    closing << -> { streamer.shutdown! }
    streamer
  end

  # Serves StreamApp; where.
  def serve(transport = :tcp, streamer: self.streamer)
    folder = Dir.mktmpdir("streams")
    settings.streams_falcon_streaming_body = transport == :body
    app = Pgbus::Web::StreamApp.new(streamer:, config: settings, logger: Pgbus.logger)
    server = PumaServer.new(app, **listener(transport, folder))
    # After the streamer: threads of the server may be busy with its bodies.
    closing.unshift(lambda {
      server.stop
      FileUtils.rm_rf(folder)
    })
    server.address
  end

  # Where the streamer of the example is served.
  def address(transport = :tcp)
    (@addresses ||= {})[transport] ||= serve(transport)
  end

  # Opens a stream and waits for nothing.
  def request(stream = "room:1", user: "7", seat: nil, since: nil, transport: :tcp, at: address(transport), headers: {})
    query = URI.encode_www_form({ seat:, since: }.compact)
    # Otherwise the end of a body would not be that of the connection.
    headers["Connection"] = "close" if transport == :body
    clients.open(at, "/pgbus/streams/#{Pgbus::Streams::SignedName.sign(stream)}?#{query}",
                 tls: transport == :tls, headers: { "X-User" => user, **headers }.compact)
  end

  # Opens a stream and waits for the frame that says that it is connected.
  def connect(...)
    request(...).tap { |client| wait_for(client) }
  end

  # Has the streamer take a connection whose socket has hardly room, as if far away; its client.
  def connect_narrow(stream = "room:1", user: "7")
    near, far = UNIXSocket.pair
    near.setsockopt(:SOCKET, :SNDBUF, 4096)
    near.write(Pgbus::Streams::Envelope.http_response_headers)
    register(near, stream_name: stream, context: user)
    clients.add(far).tap { |client| wait_for(client) }
  end

  # Hands a socket to the streamer, as StreamApp does.
  def register(io, streamer: self.streamer, id: SecureRandom.hex(8), stream_name: "room:1", context: "7")
    writer = Pgbus::Web::Streamer::IoWriter
    write_deadline_ms = settings.streams_write_deadline_ms
    connection = Pgbus::Web::Streamer::Connection.new(id:, stream_name:, io:, since_id: 0, writer:, write_deadline_ms:,
                                                      context:)
    streamer.register(connection)
  end

  def wait_for(*clients, within: 20)
    wait_until("all clients are connected", within:) { clients.all?(&:connected?) }
  end

  # Waits until the clients have events with such data.
  def wait_for_data(clients, *data)
    wait_until("the clients have #{data.to_s[0, 100]}") do
      [*clients].all? { |client| client.got?(data.last[-20..] || data.last) && (data - client.data).empty? }
    end
  end

  # Opens many streams at once, from threads; the block is given numbers and opens one.
  def request_many(count, &)
    address && clients
    by_thread = in_threads(8) { |thread| (thread...count).step(8).map(&) }
    Array.new(count) { |number| by_thread[number % 8][number / 8] }
  end

  # The connections that are in the registry.
  def registered(streamer = self.streamer)
    [].tap { |connections| streamer.registry.each_connection { |connection| connections << connection } }
  end

  # Ids of the connections that have a seat, on one stream or all.
  def seats(stream = nil)
    rows(stream).pluck("connection_id").compact
  end

  # The changes that were reported: type and connection id.
  def reported(stream = nil)
    settings.changes.filter_map do |name, change, _thread|
      [change[:type], change[:connection_id]] if stream.nil? || name == stream
    end
  end

  # Counts the statements that change the table while the block runs, whatever each of them does.
  #
  # @param kind ["INSERT", "UPDATE", "DELETE"]
  # @yieldparam count [Proc] gives how many there were so far
  def counting(kind)
    SpecDatabase.table_changed
    sql("CREATE SEQUENCE statements")
    sql("CREATE FUNCTION count_statement() RETURNS trigger LANGUAGE plpgsql AS " \
        "$$ BEGIN PERFORM nextval('statements'); RETURN NULL; END $$")
    sql("CREATE TRIGGER count_statements AFTER #{kind} ON pgbus_presence_members " \
        "FOR EACH STATEMENT EXECUTE FUNCTION count_statement()")
    yield -> { sql("SELECT last_value FROM statements WHERE is_called").sum { |row| row["last_value"].to_i } }
  ensure
    sql("DROP FUNCTION count_statement CASCADE")
    sql("DROP SEQUENCE statements")
  end

  # Descriptors of a process that are sockets which a server at the address has accepted, and what they lead to.
  def accepted_descriptors(address, process = "self")
    inodes = address.is_a?(String) ? accepted_unix(address) : accepted_tcp(address)
    descriptors(process).select { |_number, target| inodes.include?(target[/\Asocket:\[(\d+)\]\z/, 1]) }
  end

  # What the descriptors of this process lead to, by number.
  def descriptors(process = "self")
    files = Dir.children("/proc/#{process}/fd").filter_map do |number|
      [number.to_i, File.readlink("/proc/#{process}/fd/#{number}")]
    rescue SystemCallError
      nil # that of the folder itself, which was open while it was read
    end
    files.to_h
  end

  # Resident memory of this process in bytes.
  def memory
    File.read("/proc/self/status")[/^VmRSS:\s+(\d+)/, 1].to_i * 1024
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  private

  def listener(transport, folder)
    case transport
    when :unix then { socket: "#{folder}/socket" }
    when :tls then { tls: certificate_in(folder) }
    else {}
    end
  end

  def certificate_in(folder)
    certificate = CertificateAuthority.new("app").self_signed
    { "certificate" => certificate.pem, "key" => certificate.key }.map do |name, pem|
      "#{folder}/#{name}".tap { |path| File.write(path, pem) }
    end
  end

  LISTENS = "0A"
  private_constant :LISTENS

  def accepted_tcp(port)
    rows = File.readlines("/proc/self/net/tcp").drop(1).map(&:split)
    rows.select { |row| row[1].end_with?(format(":%04X", port)) && row[3] != LISTENS }.map { |row| row[9] }
  end

  def accepted_unix(path)
    rows = File.readlines("/proc/self/net/unix").drop(1).map(&:split)
    # Flags of a socket that listens are not zero.
    rows.select { |row| row[7] == path && row[3] == "00000000" }.map { |row| row[6] }
  end
end
