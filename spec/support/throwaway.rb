# frozen_string_literal: true

require "fileutils"
require "tmpdir"

# A directory for a server of the examples' own. Server and directory are gone afterwards, also when this process
# is killed: a keeper outlives it and cleans up.
class Throwaway
  # Waits until nobody holds the other end of its standard input any more. Arguments: the directory to remove and
  # the command to run before.
  KEEPER = <<~'SH'
    directory=$1
    shift
    trap '' INT HUP
    trap 'exit 1' TERM
    trap '"$@" >/dev/null 2>&1; rm -rf "$directory"' EXIT
    read -r _
  SH

  class << self
    # How the servers' user runs a program: they refuse to run as root.
    def as_its_user
      Process.uid.zero? ? %w[runuser -u postgres --] : []
    end

    # Makes a file the servers', as they demand of their secrets.
    def own(path)
      FileUtils.chmod(0o600, path)
      FileUtils.chown("postgres", "postgres", path) if Process.uid.zero?
    end
  end

  attr_reader :directory

  # @yieldparam directory [String]
  # @yieldreturn [Array<String>] the command that stops the server
  def initialize
    @directory = Dir.mktmpdir("pgbus_native_server")
    FileUtils.chown("postgres", "postgres", directory) if Process.uid.zero?
    FileUtils.chmod(0o755, directory)
    reader, @life = IO.pipe
    stop = [*self.class.as_its_user, *yield(directory)]
    @keeper = spawn("sh", "-c", KEEPER, "keeper", directory, *stop, in: reader, pgroup: true, chdir: "/")
    reader.close
  end

  # Stops the server and removes the directory.
  def remove
    @life.close
    Process.wait(@keeper)
  end
end
