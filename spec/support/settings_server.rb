# frozen_string_literal: true

require "etc"

require_relative "certificate_authority"
require_relative "postgres_server"

# A server that lets each role in in one way only, and tells what the session is that a statement came on.
class SettingsServer < PostgresServer
  DATABASE = "app"

  HBA = [
    "host all,replication trusted 127.0.0.1/32 trust",
    "host all md5 127.0.0.1/32 md5",
    "host all cleartext 127.0.0.1/32 password",
    "hostssl all tls_only 127.0.0.1/32 trust",
    "hostnossl all plain_only 127.0.0.1/32 trust",
    "hostssl all certified 127.0.0.1/32 cert",
    "hostgssenc all kerberized 127.0.0.1/32 trust",
    "host all gssapi 127.0.0.1/32 gss",
    %(host all scram,read_only,"ann o'n/@:" 127.0.0.1/32 scram-sha-256)
  ].freeze

  ROLES = <<~SQL
    CREATE ROLE trusted LOGIN;
    CREATE ROLE tls_only LOGIN;
    CREATE ROLE plain_only LOGIN;
    CREATE ROLE certified LOGIN;
    CREATE ROLE kerberized LOGIN;
    CREATE ROLE gssapi LOGIN;
    CREATE ROLE scram LOGIN PASSWORD 'sécret';
    SET password_encryption = 'md5';
    CREATE ROLE md5 LOGIN PASSWORD 'secret';
    CREATE ROLE cleartext LOGIN PASSWORD 'secret';
    RESET password_encryption;
    CREATE ROLE "ann o'n/@:" LOGIN PASSWORD 'p@ss:w/rd%#?';
    CREATE ROLE read_only LOGIN PASSWORD 'secret';
    ALTER ROLE read_only SET default_transaction_read_only = on;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
  SQL

  # Puts a description of the session into the metadata of each row that is written.
  DESCRIBING = <<~SQL
    CREATE FUNCTION describe_session() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      NEW.metadata := jsonb_build_object(
        'pid', pg_backend_pid(), 'user', session_user, 'database', current_database(), 'port', inet_server_port(),
        'schemas', current_schemas(false), 'recovery', pg_is_in_recovery(),
        'ssl', (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
        'tls', (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
        'client_certificate', (SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
        'names', (SELECT count(*) > 0 FROM pg_prepared_statements),
        'settings', (SELECT jsonb_object_agg(name, setting) FROM pg_settings));
      RETURN NEW;
    END $$;
    CREATE TRIGGER describe_session BEFORE INSERT OR UPDATE ON pgbus_presence_members
    FOR EACH ROW EXECUTE FUNCTION describe_session();
  SQL

  attr_reader :authority

  def initialize
    @authority = CertificateAuthority.new("Authority")
    super(hba: HBA) do
      File.write(file("root.crt"), authority.pem)
      { ssl: "on", ssl_ca_file: file("root.crt"), **certificate_settings(authority.issue("localhost", **LOCALHOST)) }
    end
    sql("CREATE DATABASE #{DATABASE}")
    make_table
    sql(DESCRIBING + ROLES, database: DATABASE)
  end

  LOCALHOST = { alternative: "DNS:localhost" }.freeze
  private_constant :LOCALHOST

  # Has the server show another certificate for the time of the block.
  def with_certificate(certificate)
    set(**certificate_settings(certificate, "other"))
    yield
  ensure
    set(ssl_cert_file: file("server.crt"), ssl_key_file: file("server.key"))
  end

  # Holds a lock on the table until the block ends.
  def while_locked
    connection = PG.connect(host: directory, port:, user: "postgres", dbname: DATABASE)
    connection.exec("BEGIN; LOCK TABLE pgbus_presence_members")
    yield
  ensure
    connection&.close
  end

  private

  def certificate_settings(certificate, name = "server")
    File.write(file("#{name}.crt"), certificate.pem)
    File.write(file("#{name}.key"), certificate.key)
    Throwaway.own(file("#{name}.key"))
    { ssl_cert_file: file("#{name}.crt"), ssl_key_file: file("#{name}.key") }
  end

  def make_table
    ActiveRecord::Base.establish_connection(adapter: "postgresql", host: directory, port:, database: DATABASE,
                                            username: "postgres")
    SpecDatabase::MIGRATIONS.each { |migration| migration.new.migrate(:up) }
  ensure
    ActiveRecord::Base.remove_connection
  end
end

# Groups with `:settings_server` have such a server, `server`, and a home directory without any of libpq's files.
RSpec.shared_context "with a server for settings" do
  before(:context) do
    skip PostgresServer.unavailable if PostgresServer.unavailable

    @settings_server = SettingsServer.new
  end

  after(:context) do
    server&.stop
    SpecDatabase.establish
  end

  around do |example|
    Dir.mktmpdir do |home|
      @home = home
      with_env("HOME" => home) { example.run }
    end
  end

  before do
    Pgbus.start_over
    presence_class.reset_schema_cache!
  end

  after { ActiveRecord::Base.remove_connection }

  attr_reader :home

  let(:presence_class) { Pgbus::Streams::Presence }
  let(:presence) { presence_class.new(SpecStream.new("room:42")) }

  def server
    @settings_server # rubocop:disable RSpec/InstanceVariable
  end

  # database.yml's settings for the server.
  def settings(**others)
    { adapter: "postgresql", host: "127.0.0.1", port: server.port, database: SettingsServer::DATABASE,
      username: "trusted", **others }
  end

  def with_env(variables)
    before = variables.keys.to_h { |name| [name, ENV.fetch(name, nil)] }
    ENV.update(variables)
    yield
  ensure
    ENV.update(before)
  end

  # A file with the text, readable for its owner alone.
  def file(name, text)
    path = File.join(home, name)
    FileUtils.mkdir_p(File.dirname(path))
    File.write(path, text)
    FileUtils.chmod(0o600, path)
    path
  end
end

RSpec.configure do |config|
  config.include_context "with a server for settings", :settings_server
end
