#!/bin/bash
# Everything that proves the project, on a fresh machine: installs what is missing, builds, runs every test. Last line: N passed, N failed.
set -u
cd "$(dirname "$0")" || exit 1
mkdir -p build
. tools/setup.sh
need_packages gcc make libc6-dev libjansson-dev libutf8proc-dev libevent-dev libssl-dev libcurl4-openssl-dev libjpeg-dev libvorbis-dev libmpg123-dev zlib1g-dev libpng-dev libwebp-dev libgif-dev libexif-dev libsndfile1-dev libsoxr-dev libcmocka-dev libsimde-dev python3 python3-pip curl ca-certificates openssl
want_packages python3-venv haproxy nginx-light chromium dpkg-dev pkg-config systemd man-db mandoc
jobs=$(nproc)

# Parts run two at a time, in the order of their lines, each with half of the processors; what one said is shown when it is over.
lanes=$((jobs > 1 ? 2 : 1)) share=$(((jobs + 1) / 2)) n_parts=0
parts=build/test-parts
rm -rf "$parts" && mkdir -p "$parts"
part() { # NAME COMMAND...
  n_parts=$((n_parts + 1))
  while [ "$(jobs -rp | wc -l)" -ge "$lanes" ]; do wait -n; done # which may return for one that ended before
  one_part "$parts/$n_parts" "$@" &
}
one_part() { # FILE NAME COMMAND...
  local file=$1 name=$2 start
  shift 2
  start=$(date +%s)
  "$@" >"$file.log" 2>&1
  echo $? >"$file.status"
  (
    flock 9 # two that end at once
    step "$name"
    cat "$file.log"
    echo "    $(($(date +%s) - start)) s"
  ) 9>"$parts/lock"
}
# All that was begun is over: what comes next has the machine for itself.
alone() { wait; }

# What the parts came to: their own lines "N passed, N failed" are added up. A part that says nothing of the kind counts as one test.
count() {
  local i passed=0 failed=0 status p f
  for i in $(seq "$n_parts"); do
    status=$(cat "$parts/$i.status" 2>/dev/null || echo 1) # none: it was killed
    read -r p f <<<"$(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p += $1; f += $3; n++ } END { if (n) print p, f }' "$parts/$i.log")"
    if [ -n "$p" ]; then
      [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1 # it ended badly beside its tests
    else
      p=$((status == 0)) f=$((status != 0))
    fi
    passed=$((passed + p)) failed=$((failed + f))
  done
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

# Several programs one after the other, all of them whatever happens; fails if one does.
each() {
  local bad=0
  for program in "$@"; do python3 "$program" || bad=1; done
  return $bad
}
# A processor that has all that is emulated has run it in the other parts, and faster; emulation itself need only work there.
emulated() {
  local flag
  for flag in avx_vnni avx512_vnni avx512_bf16 amx_int8 amx_bf16; do
    grep -qw "$flag" /proc/cpuinfo || { make -s -j"$share" simde; return; }
  done
  make -s -j"$share" simde SIMDE_TESTS="compute/kern" &&
    NAME_FILTER="test_oracle" make -s -j"$share" simde SIMDE_TESTS="compute/gemm" &&
    NAME_FILTER="all_geometries*" make -s -j"$share" simde SIMDE_TESTS="compute/attn"
}
fetch() {
  need_sample_model
  need_clients
  step "vocabularies of Gemma 4 and Llama 3"
  python3 tools/vocab.py || echo "going on without: the tests that use them are left out"
}

export JOBS=$((share > 2 ? 2 : share)) # test programs at a time, of one part
part "sample model, other people's clients, vocabularies" fetch
part "build" make -s -j"$jobs" all emu build/ascend_probe twins
alone
need_clients # says which python has them
part "build with AddressSanitizer and UndefinedBehaviorSanitizer" make -s -j"$jobs" MODE=asan test-programs
alone
# the longest first: two processors have work to the end
part "every test, optimised" make -s -j"$share" test
part "sanitizers: base, files, text, kv, compute" make -s -j"$share" MODE=asan test T="base files text kv compute"
part "ThreadSanitizer: engine and server" make -s -j"$share" tsan
part "sanitizers: models, engine, server, eval, load" make -s -j"$share" MODE=asan test T="models engine server eval load"
part "AVX-512 kernels under emulation" emulated
part "the emulated NPU: fixtures, its first day" each tests/npu.py tests/probe.py
part "Gemma 4 fixtures" python3 tests/golden4.py
part "pictures and sound, the whole program" python3 tests/media.py
part "command line" python3 tests/cli.py
part "every option" python3 tests/options.py
part "evaluations" "$PYTHON" tests/evals.py
part "load on servers" python3 tests/load.py
part "documents" "$PYTHON" tests/docs.py
part "fetching models" python3 tests/pull.py
part "installing and packages" python3 tests/package.py
part "other people's clients" "$PYTHON" tests/clients.py
part "tools, thinking and schemas" "$PYTHON" tests/tools.py
part "several servers behind one address" "$PYTHON" tests/scale.py
part "declarations of the NPU's interface" tools/acl_check.sh
part "fuzz corpora" make -s -j"$share" corpus
part "layers" make -s layers
part "format" make -s format-check
alone
# what measures time
part "kernels against yardsticks of the same run" make -s -j"$jobs" bench-check
alone
part "abuse over HTTP" python3 tests/abuse.py
alone
part "chat page in Chromium" python3 tests/page.py
alone
count
