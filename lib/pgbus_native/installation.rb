# frozen_string_literal: true

module Pgbus
  module Native
    # Decides whether native code takes over Pgbus::Streams::Presence, and puts it there.
    class Installation
      # The pgbus releases whose behaviour this gem has.
      FOLLOWED = /\A0\.18\./

      CONSTANTS = %i[RECORD_COLUMNS SEAT_RECORD_COLUMNS SCHEMA_RECHECK_SECONDS].freeze
      private_constant :CONSTANTS

      # @param setting [String, nil] PGBUS_NATIVE: "0" leaves pgbus's own code in place, "force" installs
      #   whatever pgbus's version
      def initialize(setting = ENV.fetch("PGBUS_NATIVE", nil))
        @setting = setting
      end

      # @return [Symbol] see {Native.status}
      # @raise [LoadError] if the extension is not built
      def call
        return :off if @setting == "0"
        return refuse unless followed? || @setting == "force"

        load_extension
        install
        :installed
      end

      private

      def followed?
        !defined?(Pgbus::VERSION) || FOLLOWED.match?(Pgbus::VERSION)
      end

      def refuse
        Kernel.warn("pgbus_native #{VERSION} follows pgbus 0.18 and leaves pgbus #{Pgbus::VERSION} as it is. Use the " \
                    "pgbus_native release for it, or set PGBUS_NATIVE=force to install this one regardless.")
        :other_version
      end

      def load_extension
        require extension
      rescue LoadError => e
        raise LoadError, "pgbus_native's extension cannot be loaded (#{e.message}). Build it with `bundle exec rake " \
                         "compile` in a checkout, or `gem pristine pgbus_native` for an installed gem; either needs " \
                         "Rust (cargo) and libclang. PGBUS_NATIVE=0 runs the app without it."
      end

      # A precompiled gem has a folder with an extension for each Ruby; one that was compiled here lies beside this
      # file.
      def extension
        for_this_ruby = "#{RUBY_VERSION[/\A\d+\.\d+/]}/pgbus_native"
        found = File.exist?(File.join(__dir__, "#{for_this_ruby}.#{RbConfig::CONFIG["DLEXT"]}"))
        found ? "pgbus_native/#{for_this_ruby}" : "pgbus_native/pgbus_native"
      end

      def install
        make_room
        require_relative "databases"
        require_relative "presence"
        at_exit { Native.finish_cancelling(1.0) }
      end

      # The original is loaded, if there is one: it is the same class that goes on, with other methods. What it
      # defines in its own file is taken out; what an app has added stays.
      def make_room
        return require_relative("standalone") unless defined?(Pgbus::Streams::Presence)

        presence = Pgbus::Streams::Presence
        file = presence.instance_method(:join).source_location.first
        owners = [presence, presence.singleton_class]
        owners << presence::Record.singleton_class if presence.const_defined?(:Record, false)
        owners.each { |owner| remove_methods(owner, file) }
        CONSTANTS.each { |name| presence.send(:remove_const, name) if presence.const_defined?(name, false) }
      end

      def remove_methods(owner, file)
        (owner.instance_methods(false) + owner.private_instance_methods(false)).each do |name|
          next unless owner.instance_method(name).source_location&.first == file

          # Ruby warns of a missing initialize, and of a redefined one unless it has an alias.
          name == :initialize ? owner.send(:alias_method, name, name) : owner.send(:remove_method, name)
        end
      end
    end
  end
end
