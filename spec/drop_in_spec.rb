# frozen_string_literal: true

require_relative "support/scripts"
require "fileutils"
require "tmpdir"

RSpec.describe "Dropping in beside pgbus" do
  include Scripts

  # A copy of lib as a checkout has it before `rake compile`.
  def without_extension
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(File.join(Scripts::ROOT, "lib"), folder)
      FileUtils.rm_f(Dir[File.join(folder, "lib/pgbus_native/*.{so,bundle}")])
      yield File.join(folder, "lib")
    end
  end

  {
    "after pgbus" => 'require "pgbus"; require "pgbus_native"',
    "before pgbus" => 'require "pgbus_native"; require "pgbus"',
    "alone" => 'require "pgbus_native"',
    "after pgbus has loaded its Presence" => 'require "pgbus"; Pgbus::Streams::Presence; require "pgbus_native"',
    "after pgbus has loaded everything" => 'require "pgbus"; Pgbus.loader.eager_load; require "pgbus_native"'
  }.each do |order, requires|
    it "makes Presence native when it is required #{order}" do
      script = <<~RUBY
        #{requires}
        puts whose_count, Pgbus::Native.enabled?, Pgbus::VERSION, $LOADED_FEATURES.grep(/streams.presence/).size
      RUBY

      expect(ruby(script).lines).to eq(%w[native true 0.18.0 1])
    end

    it "lets eager_load pass when it is required #{order}" do
      expect(ruby("#{requires}\nPgbus.loader.eager_load(force: true)\nputs whose_count").lines).to eq(["native"])
    end
  end

  it "lets Zeitwerk.eager_load_all pass" do
    script = 'require "pgbus_native"; Zeitwerk::Loader.eager_load_all; puts whose_count'

    expect(ruby(script).lines).to eq(["native"])
  end

  it "replaces every public method, of the class, its instances and Record" do
    script = <<~'RUBY'
      require "pgbus"
      presence = Pgbus::Streams::Presence
      singleton = presence.singleton_methods(false)
      instance = presence.public_instance_methods(false)
      record = presence::Record.singleton_methods(false)
      require "pgbus_native"
      puts instance.map { |name| whose(presence.instance_method(name)) }.uniq
      puts singleton.map { |name| whose(presence.method(name)) }.uniq
      puts record.map { |name| whose(presence::Record.method(name)) }.uniq
      puts presence::RECORD_COLUMNS, presence.text_array(["a"])
    RUBY

    expect(ruby(script).lines)
      .to eq(["native", "native", "native", "member_id, metadata, joined_at, last_seen_at", '{"a"}'])
  end

  it "goes on with the same class: who held it, or an instance of it, has native methods" do
    script = <<~'RUBY'
      require "pgbus"
      held, record = Pgbus::Streams::Presence, Pgbus::Streams::Presence::Record
      instance = held.new(Pgbus::Streams::Stream.new("room:1"))
      heir = Class.new(held)
      require "pgbus_native"
      puts held.equal?(Pgbus::Streams::Presence), record.equal?(Pgbus::Streams::Presence::Record)
      puts whose(instance.method(:count)), whose(heir.instance_method(:count))
    RUBY

    expect(ruby(script).lines).to eq(%w[true true native native])
  end

  it "keeps the signatures that libraries probe" do
    script = <<~'RUBY'
      require "pgbus_native"
      p Pgbus::Streams::Presence.instance_method(:join).parameters.include?([:key, :connection_id])
    RUBY

    expect(ruby(script).lines).to eq(["true"])
  end

  it "works through an instance that was there before" do
    SpecDatabase.table
    script = <<~'RUBY'
      require "active_record"
      require "pgbus"
      presence = Pgbus::Streams::Stream.new("room:1").presence
      require "pgbus_native"
      ActiveRecord::Base.establish_connection
      presence.join(member_id: 7, connection_id: "c1") { |record| "<p>#{record["id"]}</p>" }
      puts presence.count, Pgbus::Native.stats[:calls][:native]
    RUBY

    expect(ruby(script).lines.first(3)).to eq(["join room:1 7", "broadcast <p>7</p>", "1"])
    expect(SpecDatabase.sql("SELECT member_id FROM pgbus_presence_members")).to eq([{ "member_id" => "7" }])
  end

  it "takes any release of pgbus 0.18" do
    expect(ruby('require "pgbus_native"; puts whose_count', pgbus_fixture_version: "0.18.9").lines).to eq(["native"])
  end

  %w[0.17.2 0.19.0 0.180.0 1.0.18].each do |version|
    it "leaves pgbus #{version} as it is, with one warning that says why" do
      result = ruby('require "pgbus_native"; require "pgbus"; puts whose_count, Pgbus::Native.enabled?',
                    pgbus_fixture_version: version)

      expect(result.lines).to eq(%w[Ruby false])
      expect(result.err.lines.size).to eq(1)
      expect(result.err).to include("pgbus_native", version, "0.18")
    end
  end

  it "installs whatever the version with PGBUS_NATIVE=force, and says nothing" do
    result = ruby('require "pgbus_native"; puts whose_count, Pgbus::Native.enabled?',
                  pgbus_fixture_version: "0.19.0", pgbus_native: "force")

    expect(result.lines).to eq(%w[native true])
    expect(result.err).to be_empty
  end

  it "leaves pgbus as it is with PGBUS_NATIVE=0, and says nothing" do
    result = ruby('require "pgbus_native"; puts whose_count, Pgbus::Native.enabled?, Pgbus::Native::VERSION',
                  pgbus_native: "0")

    expect(result.lines).to eq(%w[Ruby false 0.18.0])
    expect(result.err).to be_empty
  end

  it "answers for its settings while it is off" do
    script = <<~'RUBY'
      require "pgbus_native"
      Pgbus::Native.configure { |config| config.pool_size = 2 }
      puts Pgbus::Native.with_route(:native) { whose_count }, Pgbus::Native.stats[:calls].values.sum
    RUBY

    expect(ruby(script, pgbus_native: "0").lines).to eq(%w[Ruby 0])
  end

  it "passes on what keeps pgbus itself from loading" do
    result = ruby('require "pgbus_native"', pgbus_fixture_broken: "1")

    expect(result.status).not_to be_success
    expect(result.err).to include("a_gem_that_is_missing")
  end

  it "says how to build the extension where it cannot be loaded" do
    without_extension do |lib|
      result = ruby('begin; require "pgbus_native"; rescue LoadError => e; puts e.message; end', lib:)

      expect(result.lines.join).to include("rake compile")
    end
  end

  it "needs no extension where it is switched off, or pgbus is another" do
    without_extension do |lib|
      expect(ruby('require "pgbus_native"; puts whose_count', lib:, pgbus_native: "0").lines).to eq(["Ruby"])
      expect(ruby('require "pgbus_native"; puts whose_count', lib:, pgbus_fixture_version: "0.19.0").lines)
        .to eq(["Ruby"])
    end
  end

  it "can be loaded when the extension has been built after a first attempt" do
    without_extension do |lib|
      script = <<~RUBY
        require "fileutils"
        begin
          require "pgbus_native"
        rescue LoadError
          FileUtils.cp(Dir["#{Scripts::ROOT}/lib/pgbus_native/*.{so,bundle}"], "#{lib}/pgbus_native")
        end
        require "pgbus_native"
        puts whose_count, Pgbus::Native.enabled?
      RUBY

      expect(ruby(script, lib:).lines).to eq(%w[native true])
    end
  end

  it "warns of nothing under ruby -w" do
    result = ruby('require "pgbus"; require "pgbus_native"; Pgbus.loader.eager_load; puts whose_count', "-w")

    expect(result.lines).to eq(["native"])
    expect(result.err.lines.grep(/pgbus/)).to be_empty
  end

  context "without pgbus" do
    before do
      Gem::Specification.find_by_name("pgbus")
      skip "pgbus is installed here, and a process without it cannot be had"
    rescue Gem::MissingSpecError
      nil
    end

    it "defines the class on its own" do
      script = 'require "pgbus_native"; puts whose_count, Pgbus::Native.enabled?, defined?(Pgbus::VERSION).inspect'

      expect(ruby(script, pgbus: false).lines).to eq(%w[native true nil])
    end

    it "needs only Pgbus.configuration and Pgbus.logger, and those when it is used" do
      SpecDatabase.table
      script = <<~'RUBY'
        require "active_record"
        require "pgbus_native"
        module Pgbus
          Settings = Struct.new(:connects_to) { def notify_presence_change(*) = puts("changed") }
          def self.configuration = @configuration ||= Settings.new
          def self.logger = nil
        end
        ActiveRecord::Base.establish_connection
        presence = Pgbus::Streams::Presence.new(Struct.new(:name).new("room:1"))
        puts presence.join(member_id: 7, connection_id: 1, metadata: { a: 1 })["metadata"]
        puts presence.count
      RUBY

      expect(ruby(script, pgbus: false).lines).to eq(["changed", { "a" => 1 }.to_s, "1"])
    end

    it "raises a ConfigurationError that asks for ActiveRecord where there is none" do
      script = <<~'RUBY'
        require "pgbus_native"
        module Pgbus
          def self.configuration = Struct.new(:connects_to).new
        end
        begin
          Pgbus::Streams::Presence.connection
        rescue Pgbus::ConfigurationError => e
          puts e.message, defined?(ActiveRecord::Base).inspect
        end
      RUBY

      expect(ruby(script, pgbus: false).lines).to match([/requires ActiveRecord/, "nil"])
    end

    it "warns of nothing under ruby -w" do
      result = ruby('require "pgbus_native"', "-w", pgbus: false)

      expect(result.lines).to be_empty
      expect(result.err.lines.grep(/pgbus/)).to be_empty
    end
  end
end
