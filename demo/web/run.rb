# frozen_string_literal: true

require "active_record"
require "puma"
require "puma/log_writer"
require "puma/server"
require "pgbus_native/streams"
require_relative "../database"
require_relative "../pgbus"
require_relative "supervisor"

# bin/demo --web: who is in this room, on a page that two processes serve.

$stdout.sync = true
Pgbus.logger = Logger.new($stderr, level: Logger::WARN)
begin
  abort "FAILED: the native code is switched off (PGBUS_NATIVE)" unless Pgbus::Native.enabled?

  Demo::Database.open(ENV.fetch("DATABASE_URL")) do |database|
    puts "pgbus_native #{Pgbus::Native::VERSION}: who is in this room, PostgreSQL #{database.server_version}"
    Demo::Web::Supervisor.new($stdout).run
  end
rescue Interrupt
  # Ctrl-C is how it is meant to end.
  puts "", "Ended; nothing is left behind."
rescue Demo::Web::Failure, ActiveRecord::ActiveRecordError => e
  abort "FAILED: #{e.message}"
end
