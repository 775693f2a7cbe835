# frozen_string_literal: true

require_relative "support/gem_home"
require_relative "support/scripts"

# What a user gets, who has no checkout.
RSpec.describe "The packaged gem" do
  include Scripts

  around do |example|
    GemHome.make do |home|
      example.metadata[:home] = home
      example.run
    end
  end

  let(:home) { |example| example.metadata[:home] }

  # Files of the checkout below some folders, but for what was compiled there.
  def files_of(*folders)
    Dir.glob("{#{folders.join(",")}}/**/*", base: GemHome::ROOT).reject do |path|
      File.directory?(File.join(GemHome::ROOT, path)) || path.end_with?(".so", ".bundle")
    end
  end

  # Presence in an application: what it answers, how, and from which files.
  def use_presence(**environment)
    SpecDatabase.table
    home.run_in_application(<<~'RUBY', **environment)
      presence = Pgbus::Streams::Presence.new(Struct.new(:name).new("room:42"))
      joined = presence.join(member_id: 7, connection_id: "c1", metadata: { name: "Ada" })
      members = presence.members.map { |record| record["id"] }
      presence.leave(connection_id: "c1")
      puts JSON.generate(joined: joined["metadata"], members:, left: presence.count,
                         native: Pgbus::Native.stats[:calls][:native], features: $LOADED_FEATURES)
    RUBY
  end

  def expect_presence(answers, from:)
    expect(answers).to include("joined" => { "name" => "Ada" }, "members" => ["7"], "left" => 0, "native" => be >= 4)
    own, others = answers["features"].partition { |path| path.match?(%r{/pgbus_native(?:/|\.(?:rb|so|bundle)\z)}) }
    expect(own).to include(end_with("/pgbus_native.rb"), match(/native\.(so|bundle)\z/)).and all(start_with(from))
    expect(others.grep(%r{\A#{Regexp.escape(GemHome::ROOT)}/(?!vendor/)})).to be_empty
  end

  # The checkout as somebody has it who is to make a precompiled gem of it.
  def checkout
    folder = File.join(home.directory, "checkout")
    Gem::Package.new(home.build).extract_files(folder)
    FileUtils.cp(%w[Rakefile pgbus_native.gemspec].map { |name| File.join(GemHome::ROOT, name) }, folder)
    folder
  end

  it "holds what runs, what it is compiled from, its signatures and what people read, and nothing else" do
    contents = Gem::Package.new(home.build).contents

    expect(contents).to match_array(
      [*files_of("lib", "src", "ext"), *files_of("sig").reject { |path| path.start_with?("sig/_") },
       "Cargo.toml", "Cargo.lock", "README.md", "CHANGELOG.md", "LICENSE", "THIRD_PARTY_LICENSES.md"]
    )
  end

  it "is compiled where it is installed, from nothing but itself and the crates of Cargo.lock, and runs", :slow do
    home.fetch_crates
    installed = home.install(home.build)
    answers = use_presence

    expect_presence(answers, from: home.gems)
    expect(File.read(File.join(installed, "Cargo.lock"))).to eq(File.read(File.join(GemHome::ROOT, "Cargo.lock")))
    # What compiling leaves behind is a hundred times as large as the gem.
    expect(Dir[File.join(home.gems, "**/*.{rlib,rmeta,o,d}")]).to be_empty
  end

  it "can be precompiled: for its Ruby alone, without sources, installed without Rust", :slow do
    home.fetch_crates
    folder = checkout
    home.run(RbConfig.ruby, Gem.bin_path("rake", "rake"), "rb_sys:env:dev", "native", "gem", chdir: folder)
    packages = Dir[File.join(folder, "pkg/*.gem")]
    expect(packages.size).to eq(1)
    spec = Gem::Package.new(packages.first).spec

    expect(spec.platform).to eq(Gem::Platform.new(RUBY_PLATFORM))
    expect(spec.extensions).to be_empty
    expect(spec.dependencies.map(&:name)).to match_array(%w[activerecord pg])
    expect(spec.required_ruby_version).to be_satisfied_by(Gem.ruby_version)
    expect(spec.required_ruby_version).not_to be_satisfied_by(Gem.ruby_version.bump)
    expect(spec.files - files_of("lib", "sig"))
      .to match_array(%w[README.md CHANGELOG.md LICENSE THIRD_PARTY_LICENSES.md lib/pgbus_native/pgbus_native.so])
    # No program but Ruby's own is within reach.
    home.install(packages.first, PATH: File.join(home.directory, "nothing"))
    expect_presence(use_presence, from: home.gems)
  end

  it "takes the extension for this Ruby from a precompiled gem that has several, not one that lies beside" do
    lib = File.join(home.directory, "lib")
    FileUtils.cp_r(File.join(GemHome::ROOT, "lib"), home.directory)
    for_this_ruby = File.join(lib, "pgbus_native", RUBY_VERSION[/\A\d+\.\d+/])
    FileUtils.mkdir_p([for_this_ruby, File.join(lib, "pgbus_native/9.9")])
    extension = Dir[File.join(lib, "pgbus_native/pgbus_native.{so,bundle}")].first
    FileUtils.cp(extension, for_this_ruby)
    File.write(extension, "an extension for another Ruby")
    FileUtils.cp(extension, File.join(lib, "pgbus_native/9.9"))

    loaded = ruby('require "pgbus_native"; puts whose_count, $LOADED_FEATURES.grep(/pgbus_native.(so|bundle)\z/)', lib:)
    expect(loaded.lines).to eq(["native", File.join(for_this_ruby, File.basename(extension))])
  end

  it "says what is missing where there is no Rust to compile it, and does not go and fetch it" do
    extconf = File.join(GemHome::ROOT, "ext/pgbus_native/extconf.rb")
    nothing = File.join(home.directory, "nothing")

    expect { home.run(RbConfig.ruby, extconf, environment: { PATH: nothing, CARGO: nil, SOURCE_DATE_EPOCH: "0" }) }
      .to raise_error(RuntimeError, /cargo is missing.*Rust and cargo 1\.85/m)
    expect(File).not_to exist(File.join(home.directory, "Makefile"))
  end
end
