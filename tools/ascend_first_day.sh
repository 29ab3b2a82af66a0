#!/bin/bash
# The first day on a machine with an Ascend NPU: what could not be known without one, in one report to send back.
#
#   tools/ascend_first_day.sh [MODEL]         MODEL (a file or a folder) is measured; without one, a tiny one is
#
#   PARTS="versions probe operators fixtures speed"   what is done (all)
#   REPORT=build/ascend_report.txt                    where it goes, seen from the source's folder
#   BUILD=build                                       the folder of the build, the same
#   ASCEND_RT_VISIBLE_DEVICES=1                       CANN's own way to give another NPU than the first
#
# Run CANN's set_env.sh before. A part that fails or hangs costs itself alone. The report is plain text; names of this machine, of people's folders and of other
# programs on the NPU are taken out, but read it before sending it.
# Status: 0 all is as expected, 1 something is not, 2 nothing could be asked.
set -u
model=
if [ $# -gt 0 ]; then model=$(realpath -e "$1") || exit 2; fi
cd "$(dirname "$0")/.." || exit 2
parts=" ${PARTS:-versions probe operators fixtures speed} "
build=${BUILD:-build}
report=${REPORT:-$build/ascend_report.txt}
release=$build/release
cann=${ASCEND_HOME_PATH:-/usr/local/Ascend/ascend-toolkit/latest}
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT INT TERM
profile=
bad=0

wants() { [[ $parts == *" $1 "* ]]; }
say() { echo "$*" | tee -a "$folder/summary"; } # a line on top of the report

# section NAME SECONDS TITLE: what the function NAME says, errors and all, into the report.
section() {
  local start status
  start=$(date +%s)
  echo "$3 ..."
  timeout -k 20 "$2" bash -c "set -u; $1" > "$folder/$1" 2>&1 < /dev/null
  status=$?
  printf '\n==== %s (%d s, status %d)\n' "$3" $(($(date +%s) - start)) $status >> "$folder/report"
  [ $status -ge 124 ] && printf 'no end after %d s\n' "$2" >> "$folder/report"
  [ $status -ne 0 ] && bad=1
  cat "$folder/$1" >> "$folder/report"
  return $status
}

compile() {
  local t targets=("$build/cygnet" twins "$build/ascend_probe" "$release/bench/b_ascend")
  wants operators && for t in ops encoder attn; do targets+=("$release/tests/compute/t_ascend_$t"); done
  make -s BUILD="$build" -j"$(nproc)" "${targets[@]}" | grep -vE '^  (cc|ar|link) '
  [ "${PIPESTATUS[0]}" -eq 0 ]
}

versions() {
  local f
  echo "source    $(git log -1 --format='%h of %cs' 2> /dev/null || echo unknown)"
  echo "system    $(uname -sm), kernel $(uname -r), $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2> /dev/null)"
  echo "compiler  $(${CC:-cc} --version | head -n 1)"
  echo "host      $(nproc) processors"
  if command -v npu-smi > /dev/null; then npu-smi info | sed '/Process/,$d'; else echo "npu-smi   is not there"; fi
  for f in /usr/local/Ascend/{driver,firmware}/version.info "$cann"/{,*/}{version.info,version.cfg,ascend_*install.info}; do
    [ -r "$f" ] && echo "-- $f" && grep -iE 'version|package|arch' "$f" | head -n 12
  done
  echo "-- libraries"
  (cd "$cann/lib64" 2> /dev/null && ls -d libascendcl.so* libacl_rt.so* libnnopbase.so* libopapi*.so libaclnn*.so 2> /dev/null)
  echo "-- packages of kernels"
  (cd "${ASCEND_OPP_PATH:-$cann/opp}/built-in/op_impl/ai_core/tbe/kernel" 2> /dev/null && ls -d ascend* 2> /dev/null)
  echo "-- environment"
  env | grep -E '^(ASCEND_(LAUNCH|GLOBAL|SLOG|RT|DEVICE|WORK)|CYGNET_|ACL_EMU_)' | sort
  true
}

probe() { "$build/ascend_probe" 2> "$folder/probe.log"; }

# Tests that hold operations of the backend against the CPU's; those that need an emulated device are not among them.
operators() {
  local test name status=0
  export NPU_REAL=$profile CYGNET_TEST_FILTER
  for test in ops:test_{elementwise,gated_together,norms,rows_moved,argmax,linear,linear_gated,wide_head,embed,rope,experts,recorded,late} "encoder:*" \
    attn:{every_route_alone,all_routes_together,pictures,copied_pages,second_prepare,recorded,banks}; do
    name=${test%%:*} CYGNET_TEST_FILTER=${test#*:}
    if timeout -k 20 900 "$release/tests/compute/t_ascend_$name" > "$folder/test" 2>&1; then
      echo "ok      $name ${test#*:}"
    else
      status=1
      echo "FAILED  $name ${test#*:}"
      grep -E 'ERROR|within|expected|signal' "$folder/test" | head -n 12
    fi
  done
  return $status
}

fixtures() { NPU_REAL=$profile CYGNET=$(realpath "$build/cygnet") python3 tests/npu.py text_fixtures media_fixtures; }

speed() {
  local measured=$model graph sizes=(--depth 0,4096 --batch 1,4,16)
  [ -n "$measured" ] || { measured=tests/golden/gemma3-text-tiny sizes=(--depth 0 --prompt 64 --gen 16 --batch 1,4,16 --ctx 1024); }
  for graph in "" --no-graph; do
    echo "-- ${graph:-steps recorded}"
    "$build/cygnet" bench -m "$measured" --backend ascend "${sizes[@]}" $graph || return 1
  done
  echo "-- what a replayed step costs the host"
  "$release/bench/b_ascend"
}

# What a name of this machine, of a person's folder or of the source's would tell.
clean() {
  sed -E "s|$PWD|.|g; s|${HOME:-/nowhere}|~|g; s|/home/[^/ :]+|~|g; s|(^\|[^A-Za-z0-9_])$(uname -n)([^A-Za-z0-9_]\|\$)|\1this-machine\2|g${model:+; s|$model|MODEL|g}"
}

if [[ $PWD == *"|"* || $model == *"|"* ]]; then echo "no | in names of folders, please" && exit 2; fi
export -f wants compile versions probe operators fixtures speed
export parts build release cann folder model profile
: > "$folder/report"

if ! section compile 3600 "building"; then
  say "the build failed"
  cat "$folder/compile"
  exit 2
fi
wants versions && section versions 120 "versions"
if wants probe; then section probe 7200 "points that no document settles"; else "$build/ascend_probe" device > "$folder/probe" 2>&1; fi
device=$(sed -n 's/^    found     //p' "$folder/probe" | head -n 1)
say "device     $device"
case $device in # which of the tests' profiles is nearest
*"(310P)"*) profile=310P-8.5 ;;
*"CANN 8."[1-4],*) profile=A2-8.1 ;;
*"CANN 8."*) profile=A2-8.5 ;;
*"CANN 9."*) profile=A2-9.1 ;;
esac
export profile
if [ -n "$profile" ]; then
  if wants probe; then
    say "points     $(tail -n 1 "$folder/probe")"
    awk '/^(DIFFERS|FAILED) / { what = $1 " " $2 } sub(/^ +found +/, "") && what { printf "           %s: %.300s\n", what, $0; what = "" }' \
      "$folder/probe" | tee -a "$folder/summary"
  fi
  if wants operators; then
    section operators 14400 "operations beside the CPU's"
    say "operators  $(grep -c '^ok ' "$folder/operators") tests passed, $(grep -c '^FAILED ' "$folder/operators") failed"
  fi
  if wants fixtures; then
    section fixtures 14400 "fixtures"
    say "fixtures   $(tail -n 1 "$folder/fixtures")"
  fi
  if wants speed; then
    section speed 7200 "speed"
    say "speed      $(awk '$1 == "decode" { printf "%s%s: %s", n++ ? ", " : "tokens/s of ", $3 " rows", $4 }' "$folder/speed")"
  fi
else
  bad=2
fi

{
  echo "cygnet on an Ascend NPU: the first day, $(date +%F)"
  cat "$folder/summary" "$folder/report"
} | clean > "$report"
echo "the report is $report"
exit $bad
