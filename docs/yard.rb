# frozen_string_literal: true

# YARD takes a migration's version, `ActiveRecord::Migration[7.1]`, for something that is no class, and warns.
module MigrationVersions
  private

  def parse_superclass(node)
    node&.type == :aref ? super(node.first) : super
  end
end

YARD::Handlers::Ruby::ClassHandler.prepend(MigrationVersions)
