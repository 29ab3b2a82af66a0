#!/usr/bin/env python3
"""Data sets as they are published (Parquet) -> .jsonl files and pictures, as `cygnet eval --data` reads them.

    pip install pyarrow
    tools/parquet_to_jsonl.py FOLDER_OR_FILE... OUT

Each .parquet becomes OUT/NAME.jsonl, one row a line; shards of one table (NAME-00000-of-00003.parquet) stay apart, in the order of their names. What lies
in folders below (MMMU has one for each subject) gets the folder's name in front, so that files do not meet. Pictures ({"bytes", "path"}) become files in
OUT/pictures, and the row says their path; equal pictures are one file. Bytes that are no picture are left out.
"""
import hashlib, json, os, re, sys

KINDS = ((b"\x89PNG", 0, "png"), (b"\xff\xd8", 0, "jpg"), (b"GIF8", 0, "gif"), (b"WEBP", 8, "webp"), (b"BM", 0, "bmp"))


def picture(data, out):
    """Path of a file with these bytes, from OUT."""
    kind = next((k for magic, at, k in KINDS if data[at : at + len(magic)] == magic), None)
    if kind is None:
        return None
    name = os.path.join("pictures", "%s.%s" % (hashlib.sha256(data).hexdigest()[:24], kind))
    path = os.path.join(out, name)
    if not os.path.exists(path):
        with open(path + ".part", "wb") as f:
            f.write(data)
        os.replace(path + ".part", path)
    return name


def plain(value, out):
    """What JSON can say of a value."""
    if isinstance(value, dict):
        data = value.get("bytes")
        if isinstance(data, (bytes, bytearray)):
            return picture(bytes(data), out)
        return {k: plain(v, out) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, out) for v in value]
    if isinstance(value, (bytes, bytearray)):
        return picture(bytes(value), out)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def sources(paths):
    """(.parquet file, name of its .jsonl)"""
    for path in paths:
        if not os.path.isdir(path):
            yield path, os.path.basename(path)
            continue
        for folder, _, files in sorted(os.walk(path)):
            below = os.path.relpath(folder, path)
            front = "" if below == "." else below.replace(os.sep, "-") + "-"
            for f in sorted(files):
                if f.endswith(".parquet"):
                    yield os.path.join(folder, f), front + f


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        sys.exit("parquet_to_jsonl: pyarrow is missing: pip install pyarrow")
    out = sys.argv[-1]
    os.makedirs(os.path.join(out, "pictures"), exist_ok=True)
    n = 0
    for path, name in sources(sys.argv[1:-1]):
        target = os.path.join(out, re.sub(r"\.parquet$", "", re.sub(r"[^\w.()-]+", "_", name)) + ".jsonl")
        rows = 0
        with open(target + ".part", "w", encoding="utf-8") as f:
            for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    f.write(json.dumps(plain(row, out), ensure_ascii=False) + "\n")
                    rows += 1
        os.replace(target + ".part", target)
        print("%s: %d rows" % (target, rows))
        n += 1
    if n == 0:
        sys.exit("parquet_to_jsonl: no .parquet files in %s" % ", ".join(sys.argv[1:-1]))


if __name__ == "__main__":
    main()
