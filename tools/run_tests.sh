#!/bin/sh
# Run cmocka test programs, two at a time; print a line each, everything a failing one said, and last "N passed, N failed".
# Two times for each: from its start to its end, and of processors, which other work on the machine does not change much.
# Environment: NAME_FILTER (cmocka pattern), JOBS (programs at a time), VERBOSE=1 to see what all of them said.
jobs=${JOBS:-$(nproc)}
[ "$jobs" -gt 2 ] && [ -z "$JOBS" ] && jobs=2 # many programs have threads of their own
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

n=0
for t in "$@"; do
  n=$((n + 1))
  printf '%d %s\n' "$n" "$t"
done | CYGNET_TEST_FILTER="$NAME_FILTER" xargs -r -P "$jobs" -n 2 sh -c '
  start=$(date +%s)
  "$2" >"$0/$1.log" 2>&1
  status=$?
  times >"$0/$1.times" # its second line: of the children, user and system, as "1m2.345s 0m6.789s"
  cpu=$(tail -n 1 "$0/$1.times" | sed "s/[ms]/ /g" | awk "{ printf \"%d\", (\$1 + \$3) * 60 + \$2 + \$4 + 0.5 }")
  echo "$status $(($(date +%s) - start)) $cpu" >"$0/$1.end"' "$logs"

passed=0 failed=0 n=0
for t in "$@"; do
  n=$((n + 1))
  status=1 seconds=0 cpu=0
  read -r status seconds cpu <"$logs/$n.end"
  ok=$(grep -c '^\[       OK \]' "$logs/$n.log")
  bad=$(grep '^\[  FAILED  \] [a-zA-Z_]' "$logs/$n.log" | sort -u | wc -l) # cmocka names a failed test twice
  [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  if [ "$status" -ne 0 ] || [ -n "$VERBOSE" ]; then
    echo "---- $t: exit $status"
    cat "$logs/$n.log"
  fi
  printf '%-60s %4d passed %3d failed  %3d s, %3d s of processors\n' "${t#*/tests/}" "$ok" "$bad" "$seconds" "$cpu"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
