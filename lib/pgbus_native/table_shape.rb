# frozen_string_literal: true

module Pgbus
  module Native
    # The presence table has seats or it has none yet, and a migration may change that under a running process.
    module TableShape
      # Yields whether the table has seats. If the statement chosen by it does not fit the table, which has then
      # changed since it was last looked at, looks again and yields once more; such a statement has had no
      # effect.
      #
      # @param presence [Class] whose `seats_supported?` answers
      # @yieldparam seats [Boolean]
      # @return [Object] what the block returns
      # @raise [PG::InvalidColumnReference, PG::UndefinedColumn] if it does not fit the second time either
      def self.choose(presence)
        yield presence.seats_supported?
      rescue PG::InvalidColumnReference, PG::UndefinedColumn
        presence.reset_schema_cache!
        yield presence.seats_supported?
      end
    end
  end
end
