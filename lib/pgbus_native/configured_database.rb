# frozen_string_literal: true

module Pgbus
  module Native
    # The database that presence is going to use, as the application's settings have it. Neither connects nor loads
    # ActiveRecord::Base.
    #
    # @api private
    module ConfiguredDatabase
      class << self
        # @param application [Rails::Application]
        # @return [ActiveRecord::DatabaseConfigurations::DatabaseConfig]
        # @raise [StandardError] if there is none, or database.yml cannot be read
        def for(application)
          configurations(application).resolve(target || ::Rails.env.to_sym)
        end

        # Where pgbus's `connects_to` leads to.
        #
        # @return [Symbol, String, Hash, nil] a name in database.yml, a URL or settings; nil for the application's
        #   own database
        def target
          connects_to = Pgbus.configuration.connects_to if Pgbus.respond_to?(:configuration)
          return unless connects_to

          roles = connects_to[:database] || connects_to[:shards].values.first
          roles[:writing] || roles.values.first
        end

        private

        # What ActiveRecord::Base has read already need not be read again: database.yml may be a slow program.
        def configurations(application)
          return ::ActiveRecord::Base.configurations unless ::ActiveRecord.autoload?(:Base)

          require "active_record/database_configurations"
          ::ActiveRecord::DatabaseConfigurations.new(application.config.database_configuration)
        end
      end
    end
  end
end
