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
