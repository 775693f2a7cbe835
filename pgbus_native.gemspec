# frozen_string_literal: true

require_relative "lib/pgbus_native/version"

Gem::Specification.new do |spec|
  spec.name = "pgbus_native"
  spec.version = Pgbus::Native::VERSION
  spec.authors = ["pgbus_native contributors"]
  spec.summary = "pgbus presence on a native core"
  spec.description = "A drop-in accelerator for pgbus: Pgbus::Streams::Presence, its schema probe and its " \
                     "sweeper on a Rust core, under the original class names."
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.3"
  spec.metadata["rubygems_mfa_required"] = "true"

  # What runs (lib), what it is compiled from, what type checkers read, and what people do. spec/packaging_spec.rb
  # compiles and runs an installed one.
  spec.files = Dir[
    "lib/**/*", "src/**/*.rs", "ext/**/*.{rs,rb,toml}", "Cargo.toml", "Cargo.lock",
    "sig/*.{rbs,yaml}", "README.md", "CHANGELOG.md", "LICENSE", "THIRD_PARTY_LICENSES.md"
  ].reject { |path| File.directory?(path) || path.end_with?(".so", ".bundle") }
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/pgbus_native/extconf.rb"]

  # The routes ask ActiveRecord which connection a call belongs to.
  spec.add_dependency "activerecord", ">= 7.1", "< 9"
  # Connection settings as libpq resolves them, and the PG:: error classes.
  spec.add_dependency "pg", "~> 1.5"
  # Builds the extension.
  spec.add_dependency "rb_sys", "~> 0.9.87"
end
