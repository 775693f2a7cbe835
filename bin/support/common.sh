# shellcheck shell=bash disable=SC2034 # variables are used by those who source this
# What the scripts in bin/ share. Sourced, never run.

project=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

# Which Debian's packages to work with: those of Debian 13, whose code name is trixie, or the newer ones of forky.
suite=${PGBUS_NATIVE_SUITE:-trixie}

# Messages go to stderr: stdout belongs to the command that bin/env runs.
say() { printf '%s: %s\n' "bin/${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# at_least WANTED VERSION
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | sed -n 1p) == "$1" ]]; }

# Leaves only the Ruby and the Rust of the system's packages: a version manager's come first in PATH
# and its variables would point the packaged programs at its own gems and toolchains.
use_system_toolchain() {
  local name
  for name in $(compgen -e); do
    case $name in
    RUBY* | GEM_* | BUNDLE* | RUSTUP_* | RUSTC* | CARGO_HOME) unset "$name" ;;
    esac
  done
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin
}

# Prints the directory of the newest PostgreSQL server's programs, or fails where there is none.
# Debian keeps them out of PATH.
postgres_bin() {
  local dir dirs=("${PGBUS_NATIVE_PG_BIN:-}")
  mapfile -t -O 1 dirs < <(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV)
  dirs+=("$(pg_config --bindir 2>/dev/null)" "$(dirname -- "$(command -v initdb)")")
  for dir in "${dirs[@]}"; do
    [[ -x $dir/initdb && -x $dir/pg_ctl && -x $dir/postgres ]] || continue
    at_least 14 "$("$dir/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')" || continue
    printf '%s\n' "$dir"
    return
  done
  return 1
}

# In a Debian root that bin/setup made: present only once it is complete. It holds a checksum of the
# package list, so that a longer list is noticed.
root_stamp=etc/pgbus_native-packages
