# frozen_string_literal: true

module Pgbus
  module Native
    # A sweep's cutoff as text that the server reads as the same instant, whatever the session's time zone.
    module Cutoff
      # @param cutoff [Time, ActiveSupport::TimeWithZone, DateTime, String, nil] a String goes to the server as
      #   it is; without an offset it is read in the session's time zone
      # @return [String, nil]
      def self.text(cutoff)
        case cutoff
        when nil then nil
        # A DateTime is a Date as well, but an instant.
        when Time, DateTime then instant(cutoff.to_time)
        else cutoff.to_s
        end
      end

      # Rounded up to whole microseconds, in which the server counts: the same rows are older.
      def self.instant(time)
        time = time.getutc.ceil(6)
        year = time.year
        return "#{time.strftime("%Y-%m-%d %H:%M:%S.%6N")}+00" if year.positive?

        # PostgreSQL counts years before 1 as BC.
        format("%<year>04d%<rest>s+00 BC", year: 1 - year, rest: time.strftime("-%m-%d %H:%M:%S.%6N"))
      end
      private_class_method :instant
    end
  end
end
