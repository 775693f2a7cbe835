# frozen_string_literal: true

require_relative "support/rails_app"
Dir[File.expand_path("../lib/pgbus_native/migrations/*.rb", __dir__)].each { |file| require file }

RSpec.describe "The generators", :slow do
  let(:app) { RailsApp.new }
  let(:url) { app.database_url }
  let(:url_of_bus) { app.database_url }

  after { app.close }

  # Columns and indexes of the presence table in a database, by name; nil without the table.
  def shape(url)
    database = PG.connect(url)
    return unless database.exec("SELECT to_regclass('pgbus_presence_members')").getvalue(0, 0)

    columns = database.exec(<<~SQL).values
      SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
      FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
      WHERE attrelid = 'pgbus_presence_members'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
    SQL
    indexes = database.exec("SELECT indexdef FROM pg_indexes WHERE tablename = 'pgbus_presence_members' ORDER BY 1")
    options = database.exec("SELECT reloptions FROM pg_class WHERE relname = 'pgbus_presence_members'")
    [columns, indexes.column_values(0), options.column_values(0)]
  ensure
    database&.close
  end

  # The same of the gem's own migrations, one after the other.
  def own_shape(*migrations)
    SpecDatabase.table_changed
    SpecDatabase.sql("DROP TABLE IF EXISTS pgbus_presence_members")
    migrations.each { |migration| Pgbus::Native::Migrations.const_get(migration).new.migrate(:up) }
    shape(SpecDatabase.url)
  end

  def names(files)
    files.map { |file| file[/\d+_(\w+)\.rb\z/, 1] }
  end

  def generate(name, *options)
    app.rails("generate", "pgbus_native:#{name}", *options, database_url: url)
  end

  def migrate(*tasks)
    app.rails(*tasks, database_url: url).lines
  end

  def presence(call)
    app.runner("presence = Pgbus::Streams::Stream.new('room').presence\n#{call}", database_url: url).lines
  end

  # A second database, as `rails db:migrate` knows it.
  def with_bus
    app.write("config/database.yml", { "development" => {
      "primary" => { "url" => url }, "bus" => { "url" => url_of_bus, "migrations_paths" => "db/bus_migrate" }
    } }.to_yaml)
  end

  it "are in the gem, with their templates" do
    files = Dir.glob("lib/generators/**/*.{rb,tt}", base: RailsApp::ROOT)

    expect(files.size).to eq(6)
    expect(Gem::Specification.load(File.join(RailsApp::ROOT, "pgbus_native.gemspec")).files).to include(*files)
  end

  describe "rails generate pgbus_native:presence" do
    let(:both) { %w[create_pgbus_presence_members add_seats_to_pgbus_presence_members] }

    it "writes both migrations, which make the table that the gem's own make" do
      expect(generate(:presence).lines.grep(/create  db/).size).to eq(2)
      expect(names(app.files("db/migrate/*.rb"))).to eq(both)
      migrate("db:create", "db:migrate")

      expect(shape(url)).to eq(own_shape(:CreatePresenceMembers, :AddPresenceSeats))
      expect(presence("[{}, { connection_id: 1 }].each { presence.join(member_id: 7, **_1) }; puts presence.count"))
        .to end_with("2")
    end

    it "writes migrations that can be taken back, one by one, and the members' rows stay" do
      generate(:presence)
      migrate("db:create", "db:migrate")
      presence("presence.join(member_id: 7); presence.join(member_id: 8, connection_id: 1)")

      migrate("db:rollback")
      expect(shape(url)).to eq(own_shape(:CreatePresenceMembers))
      expect(presence("puts presence.members.map { |record| record['id'] }")).to eq(["7"])
      migrate("db:rollback")
      expect(shape(url)).to be_nil
      migrate("db:migrate")
      expect(shape(url)).to eq(own_shape(:CreatePresenceMembers, :AddPresenceSeats))
    end

    it "writes a schema that makes the same table" do
      generate(:presence)
      migrate("db:create", "db:migrate")
      before = shape(url)
      migrate("db:schema:load")

      expect(shape(url)).to eq(before)
    end

    it "makes the times timestamptz with --timestamptz, and nothing else" do
      generate(:presence, "--timestamptz")
      migrate("db:create", "db:migrate")

      columns, *others = own_shape(:CreatePresenceMembers, :AddPresenceSeats)
      columns = columns.map { |column| column.map { |type| type&.sub("timestamp(6) without", "timestamp with") } }
      expect(shape(url)).to eq([columns, *others])
      expect(columns.flatten.count("timestamp with time zone")).to eq(2)
    end

    it "writes text that says everything itself, and so is not changed by another release of the gem" do
      generate(:presence)
      generate(:tuning)
      texts = app.files("db/migrate/*.rb").map { |file| app.read(file) }

      expect(texts.size).to eq(3)
      expect(texts).to all(match(/^class \w+ < ActiveRecord::Migration\[\d\.\d\]$/))
      expect(texts.join).not_to include("Pgbus::Native")
    end

    it "writes into the folder of the database that --database names, and its migration makes the table there" do
      with_bus
      generate(:presence, "--database", "bus")

      expect(app.files("db/migrate/*")).to be_empty
      expect(names(app.files("db/bus_migrate/*.rb"))).to eq(both)
      app.rails("db:create", "db:migrate").lines
      expect(shape(url_of_bus)).to eq(own_shape(:CreatePresenceMembers, :AddPresenceSeats))
      expect(shape(url)).to be_nil
      2.times { app.rails("db:rollback:bus").lines }
      expect(shape(url_of_bus)).to be_nil
    end

    it "takes the database of pgbus's connects_to without --database" do
      with_bus
      app.write("config/initializers/pgbus.rb", "Pgbus.configuration.connects_to = { database: { writing: :bus } }")
      generate(:presence)

      expect(names(app.files("db/bus_migrate/*.rb"))).to eq(both)
      expect(app.files("db/migrate/*")).to be_empty
    end

    it "writes nothing for a database that is not in database.yml, and fails" do
      result = generate(:presence, "--database", "buss")

      expect(result.status.exitstatus).to eq(1)
      expect(result.err).to include('There is no database "buss" in database.yml')
      expect(app.files("db/**/*.rb")).to be_empty
    end

    it "needs no server" do
      result = app.rails("generate", "pgbus_native:presence", database_url: "postgresql://app@127.0.0.1:1/app")

      expect(result.lines.grep(/create  db/).size).to eq(2)
    end

    it "skips what is there, and says so" do
      generate(:presence)
      before = app.files("db/migrate/*.rb").to_h { |file| [file, app.read(file)] }
      app.write(before.keys.first, "#{before.values.first}# edited\n")
      lines = generate(:presence).lines

      expect(lines.grep(/skip/)).to match([/skip  create_pgbus_presence_members: #{before.keys.first} is there/,
                                           /skip  add_seats_to_pgbus_presence_members: #{before.keys.last} is there/])
      expect(app.files("db/migrate/*.rb")).to eq(before.keys)
      expect(app.read(before.keys.first)).to end_with("# edited\n")
    end

    {
      "another name" => <<~RUBY,
        class AddPresence < ActiveRecord::Migration[7.1]
          def change
            create_table(:pgbus_presence_members, id: false) { |t| t.string :stream_name }
          end
        end
      RUBY
      "SQL" => <<~RUBY,
        class AddPresence < ActiveRecord::Migration[7.1]
          def up
            execute "CREATE TABLE IF NOT EXISTS pgbus_presence_members ()"
          end
        end
      RUBY
      "the gem's class" => <<~RUBY
        class AddPresence < Pgbus::Native::Migrations::CreatePresenceMembers
        end
      RUBY
    }.each do |way, text|
      it "adds only the seats where a migration with #{way} makes the table" do
        app.write("db/migrate/20250101000000_add_presence.rb", text)
        lines = generate(:presence).lines

        expect(lines.grep(/skip/)).to match([%r{create_pgbus_presence_members: db/migrate/\d+_add_presence.rb is}])
        expect(names(app.files("db/migrate/*.rb"))).to eq(%w[add_presence add_seats_to_pgbus_presence_members])
      end
    end

    it "adds nothing where migrations make the table and its seats" do
      app.write("db/migrate/20250101000000_add_presence.rb", "create_table :pgbus_presence_members")
      app.write("db/migrate/20250101000001_add_presence_seats.rb", <<~RUBY)
        change_table :pgbus_presence_members do |t|
          t.string :connection_id
        end
      RUBY
      generate(:presence).lines

      expect(names(app.files("db/migrate/*.rb"))).to eq(%w[add_presence add_presence_seats])
    end

    it "takes them away again by rails destroy" do
      generate(:presence)
      app.rails("destroy", "pgbus_native:presence", database_url: url).lines

      expect(app.files("db/migrate/*.rb")).to be_empty
    end

    it "explains itself" do
      expect(generate(:presence, "--help").lines).to include(/--database/, /--timestamptz/, /Writes the migrations/)
    end
  end

  describe "rails generate pgbus_native:tuning" do
    it "writes a migration that does what the gem's own does, there and back" do
      generate(:presence)
      migrate("db:create", "db:migrate")
      generate(:tuning)
      expect(names(app.files("db/migrate/*.rb")).last).to eq("tune_pgbus_presence_members")
      migrate("db:migrate")

      expect(shape(url)).to eq(own_shape(:CreatePresenceMembers, :AddPresenceSeats, :TunePresence))
      migrate("db:rollback")
      expect(shape(url)).to eq(own_shape(:CreatePresenceMembers, :AddPresenceSeats))
    end

    it "writes into the folder of the database that --database names" do
      with_bus
      generate(:tuning, "--database=bus")

      expect(names(app.files("db/bus_migrate/*.rb"))).to eq(["tune_pgbus_presence_members"])
      expect(app.files("db/migrate/*")).to be_empty
    end

    it "skips what is there" do
      generate(:tuning)

      expect(generate(:tuning).lines.grep(/skip/)).to match([/skip  tune_pgbus_presence_members: .* is there/])
      expect(app.files("db/migrate/*.rb").size).to eq(1)
    end
  end
end
