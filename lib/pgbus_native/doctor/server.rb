# frozen_string_literal: true

require_relative "check"
require_relative "discretion"

module Pgbus
  module Native
    class Doctor
      # The server that ActiveRecord's connection leads to.
      class Server < Check
        NAME = "database"

        # What to do about a connection that cannot be made, by what its error is called: ActiveRecord's versions
        # have different ones, and ActiveRecord may not be there.
        ADVICE = {
          "ActiveRecord::NoDatabaseError" => "run `rails db:create`, or correct `database:` in database.yml or the URL",
          "ActiveRecord::ConnectionNotDefined" => "name the database in config/database.yml or DATABASE_URL",
          "ActiveRecord::ConnectionTimeoutError" => "all of ActiveRecord's connections are in use: raise `pool:`, or " \
                                                    "find out what keeps them",
          "ActiveRecord::AdapterNotFound" => "correct `adapter:`, presence needs PostgreSQL's",
          "LoadError" => "add the adapter's gem to the Gemfile, presence needs pg",
          "Pgbus::ConfigurationError" => "load ActiveRecord, and connect it",
          "Timeout::Error" => "see whether host and port are right and no firewall swallows packets; " \
                              "`connect_timeout:` in database.yml bounds the wait"
        }.freeze
        private_constant :ADVICE

        # @param error [Exception] of connecting
        # @return [Line]
        def self.unreachable(error)
          ancestors = error.class.ancestors.map(&:name)
          advice = ADVICE.find { |name, _| ancestors.include?(name) }&.last ||
                   "see that the server runs, and that host, port, user and password in database.yml are right"
          Line.new(name: NAME, status: :error, message: "no connection: #{Discretion.message(error)}", advice:)
        end

        private

        def examine
          return other_adapter unless app.postgresql?

          server = app.rows(<<~SQL).first
            SELECT split_part(current_setting('server_version'), ' ', 1) AS version, current_database()::text AS database,
                   current_user::text AS role, current_setting('transaction_read_only') = 'on' AS read_only
          SQL
          read_only if server["read_only"]
          ok("PostgreSQL #{server["version"]} at #{place}, database #{server["database"].inspect}, " \
             "role #{server["role"].inspect}", version: server["version"])
        end

        def other_adapter
          error("the adapter is #{app.connection.adapter_name}, presence needs PostgreSQL's",
                "let `connects_to` of pgbus, or the app's own database, lead to PostgreSQL")
        end

        # libpq's words: a socket's folder, or a host's name and port.
        def place
          app.raw.host.start_with?("/") ? "socket #{app.raw.host}" : "#{app.raw.host}:#{app.raw.port}"
        end

        def read_only
          error("the session is read-only, so nobody can join or leave",
                "connect to the primary: the writing role of `connects_to`, or target_session_attrs: read-write")
        end
      end
    end
  end
end
