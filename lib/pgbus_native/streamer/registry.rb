# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # The connections of this process. What a method answers is of that moment. Safe on any thread.
      class Registry
        # @param hub [Hub] which knows who has arrived
        def initialize(hub)
          @hub = hub
          # Changed by single calls that Ruby makes one after the other, and never walked through.
          @connections = {}
        end

        # How many connections there are. Those that are only arriving count, so that a limit holds for a crowd, too.
        #
        # @return [Integer]
        def size
          @hub.size
        end

        # @yieldparam connection [Pgbus::Web::Streamer::Connection] each that has arrived: its seat is joined
        # @return [void]
        def each_connection(&)
          found(@hub.open_ids(nil)).each(&)
          nil
        end

        # @param stream_name [String]
        # @return [Array<Pgbus::Web::Streamer::Connection>] those on a stream that have arrived
        def connections_for(stream_name)
          found(@hub.open_ids(stream_name.to_s))
        end

        # @param id [String]
        # @return [Pgbus::Web::Streamer::Connection, nil] if it has arrived
        def lookup(id)
          @connections[id] if @hub.open?(id.to_s)
        end

        # @param stream_name [String]
        # @return [Boolean] whether nobody has arrived there
        def empty?(stream_name)
          @hub.open_ids(stream_name.to_s).empty?
        end

        # @return [Boolean] false if there is one with its id
        # @api private
        def add(connection)
          (@connections[connection.id] ||= connection).equal?(connection)
        end

        # @api private
        def remove(id)
          @connections.delete(id)
        end

        # @api private
        def [](id)
          @connections[id]
        end

        private

        def found(ids)
          ids.filter_map { |id| @connections[id] }
        end
      end
    end
  end
end
