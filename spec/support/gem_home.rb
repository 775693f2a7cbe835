# frozen_string_literal: true

require "fileutils"
require "json"
require "open3"
require "rbconfig"
require "rubygems/package"
require "tmpdir"

# A GEM_HOME that is empty at first, on the machine of somebody who has no checkout: nothing in the environment
# leads to this one, and there is no network. The gems that pgbus_native depends on are this machine's.
class GemHome
  ROOT = File.expand_path("../..", __dir__)

  # Whatever tells RubyGems, Bundler, rb_sys and Cargo where this checkout and its builds are.
  LEADS_HERE = /\A(RUBYLIB|RUBYOPT|BUNDLE|BUNDLER|RB_SYS|CARGO_TARGET|CARGO_BUILD|SOURCE_DATE_EPOCH|MAKEFLAGS|PGBUS)/

  # A Rails application with nothing in it, as `rails new --minimal` might leave it. What pgbus would bring is here.
  APPLICATION = <<~RUBY
    require "rails"
    require "active_record/railtie"
    require "pgbus_native"

    module Pgbus
      Settings = Struct.new(:connects_to) { def notify_presence_change(*) = nil }

      def self.configuration = @configuration ||= Settings.new
      def self.logger = Rails.logger
    end

    class EmptyApplication < Rails::Application
      config.root = File.expand_path("..", __dir__)
      config.load_defaults Rails::VERSION::STRING.to_f
      config.eager_load = true
      config.logger = ActiveSupport::Logger.new(IO::NULL)
    end

    EmptyApplication.initialize!
  RUBY

  attr_reader :directory

  # Gives a new one to the block; it is gone afterwards.
  def self.make
    Dir.mktmpdir("gem_home") { |directory| yield new(File.realpath(directory)) }
  end

  def initialize(directory)
    @directory = directory
  end

  # Builds the gem of this checkout; its path.
  def build
    path = File.join(directory, "pgbus_native.gem")
    run(*gem_command, "build", "pgbus_native.gemspec", "--output", path, chdir: ROOT)
    path
  end

  # Installs a gem file, without a network; the installed gem's folder.
  def install(path, **environment)
    run(*without_network, *gem_command, "install", "--local", "--no-document", path,
        environment: { CARGO_NET_OFFLINE: "true", **environment })
    Dir[File.join(gems, "gems/pgbus_native-*")].then { |found| found.one? ? found.first : raise("found #{found}") }
  end

  # Puts the crates of Cargo.lock that this machine needs where Cargo finds them without a network.
  def fetch_crates
    host = run("rustc", "-vV")[/^host: (\S+)/, 1]
    run("cargo", "fetch", "--locked", "--target", host, chdir: ROOT)
  end

  # Runs the script in an empty Rails application; what it printed as JSON.
  def run_in_application(script, **environment)
    FileUtils.mkdir_p(File.join(directory, "app/config"))
    File.write(File.join(directory, "app/config/application.rb"), APPLICATION)
    environment = { RAILS_ENV: "production", SECRET_KEY_BASE: "0" * 32, **environment }
    script = "require './config/application'\n#{script}"
    output = run(RbConfig.ruby, "-e", script, chdir: File.join(directory, "app"), environment:)
    JSON.parse(output.lines.last)
  end

  # Runs a command to its end and gives what it printed.
  #
  # @raise [RuntimeError] with all of it, if it failed
  def run(*command, chdir: directory, environment: {})
    output, status = Open3.capture2e(self.environment.merge(environment.transform_keys(&:to_s)), *command, chdir:)
    raise "#{command.join(" ")}: #{status}\n#{output}" unless status.success?

    output
  end

  # The folder that RubyGems takes for GEM_HOME.
  def gems
    File.join(directory, "gems")
  end

  private

  def environment
    cleared = ENV.keys.grep(LEADS_HERE).to_h { |name| [name, nil] }
    cleared.merge("GEM_HOME" => gems, "GEM_PATH" => [gems, *Gem.path].join(File::PATH_SEPARATOR),
                  "DATABASE_URL" => SpecDatabase.url)
  end

  def gem_command
    [RbConfig.ruby, File.join(RbConfig::CONFIG["bindir"], "gem")]
  end

  # Where the system lets us, the command sees no network at all; elsewhere only Cargo is told not to use it.
  def without_network
    unshare = ENV.fetch("PATH").split(File::PATH_SEPARATOR).map { |folder| File.join(folder, "unshare") }
                 .find { |path| File.executable?(path) }
    works = unshare && system(unshare, "--net", RbConfig.ruby, "-e", "", %i[out err] => IO::NULL)
    works ? [unshare, "--net"] : []
  end
end
