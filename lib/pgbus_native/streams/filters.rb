# frozen_string_literal: true

module Pgbus
  # See presence.rb.
  module Streams
    # Who may see a broadcast: predicates by name, since a name can be sent to other processes. Safe on any thread.
    class Filters
      # @param logger [Logger, nil] Pgbus.logger if nil
      def initialize(logger: nil)
        @logger = logger
        @predicates = {}
      end

      # @param label [Symbol]
      # @param callable [#call, nil] or a block: called with a connection's context
      # @return [#call] the predicate
      # @raise [ArgumentError]
      def register(label, callable = nil, &block)
        raise ArgumentError, "a filter's name is a Symbol (got #{label.inspect})" unless label.is_a?(Symbol)

        predicate = callable || block
        raise ArgumentError, "a filter is something to call, or a block" unless predicate.respond_to?(:call)

        # Replaced, not changed: readers hold no lock.
        @predicates = @predicates.merge(label => predicate)
        predicate
      end

      # @param label [Symbol]
      # @return [#call, nil]
      def lookup(label)
        @predicates[label]
      end

      # Whoever is not known to be allowed sees nothing: a name that nobody has registered, and a predicate that raises,
      # are logged and mean no.
      #
      # @param label [Symbol, nil] nil for everybody
      # @param context [Object, nil] the connection's
      # @return [Boolean]
      def visible?(label, context)
        return true if label.nil?

        predicate = lookup(label)
        return predicate.call(context) ? true : false if predicate

        complain("there is no filter #{label.inspect}")
      rescue StandardError => e
        complain("filter #{label.inspect}: #{e.class}: #{e.message}")
      end

      private

      def complain(text)
        (@logger || Pgbus.logger)&.warn { "[pgbus_native] #{text}; the broadcast is not shown" }
        false
      end
    end

    @filters = Filters.new

    class << self
      # @return [Filters] this process's
      attr_reader :filters
    end
  end
end
