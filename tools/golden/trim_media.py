#!/usr/bin/env python3
"""Copies the media fixtures that gen_media.py made into tests/golden, without the tensors that other tensors of them check as well.

    trim_media.py FROM TO        FROM holds media-*/; TO is tests/golden

Left out: what the installed transformers does otherwise than the release (hf_*), logits of the greedy steps (their ids and margins stay), hidden states of all
but the two shortest cases with media, encoder layers and patches of all but the first picture, 8-bit pictures whose crc32 stays.
"""
import json
import os
import shutil
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]) for k, v in head.items()}


def write(path, tensors):
    head, at = {}, 0
    for k, (dtype, shape, raw) in tensors.items():
        head[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            f.write(raw)


def keep_model(tensors, name):
    cases = {}
    for k, (_, shape, _) in tensors.items():
        case, _, what = k.partition(".")
        if what == "hidden":
            cases[case] = shape[1]
    short = sorted(cases, key=lambda c: (c == "text", cases[c]))[:1] + ["text"]
    media = sorted({k.split(".")[0] for k in tensors if k.startswith(("image", "sound")) and k.split(".")[0][5:].isdigit()})
    first = {m[:5]: m for m in reversed(media)}
    for k, v in tensors.items():
        who, _, what = k.partition(".")
        if what.startswith("hf_") or what.startswith("hfrows") or what == "greedy_logits":
            if not (what == "hf_bank" and name == "media-mllama"):
                continue
        if what == "hidden" and who not in short:
            continue
        if what in ("layers", "ln1", "ln2", "dense", "patches", "pixel_values", "embedded", "global_layers", "features") and who[:5] in first:
            if who != first[who[:5]] and not (who.startswith("sound") and len(v[2]) < 20000):
                continue
        if what == "pixel_values" and name == "media-mllama-long":
            continue
        if what in ("patches", "layers") and name in ("media-gemma4-26b", "media-gemma4-31b")[: 1 + (what == "patches")]:
            continue
        yield k


def keep_prep(tensors):
    wide = ("gemma4.text.", "gemma4.odd.", "gemma4.turned.", "gemma4.veil.", "gemma4_unified.odd.", "gemma3.odd.", "gemma3.photo.", "gemma3.strip~crops.",
            "mllama448.odd.", "mllama560.odd.")
    for k, v in tensors.items():
        if k.endswith(".full_u8") or k.endswith(".full_positions"):
            continue
        if k.endswith((".sample", ".positions")) and not k.startswith(wide):
            continue
        if k.endswith(".mono") and len(v[2]) > 70000:
            continue
        yield k


def main():
    source, target = sys.argv[1:]
    for name in sorted(os.listdir(source)):
        folder = os.path.join(source, name)
        if not name.startswith("media-"):
            continue
        out = os.path.join(target, name)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder, out)
        for root, folders, files in os.walk(out):
            os.chmod(root, 0o755)
            for f in files:
                os.chmod(os.path.join(root, f), 0o644)
        tensors = read(os.path.join(folder, "golden.safetensors"))
        keep = list(keep_prep(tensors) if name == "media-prep" else keep_model(tensors, name))
        write(os.path.join(out, "golden.safetensors"), {k: tensors[k] for k in keep})
        print(name, os.path.getsize(os.path.join(out, "golden.safetensors")), "bytes of", os.path.getsize(os.path.join(folder, "golden.safetensors")))


if __name__ == "__main__":
    main()
