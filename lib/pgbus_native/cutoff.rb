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
        when Time then instant(cutoff.getutc)
        when DateTime then instant(utc(cutoff.new_offset(0)))
        else cutoff.to_s
        end
      end

      # Rounded up to whole microseconds, in which the server counts: the same rows are older.
      def self.instant(time)
        time = time.ceil(6)
        year = time.year
        return "#{time.strftime("%Y-%m-%d %H:%M:%S.%6N")}+00" if year.positive?

        # PostgreSQL counts years before 1 as BC.
        format("%<year>04d%<rest>s+00 BC", year: 1 - year, rest: time.strftime("-%m-%d %H:%M:%S.%6N"))
      end

      # DateTime#to_time depends on ActiveSupport's version and settings.
      def self.utc(datetime)
        Time.utc(datetime.year, datetime.month, datetime.day, datetime.hour, datetime.minute,
                 datetime.second + datetime.sec_fraction)
      end

      private_class_method :instant, :utc
    end
  end
end
