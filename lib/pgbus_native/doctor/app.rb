# frozen_string_literal: true

require "securerandom"

module Pgbus
  module Native
    class Doctor
      # What the doctor looks at: the connection that ActiveRecord has for the app, and a native one of the doctor's
      # own, made of the same settings, so that it can be told apart on the server and takes none of the app's.
      class App
        # `name` is quoted, with its schema; `columns` are types by name.
        Table = Data.define(:oid, :name, :partitioned, :columns) do
          # @return [Boolean]
          def seats?
            Columns::SEATS.all? { |name| columns.key?(name) }
          end
        end

        # @return [ActiveRecord::ConnectionAdapters::ConnectionPool]
        attr_reader :pool

        # @return [ActiveRecord::ConnectionAdapters::AbstractAdapter] leased until {close}
        attr_reader :connection

        # @return [String] the `application_name` of the native connection
        attr_reader :mark

        # Connects as a call on the active_record route would.
        #
        # @raise [StandardError, LoadError] if that fails
        def initialize
          @mark = "pgbus_native doctor #{SecureRandom.hex(4)}"
          @pool = owner.connection_pool
          @leased_before = pool.active_connection?
          lease
        rescue StandardError, LoadError
          close
          raise
        end

        # @return [Boolean]
        def postgresql?
          connection.raw_connection.is_a?(PG::Connection)
        end

        # @return [PG::Connection] ActiveRecord's
        def raw
          connection.raw_connection
        end

        # @return [Boolean] whether there is a pooler on the way, which gives its clients process ids of its own
        def pooled?
          raw.backend_pid != rows("SELECT pg_backend_pid() AS pid").first["pid"]
        end

        # @param sql [String]
        # @return [Array<Hash{String => Object}>]
        def rows(sql)
          connection.select_all(sql, "pgbus_native doctor").to_a
        end

        # @return [Table, nil] the one that the statements find
        def table
          @table ||= (look_up_table if postgresql?)
        end

        # @return [String] a stream's name that nobody uses
        def stream
          @mark
        end

        # @return [Database, nil] connected; nil if there is none, for which {obstacle} may say why
        # @raise [ActiveRecord::ConnectionNotEstablished] the first time, if it cannot connect
        def native
          return @native if defined?(@native)

          @native = nil
          @native = connect_natively if Native.enabled? && Native.route != :active_record
        end

        # @return [String, nil] why the native client cannot serve this database
        attr_reader :obstacle

        # @return [ConnectionSettings]
        def settings
          ConnectionSettings.new(pool.db_config, ::ActiveRecord.default_timezone)
        end

        # Takes another one of ActiveRecord's connections: this one is in the middle of something.
        #
        # @return [void]
        def discard
          connection.throw_away!
          @leased_before = nil
          lease
        end

        # @return [void]
        def close
          @native&.close_idle
          @pool&.release_connection unless @leased_before
        end

        private

        def lease
          @connection = pool.respond_to?(:lease_connection) ? pool.lease_connection : pool.connection
          connection.raw_connection # connects
        end

        def owner
          return Route.connection_class if Native.enabled?
          raise "ActiveRecord is not loaded" unless defined?(::ActiveRecord::Base)

          own = Pgbus.respond_to?(:configuration) && Pgbus.configuration.connects_to
          own ? Pgbus::BusRecord : ::ActiveRecord::Base
        end

        def look_up_table
          found = rows(<<~SQL).first
            SELECT c.oid::bigint AS oid, c.oid::regclass::text AS name, c.relkind::text = 'p' AS partitioned
            FROM pg_class c WHERE c.oid = to_regclass('pgbus_presence_members')
          SQL
          found && Table.new(**found.transform_keys(&:to_sym), columns: columns(found["oid"]))
        end

        def columns(oid)
          rows(<<~SQL).to_h(&:values)
            SELECT attname::text AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute
            WHERE attrelid = #{Integer(oid)} AND attnum > 0 AND NOT attisdropped
          SQL
        end

        def connect_natively
          database = Database.new({ **settings.keywords, "application_name" => mark }, settings.session, options)
          database.run(Statements::SEAT_COLUMNS, [])
          database
        rescue UnsupportedError => e
          @obstacle = Discretion.message(e)
          nil
        end

        def options
          { prepared_statements: settings.prepared_statements?, pool_size: 1, checkout_timeout: PATIENCE.to_f,
            gvl_grace: 0.0, local_times: ::ActiveRecord.default_timezone == :local }
        end
      end
    end
  end
end
