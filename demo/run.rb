# frozen_string_literal: true

require "active_record"
require "pgbus_native"
require_relative "database"
require_relative "play"
require_relative "room"
require_relative "worker"
require_relative "supervisor"
require_relative "screen"
require_relative "timing"
require_relative "summary"

# The play, the timing and what came of them, on the terminal.
def demonstrate(database)
  screen = Demo::Screen.new($stdout, "pgbus_native #{Pgbus::Native::VERSION}: presence on #{Demo::WORKERS.size} " \
                                     "processes, PostgreSQL #{database.server_version}")
  supervisor = Demo::Supervisor.new(screen)
  supervisor.run
  puts "", "Timing each kind of call for #{Demo::Timing::SECONDS} s ..."
  puts Demo::Summary.new(screen, supervisor, Demo::Timing.new.run(database))
ensure
  screen&.close
end

$stdout.sync = true
Pgbus.configuration = Demo::Configuration.new
begin
  raise Demo::Failure, "the native code is switched off (PGBUS_NATIVE)" unless Pgbus::Native.enabled?

  Demo::Database.open(ENV.fetch("DATABASE_URL")) { |database| demonstrate(database) }
  puts "", "Everything was as it must be."
rescue Demo::Failure, ActiveRecord::ActiveRecordError => e
  abort "FAILED: #{e.message}"
rescue Interrupt
  warn "Interrupted."
  exit 130
rescue Errno::EPIPE
  # Nobody reads on, in `bin/demo | head` for one.
  exit 1
end
