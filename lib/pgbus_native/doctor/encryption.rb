# frozen_string_literal: true

require "ipaddr"

require_relative "check"

module Pgbus
  module Native
    class Doctor
      # Whether what goes to the server and back is encrypted, on each route.
      class Encryption < Check
        NAME = "TLS"

        PLAIN = "none"
        private_constant :PLAIN

        private

        def examine
          return unless app.postgresql?
          return ok("not needed, the connection is a Unix socket") if app.raw.host.start_with?("/")

          routes = { "active_record" => active_record, "native" => native }.compact
          return differing(routes) if routes.values.uniq.size > 1

          routes.values.first == PLAIN ? plain : encrypted(routes)
        end

        def active_record
          app.raw.ssl_in_use? ? app.raw.ssl_attribute("protocol") : PLAIN
        end

        # As the server sees it; nil if it does not, because a pooler is in between.
        def native
          return if app.native.nil? || app.pooled?

          session = app.rows(<<~SQL).first
            SELECT ssl, version FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
            WHERE application_name = #{app.connection.quote(app.mark)}
          SQL
          session && (session["ssl"] ? session["version"] : PLAIN)
        end

        def differing(routes)
          error("not the same on both routes: #{list(routes)}",
                "report this, with the sslmode, as a bug of pgbus_native")
        end

        def plain
          return ok("not used, nor needed on loopback") if loopback?

          warning("not used: everybody on the way can read the password and change what is said",
                  "set `sslmode: verify-full` and `sslrootcert:` in database.yml, with `ssl = on` on the server")
        end

        def encrypted(routes)
          mode = app.raw.conninfo_hash[:sslmode]
          return ok(list(routes)) if loopback? || mode.to_s.start_with?("verify")

          note("#{list(routes)}; sslmode #{mode} does not see whom it talks to",
               "set `sslmode: verify-full` and `sslrootcert:` in database.yml")
        end

        def list(routes)
          routes.map { |route, tls| "#{tls} (#{route})" }.join(", ")
        end

        def loopback?
          IPAddr.new(app.raw.hostaddr).loopback?
        rescue IPAddr::Error
          false
        end
      end
    end
  end
end
