# frozen_string_literal: true

require "tmpdir"
require "fileutils"

# A process, and a directory for its files, that do not outlive this process, even where this one is killed: it is the
# child of a keeper, which ends both when nobody holds the other end of its standard input any more.
class KeptProcess
  # Ends the whole group, for the child may have children; who does not listen for 10 s is killed. Arguments: the
  # directory and the command.
  KEEPER = <<~'SH'
    directory=$1
    shift
    # A shell's background processes do not listen to INT, unless they are made to.
    env --default-signal=INT "$@" >"$directory/log" 2>&1 </dev/null &
    child=$!
    echo $child >"$directory/pid.new"
    mv "$directory/pid.new" "$directory/pid"
    read -r _
    trap '' TERM
    kill -s TERM 0
    (sleep 10; kill -s KILL 0) &
    wait $child
    rm -rf "$directory"
    kill -s KILL 0
  SH

  # @return [String] for files of the process; gone afterwards
  attr_reader :directory

  # @yieldparam directory [String]
  # @yieldreturn [Array<String>] the command
  def initialize(environment = {}, **options)
    @directory = Dir.mktmpdir("pgbus_native_kept")
    command = yield(directory)
    reader, @life = IO.pipe
    @keeper = spawn(environment, "sh", "-c", KEEPER, "keeper", directory, *command,
                    in: reader, err: IO::NULL, pgroup: true, **options)
    reader.close
  end

  # @return [Integer, nil] the process's id, once it has one
  def pid
    File.read(File.join(directory, "pid")).to_i
  rescue Errno::ENOENT
    nil
  end

  # @return [String] what it has printed
  def log
    File.read(File.join(directory, "log")).scrub
  rescue Errno::ENOENT
    ""
  end

  # Ends it and removes the directory.
  def finish
    return if @life.closed?

    @life.close
    Process.wait(@keeper)
    FileUtils.rm_rf(directory) # what somebody was still writing when it was removed
  end
end
