# frozen_string_literal: true

require "pg"

module Bench
  # The server under test: the user's, or a throwaway one with PostgreSQL's own defaults, on a disk. The one that
  # bin/env starts for tests would not do, since to it nothing is ever durable.
  module Server
    # What bin/env's servers leave out. A commit waits for the disk with these.
    DURABLE = { "fsync" => "on", "synchronous_commit" => "on", "full_page_writes" => "on" }.freeze
    # /tmp may be memory.
    DIRECTORY = "/var/tmp"

    # Yields the server's URL.
    #
    # @param url [String] of the user's server; empty if there is none
    # @param settings [Hash{String => String}] for a server of our own, beside {DURABLE}
    def self.open(url, settings = {}, &)
      url.empty? ? throwaway(settings, &) : yield(url)
    end

    # The keeper ends the server when its standard input closes, also if this process is killed.
    def self.throwaway(settings)
      command = ["bin/support/keeper", "bench-#{Process.pid}", ENV.fetch("PGBUS_NATIVE_PG_BIN")]
      keeper = IO.popen([{ "TMPDIR" => DIRECTORY }, *command], "r+")
      url = keeper.gets&.chomp or raise "no PostgreSQL could be started"
      configure(url, DURABLE.merge(settings))
      yield url
    ensure
      keeper&.close
    end
    private_class_method :throwaway

    def self.configure(url, settings)
      connection = PG.connect(url)
      settings.each { |name, value| connection.exec("ALTER SYSTEM SET #{name} = '#{value}'") }
      connection.exec("SELECT pg_reload_conf()")
    ensure
      connection&.close
    end
    private_class_method :configure
  end
end
