#!/bin/bash
# The accuracy gates of tests/gates, for those models and data sets that are here.
#
#   tools/gates.sh [NAME...]       all, or these
#
# Environment
#   MODELS   folder with the checkpoints: NAME/ (config.json and safetensors), or NAME.gguf with NAME-mmproj.gguf beside it   (build/models)
#   DATA     folder with the data sets: gsm8k/, mmmu/ as docs/eval.md says                                                  (build/data)
#   BACKEND  "ascend": the flags of an NPU are added
#   URL      ask this server instead, whatever it serves
#   LOGS     folder for a log of each gate, which can be continued
#   MORE     further options of `cygnet eval`
#   CYGNET   the program   (build/cygnet)
# A gate whose model or data is missing is skipped with a sentence. Last line: N passed, N failed. Exit status 1 when one failed.
cd "$(dirname "$0")/.." || exit 2
cygnet=${CYGNET:-build/cygnet} models=${MODELS:-build/models} data=${DATA:-build/data}
[ $# -eq 0 ] && set -- $(cd tests/gates && for f in *.gate; do echo "${f%.gate}"; done)
passed=0 failed=0

for name in "$@"; do
  if [ ! -f "tests/gates/$name.gate" ]; then
    echo "gates: no gate \"$name\": expected one of $(cd tests/gates && echo *.gate | sed 's/\.gate//g')"
    exit 2
  fi
  model='' suite='' min='' flags='' npu=''
  . "tests/gates/$name.gate"
  if [ ! -e "$data/$suite" ]; then
    echo "skipped $name: no data: expected $data/$suite (docs/eval.md says how to get it)"
    continue
  fi
  if [ -n "$URL" ]; then
    who=(--url "$URL")
  else
    who=(-m "$models/$model")
    if [ ! -d "$models/$model" ]; then
      who=(-m "$models/$model.gguf")
      if [ ! -f "$models/$model.gguf" ]; then
        echo "skipped $name: no model: expected the folder $models/$model or the file $models/$model.gguf"
        continue
      fi
      [ "$suite" = mmmu ] && who+=(--mmproj "$models/$model-mmproj.gguf")
    fi
    who+=($flags)
    [ "$BACKEND" = ascend ] && who+=($npu)
  fi
  [ -n "$LOGS" ] && who+=(--log "$LOGS/$name.jsonl")
  if said=$("$cygnet" eval "$suite" "${who[@]}" --data "$data/$suite" --min "$min" -q $MORE 2>&1); then
    echo "passed  $name (at least $min)"
    passed=$((passed + 1))
  else
    echo "FAILED  $name (at least $min)"
    failed=$((failed + 1))
  fi
  echo "$said" | sed 's/^/          /'
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
