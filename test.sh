#!/bin/bash
# Everything that proves the project, on a fresh machine: installs what is missing, builds, runs every test. Last line: N passed, N failed.
set -u
cd "$(dirname "$0")" || exit 1
mkdir -p build
. tools/setup.sh
need_packages gcc make libc6-dev libjansson-dev libutf8proc-dev libevent-dev libcmocka-dev libsimde-dev python3 python3-pip curl ca-certificates
jobs=$(nproc)
passed=0 failed=0

# Run one part; its own last line "N passed, N failed" is added up. A part that says nothing of the kind counts as one test.
part() {
  step "$1"
  shift
  local log=build/test-part.log start status line
  start=$(date +%s)
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
  if [ -n "$line" ]; then
    passed=$((passed + $(echo "$line" | cut -d' ' -f1)))
    failed=$((failed + $(echo "$line" | cut -d' ' -f3)))
  fi
  if [ "$status" -ne 0 ] && { [ -z "$line" ] || echo "$line" | grep -q ' 0 failed'; }; then failed=$((failed + 1)); fi
  if [ "$status" -eq 0 ] && [ -z "$line" ]; then passed=$((passed + 1)); fi
  echo "    ($(($(date +%s) - start)) s)"
}

part "layers" make -s layers
part "format" make -s format-check
part "build" make -s -j"$jobs" all
need_sample_model
part "every test, optimised" make -s -j"$jobs" test
part "AddressSanitizer and UndefinedBehaviorSanitizer" make -s -j"$jobs" MODE=asan test
part "ThreadSanitizer: engine and server" make -s -j"$jobs" tsan
part "AVX-512 kernels under emulation" make -s -j"$jobs" simde
part "fuzz corpora" make -s -j"$jobs" corpus
part "command line" python3 tests/cli.py

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
