#!/bin/sh
# Who may include whom (docs/map.md). Every #include "room/..." under src/ is held against this table; anything else fails.
#   base ← files ← text;  base ← kv ← compute;  base files kv compute ← models;  all of these ← engine;  base files text + cygnet.h ← server;  base files + cygnet.h ← eval;  base files, eval/url.h ← load
cd "$(dirname "$0")/.." || exit 2
allowed() {
  case "$1" in
  base) echo base ;;
  files) echo base files ;;
  text) echo base files text ;;
  kv) echo base kv ;;
  compute) echo base kv compute ;;
  models) echo base files kv compute models ;;
  engine) echo base files text kv compute models engine ;;
  server) echo base files text server ;;
  eval) echo base files eval ;;
  load) echo base files eval load ;;
  esac
}
bad=0
for room in base files text kv compute models engine server eval load; do
  ok=" $(allowed $room) "
  for line in $(grep -rhoE '#include "[a-z]+/[a-z0-9_/]+\.h"' "src/$room" 2>/dev/null | sed 's/#include "//; s/"//' | sort -u); do
    from=${line%%/*}
    case "$ok" in
    *" $from "*) ;;
    *)
      echo "layers: src/$room includes $line: $room may use only$ok"
      grep -rln "\"$line\"" "src/$room" | sed 's/^/  in /'
      bad=1
      ;;
    esac
  done
done
# compute takes only the kind enum and the page and slot vocabulary of kv
if grep -rnE '#include "kv/(radix|banks)' src/compute 2>/dev/null; then
  echo "layers: compute may include kv/kv.h only"
  bad=1
fi
# load takes only the HTTP client of eval
if grep -rnE '#include "eval/' src/load | grep -v '"eval/url.h"'; then
  echo "layers: load may include eval/url.h only"
  bad=1
fi
# exit() belongs to main.c
if grep -rnE '(^|[^_a-z])exit\(' src --include='*.c' | grep -v '^src/main.c'; then
  echo "layers: only src/main.c may call exit()"
  bad=1
fi
[ $bad -eq 0 ] && echo "layers: ok"
exit $bad
