#!/bin/bash
# Everything that proves the project, on a fresh machine: installs what is missing, builds, runs every test. Last line: N passed, N failed.
set -u
cd "$(dirname "$0")" || exit 1
mkdir -p build
. tools/setup.sh
need_packages gcc make libc6-dev libjansson-dev libutf8proc-dev libevent-dev libssl-dev libcurl4-openssl-dev libjpeg-dev libvorbis-dev libmpg123-dev zlib1g-dev libpng-dev libwebp-dev libgif-dev libexif-dev libsndfile1-dev libsoxr-dev libcmocka-dev libsimde-dev python3 python3-pip curl ca-certificates openssl
want_packages python3-venv haproxy nginx-light chromium
jobs=$(nproc)
passed=0 failed=0

# What a part came to: its own lines "N passed, N failed" are added up. A part that says nothing of the kind counts as one test.
count() { # LOG STATUS
  local line
  line=$(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p += $1; f += $3; n++ } END { if (n) print p, f }' "$1")
  if [ -n "$line" ]; then
    passed=$((passed + ${line% *})) failed=$((failed + ${line#* }))
    [ "$2" -ne 0 ] && [ "${line#* }" -eq 0 ] && failed=$((failed + 1)) # it ended badly beside its tests
  elif [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
part() {
  step "$1"
  shift
  local log=build/test-part.log start
  start=$(date +%s)
  "$@" 2>&1 | tee "$log"
  count "$log" "${PIPESTATUS[0]}"
  echo "    $(($(date +%s) - start)) s"
}
# One part in the background while others run; `joined` waits for it and says what it said.
beside() {
  beside_name=$1
  shift
  "$@" >build/test-beside.log 2>&1 &
  beside_pid=$!
}
joined() {
  wait "$beside_pid"
  local status=$?
  step "$beside_name"
  cat build/test-beside.log
  count build/test-beside.log "$status"
}

# Several programs one after the other, all of them whatever happens; fails if one does.
each() {
  local bad=0
  for program in "$@"; do python3 "$program" || bad=1; done
  return $bad
}

part "layers" make -s layers
part "format" make -s format-check
part "build" make -s -j"$jobs" all
need_sample_model
need_clients
step "vocabularies of Gemma 4 and Llama 3"
python3 tools/vocab.py || echo "going on without: the tests that use them are left out"
part "every test, optimised" make -s -j"$jobs" test
part "AddressSanitizer and UndefinedBehaviorSanitizer" make -s -j"$jobs" MODE=asan test
part "ThreadSanitizer: engine and server" make -s -j"$jobs" tsan
part "AVX-512 kernels under emulation" make -s -j"$jobs" simde
part "fuzz corpora" make -s -j"$jobs" corpus
part "declarations of the NPU's interface" tools/acl_check.sh
make -s -j"$jobs" emu build/ascend_probe
# what takes long and is one process each, beside what waits for sockets
beside "the emulated NPU: fixtures, its first day; Gemma 4 fixtures" each tests/npu.py tests/probe.py tests/golden4.py
part "command line" python3 tests/cli.py
part "pictures and sound, the whole program" python3 tests/media.py
part "every option" python3 tests/options.py
part "evaluations" python3 tests/evals.py
part "fetching models" python3 tests/pull.py
part "other people's clients" "$PYTHON" tests/clients.py
part "tools, thinking and schemas" "$PYTHON" tests/tools.py
part "several servers behind one address" "$PYTHON" tests/scale.py
joined
part "kernels against yardsticks of the same run" make -s -j"$jobs" bench-check
part "abuse over HTTP" python3 tests/abuse.py
part "chat page in Chromium" python3 tests/page.py

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
