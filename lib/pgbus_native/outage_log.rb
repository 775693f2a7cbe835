# frozen_string_literal: true

module Pgbus
  module Native
    # Tells the log when a database is out of reach: once for each outage, and once when it is over.
    module OutageLog
      # @param database [String] its name in the configuration
      # @param news [Array<Array(Symbol, Object)>] see {Database#news}
      # @return [void]
      def self.write(database, news)
        news.each do |kind, value|
          case kind
          when :lost
            Pgbus.logger&.warn("[pgbus_native] lost the connection to database #{database.inspect}: #{value}. Calls " \
                               "connect again by themselves; the rest of this outage is not logged.")
          when :back
            Pgbus.logger&.info("[pgbus_native] database #{database.inspect} answers again, " \
                               "#{value.round(3)} s after it was lost.")
          end
        end
      end
    end
  end
end
