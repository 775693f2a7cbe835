# frozen_string_literal: true

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # The extension, what it runs on, and the pgbus beside it.
      class Versions < Check
        NAME = "extension"

        private

        def examine
          extension
          ok(versions, name: "versions")
          pgbus
        end

        def extension
          case Native.status
          when :installed then ok("pgbus_native #{VERSION} is loaded, Presence is native", version: VERSION)
          when :off
            note("off: PGBUS_NATIVE=0 leaves pgbus's own code in place", "take PGBUS_NATIVE out of the environment")
          else
            warning("not loaded: pgbus_native #{VERSION} follows pgbus 0.18 only",
                    "use the pgbus_native release for this pgbus, or set PGBUS_NATIVE=force")
          end
        end

        def versions
          activerecord = defined?(::ActiveRecord) && ::ActiveRecord.gem_version
          parts = { RUBY_ENGINE => RUBY_VERSION, "activerecord" => activerecord,
                    "pg" => defined?(PG::VERSION) && PG::VERSION,
                    "libpq" => defined?(PG) && PG.respond_to?(:library_version) && libpq }
          parts.map { |name, version| "#{name} #{version || "not loaded"}" }.join(", ")
        end

        def libpq
          PG.library_version.divmod(10_000).join(".")
        end

        def pgbus
          return ok(alone, name: "pgbus") unless defined?(Pgbus::VERSION)
          return ok("pgbus #{Pgbus::VERSION}", name: "pgbus", version: Pgbus::VERSION) if followed?

          warning("pgbus #{Pgbus::VERSION}, and pgbus_native #{VERSION} has the behaviour of 0.18",
                  "use releases of both that begin with the same two numbers", name: "pgbus", version: Pgbus::VERSION)
        end

        def alone
          Native.enabled? ? "not loaded, Presence stands alone" : "not loaded"
        end

        def followed?
          Installation::FOLLOWED.match?(Pgbus::VERSION)
        end
      end
    end
  end
end
