#!/usr/bin/env python3
"""Files of the fixtures that hold the same numbers as another one, kept as what differs. Standard library only.

  twin.py unpack [FOLDER]      make every NAME that has a NAME.twin beside it, where it is missing or older    (make does it before tests)
  twin.py pack NAME SOURCE     write NAME.twin: which pieces of SOURCE, in the same folder, NAME consists of, and the bytes between

A twin: one line of JSON {"source", "bytes", "sha256", "pieces": [[at, n] of the source | n of the bytes that follow]}, then those bytes, deflated.
"""
import hashlib, json, os, sys, zlib

PIECE = 1024  # bytes that must agree before a piece is worth naming


def pack(name, source):
    with open(name, "rb") as f:
        data = f.read()
    with open(os.path.join(os.path.dirname(name), source), "rb") as f:
        base = f.read()
    where = {}
    for at in range(0, len(base) - PIECE, 32):
        where.setdefault(base[at:at + PIECE], at)
    pieces, rest, at, plain = [], [], 0, 0
    while at < len(data):
        found = where.get(data[at:at + PIECE])
        if found is None:
            at += 1
            continue
        n = PIECE
        while at + n < len(data) and found + n < len(base) and data[at + n] == base[found + n]:
            n += 1
        if at > plain:
            pieces.append(at - plain)
            rest.append(data[plain:at])
        pieces.append([found, n])
        at = plain = at + n
    pieces.append(len(data) - plain)
    rest.append(data[plain:])
    head = dict(source=source, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), pieces=pieces)
    with open(name + ".twin", "wb") as f:
        f.write(json.dumps(head).encode() + b"\n" + zlib.compress(b"".join(rest), 9))


def unpack(twin):
    name = twin[:-len(".twin")]
    if os.path.exists(name) and os.path.getmtime(name) >= os.path.getmtime(twin):
        return
    with open(twin, "rb") as f:
        head = json.loads(f.readline())
        rest = zlib.decompress(f.read())
    with open(os.path.join(os.path.dirname(name), head["source"]), "rb") as f:
        base = f.read()
    out, at = [], 0
    for p in head["pieces"]:
        if isinstance(p, list):
            out.append(base[p[0]:p[0] + p[1]])
        else:
            out.append(rest[at:at + p])
            at += p
    data = b"".join(out)
    if len(data) != head["bytes"] or hashlib.sha256(data).hexdigest() != head["sha256"]:
        sys.exit("%s: does not fit its source %s; run git checkout on both" % (twin, head["source"]))
    part = "%s.%d" % (name, os.getpid())
    with open(part, "wb") as f:
        f.write(data)
    os.rename(part, name)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "pack":
        pack(sys.argv[2], sys.argv[3])
    elif len(sys.argv) in (2, 3) and sys.argv[1] == "unpack":
        default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden")
        for folder, _, files in os.walk(sys.argv[2] if len(sys.argv) == 3 else default):
            for file in files:
                if file.endswith(".twin"):
                    unpack(os.path.join(folder, file))
    else:
        sys.exit(__doc__)
