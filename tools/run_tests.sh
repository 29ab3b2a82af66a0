#!/bin/sh
# Run cmocka test programs one after the other; print what fails and, last, the line "N passed, N failed".
# Environment: NAME_FILTER (cmocka pattern), VERBOSE=1 to see everything.
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for t in "$@"; do
  start=$(date +%s)
  CYGNET_TEST_FILTER="$NAME_FILTER" "$t" >"$log" 2>&1
  status=$?
  ok=$(grep -c '^\[       OK \]' "$log")
  # cmocka lists each failed test twice (when it fails and in the summary)
  bad=$(grep '^\[  FAILED  \] [a-zA-Z_]' "$log" | sort -u | wc -l)
  [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  if [ "$status" -ne 0 ] || [ -n "$VERBOSE" ]; then
    echo "---- $t: exit $status"
    cat "$log"
  fi
  printf '%-60s %4d passed %3d failed  %3d s\n' "${t#*/tests/}" "$ok" "$bad" "$(($(date +%s) - start))"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
