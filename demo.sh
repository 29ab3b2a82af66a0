#!/bin/sh
# From nothing to an answer: installs what is missing, builds, fetches a small model, answers with it, asks the server over HTTP.
# ./demo.sh serve   leaves the server running in the foreground
set -eu
cd "$(dirname "$0")"
mkdir -p build
. tools/setup.sh
case "${1:-}" in
'' | serve) ;;
*) echo "usage: ./demo.sh [serve]" >&2 && exit 2 ;;
esac

need_packages gcc make libc6-dev libjansson-dev libutf8proc-dev libevent-dev libssl-dev libcurl4-openssl-dev libjpeg-dev libvorbis-dev libmpg123-dev libpng-dev libwebp-dev libgif-dev libexif-dev libsndfile1-dev libsoxr-dev python3 python3-pip curl ca-certificates
step "building"
make -s -j"$(nproc)" build/cygnet
need_sample_model

if [ "${1:-}" = serve ]; then
  step "serving at http://127.0.0.1:30000 (a chat page; Ctrl-C ends it)"
  exec build/cygnet serve -m "$SAMPLE_MODEL"
fi

step "build/cygnet complete -m $SAMPLE_MODEL -p 'The planets of the solar system are Mercury, Venus,' -n 24"
build/cygnet complete -m "$SAMPLE_MODEL" -p 'The planets of the solar system are Mercury, Venus,' -n 24

step "a server for a moment, asked over HTTP"
log=build/demo-server.log
build/cygnet serve -m "$SAMPLE_MODEL" --port 0 >"$log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
url=''
for _ in $(seq 600); do # a busy machine may take a while to load
  url=$(sed -n 's/.*\(http:\/\/127\.0\.0\.1:[0-9]*\).*/\1/p' "$log" | head -n 1)
  [ -n "$url" ] && curl -sf "$url/health" >/dev/null && break
  kill -0 $server 2>/dev/null || { cat "$log" >&2 && stop "the server ended early"; }
  sleep 0.1
done
[ -n "$url" ] || stop "the server did not start; see $log"
body='{"prompt": "Water boils at a temperature of", "max_tokens": 12, "temperature": 0}'
printf "curl %s/v1/completions -H 'content-type: application/json' -d '%s'\n" "$url" "$body"
curl -sf "$url/v1/completions" -H 'content-type: application/json' -d "$body"
echo
kill $server
wait $server || true
trap - EXIT

cat <<END

What next
  build/cygnet chat -m $SAMPLE_MODEL            talk to it (this small one is a base model: it continues texts rather than chats)
  build/cygnet complete -m FILE.gguf -p TEXT    any Gemma 3, Gemma 4 or Llama 3.2 Vision: a GGUF, or a folder with config.json and safetensors; --image FILE shows it a picture
  ./demo.sh serve                               the server and its chat page
  build/cygnet bench -m $SAMPLE_MODEL           how fast, beside what this machine can do
  ./test.sh                                     see it proven
END
