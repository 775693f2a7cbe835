# frozen_string_literal: true

require "fileutils"
require "open3"
require "pg"
require "rbconfig"
require "securerandom"
require "tmpdir"
require "uri"

# A small Rails application in a folder of its own, with this gem and a stand-in for the gem pgbus, run as people run
# one: by its own commands, each in a process of its own.
class RailsApp
  ROOT = File.expand_path("../..", __dir__)
  # Seconds after which a command that hangs is killed.
  DEADLINE = 90

  SPRING = ["-e", "load Gem.bin_path(\"spring\", \"spring\")", "--"].freeze
  private_constant :SPRING

  Result = Data.define(:out, :err, :status) do
    # What it printed, a line each, once it has ended well.
    def lines
      raise "#{status}\n#{out}\n#{err}" unless status.success?

      out.lines(chomp: true)
    end
  end

  # Gives the block an application, which is closed afterwards.
  def self.open(...)
    app = new(...)
    yield app
  ensure
    app&.close
  end

  # @return [String] where it is
  attr_reader :folder

  # @param gems [Array<String>] in the order in which Bundler would require them
  # @param bundler [Boolean] whether Bundler does it, by a Gemfile, or the application itself
  # @param boot [String] what config/boot.rb ends with
  def initialize(gems: %w[pgbus pgbus_native], bundler: false, boot: "")
    @folder = Dir.mktmpdir
    @databases = []
    stand_in_for_pgbus
    bundler ? gemfile(gems, boot) : load_path(boot)
    application(bundler ? "Bundler.require(*Rails.groups)" : gems.map { |gem| "require #{gem.dump}" }.join("\n"))
    commands
  end

  # Writes a file of the application.
  def write(path, text)
    path = File.join(folder, path)
    FileUtils.mkdir_p(File.dirname(path))
    File.write(path, text)
  end

  def read(path)
    File.read(File.join(folder, path))
  end

  # The files that a pattern finds, by their paths in the application.
  def files(pattern)
    Dir.glob(pattern, base: folder).sort
  end

  # Runs one of the commands in bin/. `environment` is what it gets besides this process's, a nil takes away.
  def bin(name, *arguments, stdin: "", env: "development", **environment)
    run([RbConfig.ruby, "bin/#{name}", *arguments], environment_of(rails_env: env, **environment), stdin)
  end

  def rails(...)
    bin("rails", ...)
  end

  # Runs the block with a Spring server, which has the environment. Its commands are those of #spring.
  def with_spring(**environment)
    log = File.join(folder, "log/spring.log")
    FileUtils.mkdir_p(File.dirname(log))
    environment = environment_of(disable_spring: nil, spring_tmp_path: File.join(folder, "tmp/spring"),
                                 spring_log: log, **environment)
    server = spawn(environment, RbConfig.ruby, *SPRING, "server", chdir: folder, %i[out err] => log)
    yield ->(*arguments) { run([RbConfig.ruby, *SPRING, *arguments], environment) }
  ensure
    Process.kill(:TERM, server)
    Process.wait(server)
  end

  # Boots the application as a server does, and runs Ruby code in it. Unlike the runner it loads nothing on its own.
  def boot(code = "", env: "development", **environment)
    run([RbConfig.ruby, "-r", "./config/environment", "-e", code], environment_of(rails_env: env, **environment))
  end

  # Runs Ruby code by the command `rails runner`.
  def runner(code, **options)
    rails("runner", code, **options)
  end

  # This gem's lines in the log.
  def log_lines(env: "development")
    path = File.join(folder, "log/#{env}.log")
    File.exist?(path) ? File.readlines(path, chomp: true).grep(/\[pgbus_native\]/) : []
  end

  # The URL of a database that nobody has yet; it is dropped at the end.
  def database_url
    name = "pgbus_native_rails_#{Process.pid}_#{SecureRandom.hex(4)}"
    @databases << name
    URI.parse(ENV.fetch("DATABASE_URL")).tap { |uri| uri.path = "/#{name}" }.to_s
  end

  # Removes it, and its databases.
  def close
    FileUtils.rm_rf(folder)
    return if @databases.empty?

    server = PG.connect(ENV.fetch("DATABASE_URL"))
    server.exec("SET client_min_messages = 'warning'")
    @databases.each { |name| server.exec("DROP DATABASE IF EXISTS #{name} WITH (FORCE)") }
  ensure
    server&.close
  end

  private

  def environment_of(**environment)
    { rails_env: "development", pgbus_native: nil, database_url: nil, disable_spring: "1",
      bundle_gemfile: @gemfile || ENV.fetch("BUNDLE_GEMFILE", nil), **environment }
      .transform_keys { |name| name.to_s.upcase }
  end

  def run(command, environment, stdin = "")
    Open3.popen3(environment, *command, chdir: folder, pgroup: true) do |input, out, err, process|
      readers = [out, err].map { |pipe| Thread.new { pipe.read } }
      write_to(input, stdin)
      unless process.join(DEADLINE)
        Process.kill(:KILL, -process.pid)
        raise "still running after #{DEADLINE} s: #{command.join(" ")}\n#{readers.map(&:value).join("\n")}"
      end
      Result.new(out: readers[0].value, err: readers[1].value, status: process.value)
    end
  end

  # What ends without reading may have ended.
  def write_to(input, text)
    input.write(text)
  rescue Errno::EPIPE
    nil
  ensure
    input.close
  end

  # The fixture, as a gem that a Rails application meets: with an engine, and a record class of its own.
  def stand_in_for_pgbus
    FileUtils.mkdir_p(File.join(folder, "vendor/pgbus"))
    FileUtils.cp_r(File.join(ROOT, "spec/fixtures/pgbus/lib"), File.join(folder, "vendor/pgbus"))
    write("vendor/pgbus/lib/pgbus/engine.rb", <<~RUBY)
      module Pgbus
        class Engine < ::Rails::Engine
          isolate_namespace Pgbus
        end
      end
    RUBY
    write("vendor/pgbus/lib/pgbus/bus_record.rb", <<~RUBY)
      module Pgbus
        class BusRecord < ::ActiveRecord::Base
          self.abstract_class = true
          connects_to(**Pgbus.configuration.connects_to) if Pgbus.configuration.connects_to
        end
      end
    RUBY
    loads_engine = "Pgbus::Engine if defined?(Rails::Engine)"
    write("vendor/pgbus/lib/pgbus.rb", "#{read("vendor/pgbus/lib/pgbus.rb")}\n#{loads_engine}\n")
    write("vendor/pgbus/pgbus.gemspec", <<~RUBY)
      Gem::Specification.new("pgbus", "0.18.0") do |spec|
        spec.summary = "A stand-in"
        spec.authors = ["pgbus_native contributors"]
        spec.files = Dir["lib/**/*.rb"]
      end
    RUBY
  end

  def gemfile(gems, boot)
    @gemfile = File.join(folder, "Gemfile")
    paths = { "pgbus" => File.join(folder, "vendor/pgbus"), "pgbus_native" => ROOT }
    lines = gems.map { |gem| "gem #{gem.dump}, path: #{paths[gem].inspect}" }
    # The version that these specs run with, of those that are installed.
    write("Gemfile", ["gem \"railties\", \"#{ActiveRecord.gem_version}\"", *lines, ""].join("\n"))
    write("config/boot.rb", "require \"bundler/setup\"\n#{boot}")
  end

  def load_path(boot)
    write("config/boot.rb", <<~RUBY)
      $LOAD_PATH.unshift(#{File.join(ROOT, "lib").dump}, #{File.join(folder, "vendor/pgbus/lib").dump})
      #{boot}
    RUBY
  end

  def application(requires)
    write("config/application.rb", <<~RUBY)
      require_relative "boot"
      require "rails"
      require "active_record/railtie"
      require "action_controller/railtie"
      #{requires}

      module SmallApp
        class Application < Rails::Application
          config.load_defaults(Rails::VERSION::STRING.to_f)
          config.secret_key_base = "0" * 64
          config.enable_reloading = Rails.env.development?
          config.eager_load = Rails.env.production?
        end
      end
    RUBY
    write("config/environment.rb", "require_relative \"application\"\nRails.application.initialize!\n")
    write("config/routes.rb", "Rails.application.routes.draw { get \"up\", to: \"rooms#show\" }\n")
    write("config/database.yml", "default: &default\n  adapter: postgresql\ndevelopment:\n  <<: *default\n" \
                                 "production:\n  <<: *default\n")
    write("app/controllers/rooms_controller.rb", <<~RUBY)
      class RoomsController < ActionController::Base
        PRESENCE = Pgbus::Streams::Presence

        def show = render(plain: PRESENCE.new(Pgbus::Streams::Stream.new("room")).count.to_s)
      end
    RUBY
  end

  def commands
    write("bin/rails", <<~RUBY)
      APP_PATH = File.expand_path("../config/application", __dir__)
      require_relative "../config/boot"
      require "rails/commands"
    RUBY
    write("bin/rake", "require_relative \"../config/boot\"\nrequire \"rake\"\nRake.application.run\n")
    # As Sprockets and Propshaft have it.
    write("Rakefile", <<~RUBY)
      require_relative "config/application"
      Rails.application.load_tasks
      task("assets:precompile" => :environment) { puts "precompiled" }
    RUBY
  end
end
