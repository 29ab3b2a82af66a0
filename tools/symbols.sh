#!/bin/sh
# symbols.sh — what libcygnet offers to programs, as the header says it.
#
#   tools/symbols.sh list < include/cygnet.h     the functions, one a line, sorted
#   tools/symbols.sh map  < include/cygnet.h     a version script for the linker: these functions leave the library, nothing else does
#
# A public function is declared with CYGNET_API and its name on the same line. The symbols' version is CYGNET_MAJOR.MINOR, from CYGNET_VERSION.
set -eu
header=$(cat)
names=$(printf '%s\n' "$header" | awk '
  /^CYGNET_API/ {
    if (!match($0, /cygnet_[a-z0-9_]+\(/)) {
      printf "symbols: cygnet.h, line %d: expected the name of a function on the line of CYGNET_API, found: %s\n", NR, $0 >"/dev/stderr"
      exit 1
    }
    print substr($0, RSTART, RLENGTH - 1)
  }') || exit 1
names=$(printf '%s\n' "$names" | LC_ALL=C sort)
case ${1:-} in
list) printf '%s\n' "$names" ;;
map)
  version=$(printf '%s\n' "$header" | sed -n 's/^#define CYGNET_VERSION "\([0-9]*\.[0-9]*\)\.[0-9]*"$/\1/p')
  if [ -z "$version" ]; then
    echo 'symbols: cygnet.h: expected a line: #define CYGNET_VERSION "MAJOR.MINOR.PATCH"' >&2
    exit 1
  fi
  printf 'CYGNET_%s {\nglobal:\n' "$version"
  printf '%s\n' "$names" | sed 's/.*/  &;/'
  printf 'local:\n  *;\n};\n'
  ;;
*)
  echo "usage: tools/symbols.sh list|map < include/cygnet.h" >&2
  exit 2
  ;;
esac
