# frozen_string_literal: true

# What the extension defines, for YARD, which does not read Rust. Nobody runs this file. sig/_inside/extension.rbs has
# the types. The modules are described in their own files.

# rubocop:disable Style/Documentation

# pgbus, of which this gem has what it accelerates, and what it adds.
module Pgbus
  module Native
    # Waits for cancel requests that are under way, before the process ends.
    #
    # @param seconds [Numeric] the longest wait
    # @return [nil]
    def self.finish_cancelling(seconds); end

    # The native connections of this process to one database.
    #
    # All methods may be called from any thread or fiber, and after a fork: the child has connections of its own.
    class Database
      # @param keywords [Hash{String => String}] see {ConnectionSettings#keywords}
      # @param session [Array<Array>] see {ConnectionSettings#session}
      # @param options [Hash] `prepared_statements:` and `local_times:` (Booleans), `pool_size:` (connections),
      #   `checkout_timeout:` and `gvl_grace:` (seconds, Floats); see {Configuration}
      # @return [Database] nothing is connected yet
      # @raise [UnsupportedError] if the native client cannot do what a keyword says
      # @raise [ActiveRecord::ConnectionNotEstablished] if a keyword means nothing
      def self.new(keywords, session, options); end

      # Runs a statement without the GVL; under a fiber scheduler other fibers run meanwhile. An exception that
      # arrives from outside (Timeout, Thread#raise) ends it at once and cancels the query.
      #
      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>] transcoded to UTF-8
      # @return [Array<Hash>, Array<String>, Integer] records, texts or a number, as {Statement#returns} says
      # @raise [PG::Error] of the server's SQLSTATE; PG::ConnectionBad if the connection breaks under it
      # @raise [ActiveRecord::ConnectionNotEstablished, ActiveRecord::NoDatabaseError] if there is none to be had
      # @raise [ActiveRecord::ConnectionTimeoutError] if all are busy for `checkout_timeout`
      # @raise [UnsupportedError] if it turns out, in connecting, that the native client cannot do what the server
      #   wants
      # @raise [ArgumentError] for text with a NUL byte
      def run(statement, params); end

      # {#run}, and puts `batch_size:` into a Hash and adds to its `retries:`, see {Events}.
      #
      # @param statement [Statement]
      # @param params [Array<String, Array<String>, nil>]
      # @param details [Hash{Symbol => Object}]
      # @return [Array<Hash>, Array<String>, Integer]
      # @raise [StandardError] as {#run}
      def run_with_details(statement, params, details); end

      # @return [Boolean] whether {#news} has something to say
      def news?; end

      # Takes what there is for the log.
      #
      # @return [Array<Array(Symbol, Object)>] `[:lost, reason]` once for each outage, `[:back, seconds]` at its end
      def news; end

      # @return [Hash{Symbol => Integer}] of this process: `busy:`, `connections:` and `waiting:` now; `calls:`,
      #   `retries:`, `connects:` and `batched:` so far
      def stats; end

      # Closes the connections that no call is using.
      #
      # @return [nil]
      def close_idle; end
    end

    # The connections of a {Streamer}: the core keeps them, on a thread of its own. In a forked child everything is
    # refused.
    class Hub
      # Starts its thread.
      #
      # @param settings [Hash{Symbol => Object}] `heartbeat:`, `write_deadline:` and `idle_timeout:` (seconds, Floats),
      #   `heartbeat_frame:` and `shutdown_frame:` (Strings)
      # @return [Hub]
      # @raise [RuntimeError] if the system has no thread left
      def self.new(settings); end

      # Has the seats looked after on a database's native connections, by a thread of the core.
      #
      # @param database [Database]
      # @return [nil]
      # @raise [RuntimeError] if the system has no thread left
      def keep_seats(database); end

      # Hears what other processes broadcast.
      #
      # @param database [Database] by way of which
      # @return [nil]
      def listen(database); end

      # Takes a connection in. Its client gets the greeting as soon as its seat is joined.
      #
      # @param id [String]
      # @param stream [String]
      # @param member [Array(String, String, String), nil] see {Streamer::Member.of}
      # @param greeting [String] a frame
      # @param socket [Array(Integer, Boolean), nil] its descriptor, of which a copy is made, and whether the core
      #   writes on it or only watches it; nil if there is none
      # @return [Boolean] false after {#shut_down}
      # @raise [IOError] if the descriptor cannot be copied
      # @raise [ArgumentError] for text that is not valid
      def register(id, stream, member, greeting, socket); end

      # @return [Boolean] whether it is shut down, or that of the process that this one was forked from
      def closed?; end

      # @return [Integer] how many connections there are
      def size; end

      # @param id [String]
      # @return [Boolean] whether it has arrived, and not gone
      def open?(id); end

      # @param stream [String, nil] nil for all
      # @return [Array<String>] the ids of those that have arrived
      def open_ids(stream); end

      # Writes it to this process's connections.
      #
      # @param broadcast [Broadcast]
      # @return [Boolean] false after {#shut_down}
      def broadcast(broadcast); end

      # @param broadcast [Broadcast]
      # @return [Array<String>] what other processes are to be told, in order
      def message(broadcast); end

      # @param question [Integer] its number
      # @param ids [Array<String>] of those who may see the broadcast
      # @return [nil]
      def answer(question, ids); end

      # @param id [String]
      # @param frame [String] written behind those that wait
      # @return [Boolean] false if there is no such connection
      def write(id, frame); end

      # @param id [String]
      # @return [Boolean] false if there is no such connection
      def close(id); end

      # Waits until there is something to be done at once. For one thread.
      #
      # @return [Array<Array>, nil] `[:gone, id]`, `[:write, id, frame]`, `[:take_seats]` and
      #   `[:log, level, text]`; nil after the end
      def next_events; end

      # Waits until there is something to report. For one thread.
      #
      # @return [Array<Array>, nil] `[:join or :leave, stream, id, member, seat]` and `[:expire]`; nil after the end
      def next_changes; end

      # Waits until a filter is asked. For one thread.
      #
      # @return [Array<Array>, nil] `[number, filter, ids]`; nil after the end
      def next_questions; end

      # Makes the caller the one who looks after the seats.
      #
      # @return [Integer] for {#next_work}
      def take_seats; end

      # Waits until there is some. For one thread.
      #
      # @param number [Integer]
      # @return [SeatWork, nil] nil if another has taken the seats, and after the end
      def next_work(number); end

      # @param work [SeatWork]
      # @param outcomes [Array<Boolean, String, Array(String)>] for each seat whether it was there, why that is not
      #   known, or why the server does not take it
      # @return [nil]
      def work_done(work, outcomes); end

      # Tells all clients that it is over, lets the seats leave and closes everything.
      #
      # @param seconds [Float] at most
      # @return [nil]
      def shut_down(seconds); end
    end

    # A frame for all connections of a stream, as the core has it: what is said of it is converted once.
    class Broadcast
      # @param stream [String]
      # @param frame [String]
      # @param exclude [Array<String>] ids
      # @param visible_to [String, nil] a filter, for {Hub#next_questions}
      # @return [Broadcast]
      # @raise [ArgumentError] for text that is not valid
      def self.new(stream, frame, exclude, visible_to); end
    end

    # A statement's worth of work for seats.
    class SeatWork
      # @return [Array<String>] of the connections
      def ids; end

      # @return [Array(Statement, Array)] what does it for all of them, and its parameters
      def batch; end

      # @return [Array<Array(Statement, Array)>] what does it for each of them
      def each; end
    end

    # An SQL statement. There are no others than the constants of {Statements}.
    class Statement
      # @return [String] that of its constant
      def name; end

      # @return [String] with `$1`, `$2` ... for its parameters
      def sql; end

      # @return [Symbol] `:records`, `:texts` (the first column), `:number` (the first column of the one row) or
      #   `:changes` (how many rows it has changed)
      def returns; end
    end

    # Every statement, a {Statement} each, by its name in src/statements.rs.
    module Statements
    end
  end
end
# rubocop:enable Style/Documentation
