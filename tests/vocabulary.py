"""A vocabulary for the fixtures of pictures and sound, which come without: bytes, and the family's markers at the ids of the configuration."""
import atexit, json, os, shutil, struct, tempfile

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
TMP = tempfile.mkdtemp(prefix="cygnet-words-")
atexit.register(shutil.rmtree, TMP, ignore_errors=True)


def enlarge(to, config, size):
    """The mllama fixture with more rows in its embeddings and outputs, so that all bytes have room. Returns the new id of a picture."""
    old = config["text_config"]["vocab_size"]
    path = os.path.join(to, "model.safetensors")
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    out, body = {}, b""
    for key, t in head.items():
        if key == "__metadata__":
            continue
        part = data[slice(*t["data_offsets"])]
        if key.endswith("embed_tokens.weight") or key.endswith("lm_head.weight"):
            width = t["shape"][1] * 2  # bf16
            rows = [part[r * width:(r + 1) * width] for r in range(old)]
            new = b"".join(row[2 + i % (width - 4):] + row[:2 + i % (width - 4)] for i, row in ((2 * i, rows[i % old]) for i in range(size - old)))
            part = part[:old * width] + new + part[old * width:]
            t = dict(t, shape=[t["shape"][0] + size - old, t["shape"][1]])
        out[key] = dict(t, data_offsets=[len(body), len(body) + len(part)])
        body += part
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    os.unlink(path)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
    config["text_config"].update(vocab_size=size)
    config["image_token_index"] = size
    os.unlink(os.path.join(to, "config.json"))
    json.dump(config, open(os.path.join(to, "config.json"), "w"))
    return size


def with_words(name):
    """A folder with the fixture and a vocabulary; made once."""
    to = os.path.join(TMP, name)
    if os.path.isdir(to):
        return to
    os.mkdir(to)
    for f in os.listdir(os.path.join(GOLDEN, name)):
        os.symlink(os.path.join(os.path.join(GOLDEN, name), f), os.path.join(to, f))
    config = json.load(open(os.path.join(to, "config.json")))
    size = config["text_config"]["vocab_size"]
    if "mllama" in name:
        size = image = enlarge(to, config, 300)
        words = {}
        for byte in range(256):  # each byte as the letter that stands for it
            words[chr(byte) if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174 else chr(256 + sum(not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174) for b in range(byte)))] = byte
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"]
        special += ["<|reserved_special_token_%d|>" % i for i in range(size - len(words) - len(special))]
        added = [(len(words) + i, s) for i, s in enumerate(special)] + [(image, "<|image|>")]
        pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        t = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
                                                                     {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
             "model": {"type": "BPE", "vocab": words, "merges": []}}
    else:
        ids = {2: "<bos>", 1: "<eos>", 0: "<pad>", 3: "<unk>"}
        if "gemma3" in name:
            ids.update({105: "<start_of_turn>", 106: "<end_of_turn>", 270: "<start_of_image>", 271: "<end_of_image>", 272: "<image_soft_token>"})
        else:
            ids.update({105: "<|turn>", 106: "<turn|>", 100: "<|channel>", 101: "<channel|>", 98: "<|think|>", 270: "<|image>", 271: "<|audio>", 280: "<|image|>", 281: "<|audio|>",
                        282: "<image|>", 283: "<audio|>", 284: "<|video|>"})
        byte, words = 0, {}
        for i in range(size):
            if i in ids:
                words[ids[i]] = i
            elif byte < 256:
                words["<0x%02X>" % byte] = i
                byte += 1
            else:
                words["unused%d" % i] = i
        assert byte >= 200, byte
        added = [(i, s) for i, s in ids.items()]
        t = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "model": {"type": "BPE", "byte_fallback": True, "vocab": words, "merges": []}}
    t["added_tokens"] = [{"id": i, "content": s, "special": True} for i, s in sorted(added)]
    json.dump(t, open(os.path.join(to, "tokenizer.json"), "w"))
    return to
