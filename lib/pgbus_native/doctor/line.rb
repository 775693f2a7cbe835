# frozen_string_literal: true

module Pgbus
  module Native
    class Doctor
      # What one check found.
      #
      # `status` is `:ok`, `:note` (worth knowing, nothing is wrong), `:warning` (calls work, but) or `:error` (calls
      # fail, or have the wrong outcome). `advice` is what to do about it, nil if ok. `figures` are for machines.
      Line = Data.define(:name, :status, :message, :advice, :figures) do
        def initialize(advice: nil, figures: {}, **)
          super
        end

        # @return [Boolean]
        def wrong?
          %i[warning error].include?(status)
        end

        # @return [String] one line, and one more with the advice
        def to_s
          line = "#{status.to_s.ljust(8)} #{name.ljust(20)} #{message}"
          advice ? "#{line}\n#{" " * 9}-> #{advice}" : line
        end
      end
    end
  end
end
