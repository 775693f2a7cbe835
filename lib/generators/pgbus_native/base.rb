# frozen_string_literal: true

require "rails/generators"
require "active_record"
require "rails/generators/active_record/migration"
require "pgbus_native/configured_database"

# Generators, named as Rails looks them up: `rails generate pgbus_native:...`.
module PgbusNative
  # Rails finds them by this name.
  module Generators
    # Writes migrations for the presence table into the folder of the database that holds it.
    #
    # @api private
    class Base < Rails::Generators::Base
      include ActiveRecord::Generators::Migration

      class_option :database, type: :string, aliases: %i[--db],
                              desc: "The database for the migration, by its name in database.yml; by default that of " \
                                    "pgbus's connects_to, else the primary one"

      # A script that runs the generator is to notice that nothing was written.
      def self.exit_on_failure?
        true
      end

      private

      # Writes the migration unless the application has one of this name, or one that does the same.
      def migration(name, same:)
        found = existing(name, same) if behavior == :invoke && !options[:force]
        return say_status(:skip, "#{name}: #{relative_to_original_destination_root(found)} is there", :yellow) if found

        migration_template("#{name}.rb.tt", File.join(folders.first, "#{name}.rb"))
      end

      def existing(name, same)
        files = folders.flat_map { |folder| self.class.migration_lookup_at(File.expand_path(folder, destination_root)) }
        files.find { |file| file.end_with?("_#{name}.rb") || same.match?(File.read(file)) }
      end

      # A database without folders of its own shares the application's, as it does in `rails db:migrate`.
      def folders
        own = Array(configuration&.migrations_paths)
        own.empty? ? Rails.application.config.paths["db/migrate"].to_a : own
      end

      def configuration
        return unless database

        ActiveRecord::Base.configurations.configs_for(env_name: Rails.env, name: database) ||
          raise(Rails::Generators::Error, "There is no database #{database.inspect} in database.yml for the " \
                                          "environment #{Rails.env.inspect}, or its tasks are switched off.")
      end

      def database
        options[:database] || Pgbus::Native::ConfiguredDatabase.target.then { |name| name.to_s if name.is_a?(Symbol) }
      end
    end
  end
end
