# frozen_string_literal: true

require "rbconfig"
require_relative "kept_process"

# bin/demo --web, as bin/demo runs it inside bin/env.
class WebDemo
  ROOT = File.expand_path("../..", __dir__)

  # As it prints them.
  SERVER = %r{server (\w)\s+(http://\S+)\s+process (\d+)}

  def initialize(url)
    environment = { "DATABASE_URL" => url, "PGBUS_NATIVE" => nil }
    @process = KeptProcess.new(environment, chdir: ROOT) { [RbConfig.ruby, "-Ilib", "demo/web/run.rb"] }
  end

  # @return [Integer, nil] the process that Ctrl-C is for
  def pid
    @process.pid
  end

  # @return [String] what it has printed
  def log
    @process.log
  end

  # Whether it says how to go on.
  def ready?
    log.include?("Ctrl-C")
  end

  # @return [Hash{String => String}] the addresses of the servers, by name
  def addresses
    servers.to_h { |name, address, _| [name, address] }
  end

  # @return [Hash{String => Integer}] their processes, by name: those printed last
  def processes
    servers.to_h { |name, _, process| [name, process.to_i] }
  end

  def stop
    @process.finish
  end

  private

  def servers
    log.scan(SERVER)
  end
end
