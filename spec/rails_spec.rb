# frozen_string_literal: true

require_relative "support/rails_app"
require "socket"

RSpec.describe "In a Rails application", :slow do
  # A server's place where nobody answers, and where whoever connects is noticed.
  def unanswered
    server = TCPServer.new("127.0.0.1", 0)
    yield server.addr[1], -> { server.accept_nonblock(exception: false) != :wait_readable }
  ensure
    server.close
  end

  def native?(runner = "Pgbus::Streams::Presence")
    "puts Pgbus::Native.enabled?, #{runner}.instance_method(:count).source_location.first.include?(\"pgbus_native\")"
  end

  # Presence at work: joins a seat and tells by which route.
  let(:call) do
    <<~RUBY
      presence = Pgbus::Streams::Stream.new("rails").presence
      presence.join(member_id: 7, connection_id: SecureRandom.hex(4))
      puts presence.count, Pgbus::Native.stats[:calls].inspect
    RUBY
  end

  describe "the line in the log" do
    # The line for a database configuration, given as DATABASE_URL or as settings in database.yml.
    def line_for(url: nil, settings: nil, env: "development")
      RailsApp.open do |app|
        app.write("config/database.yml", { env => settings }.to_yaml) if settings
        result = app.boot("puts :booted", env:, database_url: url)
        expect(result.lines).to include("booted")
        expect("#{result.out}#{result.err}#{app.read("log/#{env}.log")}").not_to match(/s3cret|operator/)
        expect(app.log_lines(env:).size).to eq(1)
        app.log_lines(env:).first
      end
    end

    it "says that presence is native, for which pgbus, and on which database" do
      expect(line_for(url: "postgresql://operator:s3cret@db.example:6543/app_production")).to eq(
        "[pgbus_native] native: pgbus_native 0.18.0 for pgbus 0.18.0, route auto; " \
        'database "primary": postgresql, host db.example, port 6543, database app_production'
      )
    end

    it "says it in production, too, at a level that is logged there" do
      expect(line_for(url: "postgresql://operator:s3cret@db.example/app", env: "production"))
        .to end_with("native: pgbus_native 0.18.0 for pgbus 0.18.0, route auto; " \
                     'database "primary": postgresql, host db.example, database app')
    end

    it "has no password and no user name from database.yml" do
      settings = { "adapter" => "postgresql", "host" => "db.example", "username" => "operator", "password" => "s3cret" }

      expect(line_for(settings:)).to end_with('database "primary": postgresql, host db.example')
    end

    {
      "#" => "postgresql://operator:1#s3cret@db.example/app",
      "/" => "postgresql://operator:1/s3cret@db.example/app",
      "?" => "postgresql://operator:1?s3cret@db.example/app"
    }.each do |character, url|
      it "has nothing of a password with a #{character} that is not escaped" do
        expect(line_for(url:)).to end_with('"primary": postgresql, in a URL with characters that should be escaped')
      end
    end

    it "has nothing of a connection string in the database's place" do
      settings = { "adapter" => "postgresql", "database" => "host=db.example user=operator password=s3cret" }

      expect(line_for(settings:)).to end_with('"primary": postgresql, database in a connection string')
    end

    it "says little of settings that only another adapter understands" do
      expect(line_for(settings: { "url" => "jdbc:postgresql://db.example/app?user=operator&password=s3cret" }))
        .to end_with('; database "primary", not PostgreSQL\'s adapter, so on ActiveRecord\'s connection')
    end

    it "does not quote settings that cannot be read" do
      expect(line_for(url: "postgresql://operator:s3^cret@[db.example/app"))
        .to end_with("; the database's settings cannot be read (URI::InvalidURIError)")
    end

    it "names the database of pgbus's connects_to" do
      RailsApp.open do |app|
        app.write("config/database.yml", { "development" => { "primary" => { "adapter" => "postgresql" }, "bus" => {
          "adapter" => "postgresql", "database" => "bus", "migrations_paths" => "db/bus_migrate"
        } } }.to_yaml)
        app.write("config/initializers/pgbus.rb",
                  "Pgbus.configuration.connects_to = { database: { writing: :bus, reading: :bus } }")
        app.boot.lines

        expect(app.log_lines).to match([/; database "bus": postgresql, database bus\z/])
      end
    end

    it "says that another adapter's database is served on ActiveRecord's connection" do
      expect(line_for(settings: { "adapter" => "trilogy", "database" => "app" }))
        .to end_with("trilogy, database app, not PostgreSQL's adapter, so on ActiveRecord's connection")
    end

    it "says that there is no ActiveRecord" do
      RailsApp.open do |app|
        with_it = app.read("config/application.rb")
        app.write("config/application.rb", with_it.sub("require \"active_record/railtie\"\n", ""))
        app.boot.lines

        expect(app.log_lines).to match([/native: .*; no ActiveRecord in this application\z/])
      end
    end

    it "tells the route that an initializer has set" do
      RailsApp.open do |app|
        app.write("config/initializers/pgbus_native.rb", "Pgbus::Native.configure { _1.route = :active_record }")
        app.boot.lines

        expect(app.log_lines).to match([/\[pgbus_native\] native: .*, route active_record; /])
      end
    end

    it "says that native code is switched off" do
      RailsApp.open do |app|
        expect(app.boot("puts Pgbus::Native.enabled?", pgbus_native: "0").lines).to eq(["false"])
        expect(app.log_lines).to eq(["[pgbus_native] not native: PGBUS_NATIVE=0 leaves pgbus 0.18.0 as it is; " \
                                     'database "primary": postgresql'])
      end
    end

    it "warns of another version of pgbus, also where only warnings are logged" do
      RailsApp.open do |app|
        app.write("config/initializers/log.rb", "Rails.logger.level = :warn")
        expect(app.boot("puts Pgbus::Native.enabled?", pgbus_fixture_version: "0.19.0").lines).to eq(["false"])
        expect(app.log_lines).to eq(["[pgbus_native] not native: pgbus_native 0.18.0 follows pgbus 0.18 and leaves " \
                                     'pgbus 0.19.0 as it is; database "primary": postgresql'])
      end
    end

    it "says that native code was forced on another version" do
      RailsApp.open do |app|
        app.boot(pgbus_fixture_version: "0.19.0", pgbus_native: "force").lines

        expect(app.log_lines)
          .to match([/\] native: pgbus_native 0.18.0 for pgbus 0.19.0 \(PGBUS_NATIVE=force\), route auto; /])
      end
    end

    it "says that there is no pgbus" do
      skip "pgbus is installed here" unless Gem::Specification.find_all_by_name("pgbus").empty?

      RailsApp.open(gems: %w[pgbus_native]) do |app|
        FileUtils.rm_r(File.join(app.folder, "vendor"))
        app.boot.lines

        expect(app.log_lines).to match([/\] native: pgbus_native 0.18.0 without pgbus, route auto; database "primary"/])
      end
    end
  end

  [%w[pgbus pgbus_native], %w[pgbus_native pgbus]].each do |gems|
    context "with #{gems.join(" before ")} in its Gemfile" do
      let(:app) { RailsApp.new(gems:, bundler: true) }

      after { app.close }

      it "is native by that alone, for development and with everything loaded for production" do
        SpecDatabase.table

        %w[development production].each do |env|
          lines = app.runner("#{native?}\n#{call}", env:, database_url: SpecDatabase.url).lines

          expect(lines.first(2)).to eq(%w[true true])
          expect(lines.last).to match(/native(: |=>)[1-9]\d*, :?active_record(: |=>)0/)
          expect(app.log_lines(env:)).to match([/ native: /])
        end
        expect(SpecDatabase.sql("SELECT count(*) AS seats FROM pgbus_presence_members")).to eq([{ "seats" => "2" }])
      end
    end
  end

  it "is native where the application requires the gems itself, in either order" do
    [%w[pgbus pgbus_native], %w[pgbus_native pgbus]].each do |gems|
      RailsApp.open(gems:) { |app| expect(app.runner(native?).lines).to eq(%w[true true]) }
    end
  end

  it "is native in what it loads eagerly, and Zeitwerk finds everything in its place" do
    RailsApp.open do |app|
      expect(app.runner(native?("RoomsController::PRESENCE"), env: "production").lines).to eq(%w[true true])
      expect(app.rails("zeitwerk:check").lines).to include("All is good!")
    end
  end

  it "is native after a reload of the application's code" do
    RailsApp.open do |app|
      script = "RoomsController; Rails.application.reloader.reload!\n#{native?("RoomsController::PRESENCE")}"

      expect(app.runner(script).lines).to eq(%w[true true])
    end
  end

  it "answers requests from Presence" do
    SpecDatabase.table
    SpecDatabase.sql("INSERT INTO pgbus_presence_members (stream_name, member_id) VALUES ('room', '7')")
    RailsApp.open do |app|
      script = <<~RUBY
        env = Rack::MockRequest.env_for("/up", "HTTP_HOST" => "localhost")
        puts Rails.application.call(env).last.each.to_a, Pgbus::Native.stats[:calls].inspect
      RUBY

      expect(app.runner(script, database_url: SpecDatabase.url).lines)
        .to match(["1", /native(: |=>)[1-9]/])
    end
  end

  it "works in the console" do
    SpecDatabase.table
    RailsApp.open do |app|
      lines = app.rails("console", stdin: call, database_url: SpecDatabase.url).lines

      expect(lines).to include("1", /native(: |=>)[1-9]/)
      expect(app.log_lines.size).to eq(1)
    end
  end

  describe "before the database exists" do
    it "connects nowhere at boot: neither in the runner, nor the console, nor a task, nor for production" do
      unanswered do |port, connected|
        url = "postgresql://app:s3cret@127.0.0.1:#{port}/app?connect_timeout=2"
        RailsApp.open do |app|
          app.runner("puts 1", database_url: url).lines
          app.rails("console", stdin: "1", database_url: url).lines
          app.bin("rake", "assets:precompile", env: "production", database_url: url).lines
          app.runner("puts 1", env: "production", database_url: url).lines

          expect(app.log_lines.size).to eq(2)
          expect(app.log_lines(env: "production").size).to eq(2)
          expect(connected.call).to be(false)

          # That it would have been noticed.
          app.runner("Pgbus::Streams::Stream.new('room').presence.count", database_url: url)
          expect(connected.call).to be(true)
        end
      end
    end

    it "boots without a server: for assets:precompile, and in the runner and the console" do
      port = unanswered { |free, _| free }
      url = "postgresql://app:s3cret@127.0.0.1:#{port}/app"
      RailsApp.open do |app|
        expect(app.bin("rake", "assets:precompile", env: "production", database_url: url).lines).to eq(["precompiled"])
        expect(app.runner(native?, env: "production", database_url: url).lines).to eq(%w[true true])
        expect(app.rails("console", stdin: native?, database_url: url).lines).to include("true")
      end
    end

    it "lets db:create make it, and db:drop drop it" do
      RailsApp.open do |app|
        url = app.database_url
        name = url[%r{[^/]+\z}]
        expect(app.bin("rake", "db:create", database_url: url).lines).to eq(["Created database '#{name}'"])
        expect(app.bin("rake", "db:drop", database_url: url).lines).to eq(["Dropped database '#{name}'"])
      end
    end

    it "leaves ActiveRecord::Base unloaded until the application loads it" do
      RailsApp.open do |app|
        expect(app.boot("puts ActiveRecord.autoload?(:Base).nil?").lines).to eq(["false"])
        expect(app.log_lines.size).to eq(1)
      end
    end

    it "reads database.yml once where ActiveRecord has read it" do
      RailsApp.open do |app|
        app.write("config/database.yml", "<% warn :read %>\nproduction:\n  adapter: postgresql\n")
        app.write("app/models/room.rb", "class Room < ActiveRecord::Base\nend\n")

        expect(app.boot(env: "production").err.lines.grep(/read/).size).to eq(1)
      end
    end
  end

  describe "with Bootsnap" do
    it "is native with an empty cache and a full one" do
      boot = "require \"bootsnap\"\nBootsnap.setup(cache_dir: File.expand_path(\"../tmp/cache\", __dir__))"
      RailsApp.open(boot:) do |app|
        SpecDatabase.table
        2.times do
          lines = app.runner("#{native?("RoomsController::PRESENCE")}\n#{call}", database_url: SpecDatabase.url).lines

          expect(lines.first(2)).to eq(%w[true true])
          expect(lines.last).to match(/native(: |=>)[1-9]/)
        end
        expect(app.files("tmp/cache/bootsnap/**/*")).not_to be_empty
        expect(app.log_lines.size).to eq(2)
      end
    end
  end

  describe "with Spring" do
    it "is native in each process that it forks off the booted application" do
      RailsApp.open(gems: %w[pgbus pgbus_native spring], bundler: true) do |app|
        # Debian 13's Spring sets what Rails 7 has no more.
        app.write("config/application.rb", "#{app.read("config/application.rb")}
                                            ActiveSupport::Dependencies.singleton_class.attr_writer(:mechanism)\n")
        SpecDatabase.table
        app.with_spring(database_url: SpecDatabase.url) do |spring|
          2.times do
            lines = spring.call("rails", "runner", "#{native?}\n#{call}").lines

            expect(lines.first(2)).to eq(%w[true true])
            expect(lines.last).to match(/native(: |=>)[1-9]/)
          end
        end
        expect(SpecDatabase.sql("SELECT count(*) AS seats FROM pgbus_presence_members")).to eq([{ "seats" => "2" }])
        # The application has booted once.
        expect(app.log_lines.size).to eq(1)
      end
    end
  end

  describe "rake pgbus_native:doctor" do
    it "reports on the database that the application uses, and succeeds if nothing is wrong" do
      SpecDatabase.table
      RailsApp.open do |app|
        result = app.bin("rake", "pgbus_native:doctor", database_url: SpecDatabase.url)

        expect(result.status).to be_success, "#{result.out}#{result.err}"
        expect(result.out).to include("pgbus 0.18.0")
      end
    end

    it "fails if something is wrong, without a backtrace" do
      port = unanswered { |free, _| free }
      RailsApp.open do |app|
        result = app.bin("rake", "pgbus_native:doctor", database_url: "postgresql://app:s3cret@127.0.0.1:#{port}/app")

        expect(result.status.exitstatus).to eq(1)
        expect(result.out).not_to be_empty
        expect("#{result.out}#{result.err}").not_to match(/s3cret|\.rb:\d+:in|rake aborted/)
      end
    end

    {
      "rake ... -- --json" => ["rake", ["pgbus_native:doctor", "--", "--json"], {}],
      "rake ... JSON=1" => ["rake", ["pgbus_native:doctor", "JSON=1"], {}],
      "rails ... -- --json" => ["rails", ["pgbus_native:doctor", "--", "--json"], {}],
      "JSON=1 rails ..." => ["rails", ["pgbus_native:doctor"], { json: "1" }]
    }.each do |command, (bin, arguments, environment)|
      it "writes JSON and nothing else to standard output for #{command}, whatever the application logs there" do
        SpecDatabase.table
        RailsApp.open do |app|
          app.write("config/environments/development.rb",
                    "Rails.application.configure { config.logger = ActiveSupport::Logger.new(STDOUT) }")
          result = app.bin(bin, *arguments, database_url: SpecDatabase.url, **environment)

          expect(result.status).to be_success, "#{result.out}#{result.err}"
          expect(JSON.parse(result.out)).not_to be_empty
          expect(result.err).to include("[pgbus_native] native")
        end
      end
    end

    it "is listed, and nothing else of this gem's is" do
      RailsApp.open do |app|
        expect(app.bin("rake", "-T", "pgbus_native").lines).to match([/\Arake pgbus_native:doctor +# Checks presence/])
      end
    end
  end
end
