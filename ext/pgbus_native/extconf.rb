# frozen_string_literal: true

require "mkmf"
require "rb_sys/mkmf"

# Left to itself, rb_sys would have RubyGems' build download and run Rust's installer.
unless find_executable(ENV.fetch("CARGO", "cargo"))
  abort "pgbus_native is compiled with Rust, and cargo is missing. It takes Rust and cargo 1.85 or newer, libclang, " \
        "a C compiler and make; on Debian 13: apt-get install ruby-dev cargo libclang-dev gcc make"
end

create_rust_makefile("pgbus_native/pgbus_native") do |builder|
  builder.auto_install_rust_toolchain = false
  # An installed gem is compiled with the crates that were tested, or not at all.
  builder.extra_cargo_args = ["--locked"] if builder.rubygems_invoked?
end
