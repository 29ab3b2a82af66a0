#!/bin/sh
# Regenerate golden files under tests/golden (make golden). Needs a Python environment with torch, torchvision, transformers, safetensors, gguf, pillow, soundfile, soxr:
#   python3 -m venv build/venv && build/venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors==0.8.0 gguf==0.19.0 torchvision==0.29.2 pillow==13.0.0 soundfile==0.14.0 soxr==1.1.0
# Same versions, same machine: same bytes. check_text.py is an independent float64 program that must agree with what is written.
set -eu
cd "$(dirname "$0")/../.."
py=${PYTHON:-build/venv/bin/python}
"$py" -c 'import torch, transformers, safetensors, gguf' || {
  echo "make golden: $py lacks torch, transformers, safetensors or gguf; see tools/golden/make.sh" >&2
  exit 1
}
out=build/golden
rm -rf "$out" && mkdir -p "$out"
"$py" tools/golden/gen_text.py "$out"
(cd "$out" && "../../$py" ../../tools/golden/gen_gguf.py gemma3-text-tiny mixed && "../../$py" ../../tools/golden/gen_gguf.py gemma3-text-ropescale bf16 q8_0)
(cd "$out" && "../../$py" ../../tools/golden/check_text.py gemma3-text-*)
for d in gemma3-text-tiny gemma3-text-ropescale gemma3-text-scale; do cp "$out/$d"/* "tests/golden/$d/"; done
"$py" tools/golden/gen_media.py "$out" && "$py" tools/golden/check_media.py "$out" && "$py" tools/golden/trim_media.py "$out" tests/golden
"$py" tools/golden/media_odd.py tests/golden/media-odd # ffmpeg and ImageMagick too
"$py" tools/golden/trim_text.py tests/golden/gemma[34]-*/golden.safetensors
"$py" tools/golden/gen_dtype.py tests/golden/dtype.bin
echo "golden files written; git diff --stat tests/golden shows what changed"
