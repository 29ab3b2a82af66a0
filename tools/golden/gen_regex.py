#!/usr/bin/env python3
"""Cases for tests/text/t_regex.c: random patterns and texts with what Python's re says of them.

Usage: gen_regex.py > tests/golden/text/regex.jsonl
Each line: {"pattern": P, "whole": [texts that match as a whole], "search": [texts in which P is found], "no_whole": [...], "no_search": [...]}
Patterns and texts stay where ECMA-262, Python and RE2 agree (ASCII digits and blanks, no \r).
"""
import json
import random
import re
import sys

r = random.Random(5)
ALPHABET = "abcXY019 -_.é日\n"
ATOMS = ["a", "b", "c", "X", "0", "1", "9", " ", "-", "_", "é", "日", r"\.", ".", r"\d", r"\w", r"\s", r"\D", r"\S", "[abc]", "[^abc]", "[a-c0-1]", "[^a-c\\d]",
         r"[\w.]", r"[\s-]", r"[^\s]", r"\x61", r"\u0062", r"\-", "[é日]", "[a-]", r"[\]a]", "[^\n]", r"\n", "(?:ab|c)", "(a|bc)", "(?P<n>b)", "()"]
QUANTIFIERS = ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "{1,3}?"]


def pattern(depth):
    parts = []
    for _ in range(r.randint(1, 3)):
        items = []
        for _ in range(r.randint(0 if r.random() < 0.1 else 1, 3)):
            if depth and r.random() < 0.25:
                atom = "(" + r.choice(["", "?:"]) + pattern(depth - 1) + ")"
            else:
                atom = r.choice(ATOMS)
            items.append(atom + r.choice(QUANTIFIERS))
        parts.append("".join(items))
    p = "|".join(parts[: r.choice([1, 1, 2, 3])])
    if depth < 2 and r.random() < 0.95:
        return p
    if r.random() < 0.15:
        p = "^" + p
    if r.random() < 0.15:
        p = p + "$"
    if r.random() < 0.1:
        p = "(^|" + r.choice(["_", " ", "a"]) + ")" + p
    if r.random() < 0.1:
        p = p + "(" + r.choice(["_", "b", "$"]) + "|$)"
    return p


def text(p):
    """Half at random, half mutated from something that the pattern is made of."""
    if r.random() < 0.5:
        letters = [c for c in p if c in ALPHABET] or ["a"]
        return "".join(r.choice(letters) for _ in range(r.randint(0, 6)))
    return "".join(r.choice(ALPHABET) for _ in range(r.randint(0, 5)))


def end_is_strict(p):
    return p.replace("$", r"\Z")  # Python's $ also stands before a last line end


n = 0
while n < 600:
    p = pattern(2)
    try:
        compiled = re.compile(end_is_strict(p), re.ASCII)
    except re.error:
        continue
    if r"\Z" in p or len(p) > 80:
        continue
    texts = sorted({text(p) for _ in range(9)})
    line = {"pattern": p, "whole": [], "no_whole": [], "search": [], "no_search": []}
    for t in texts:
        line["whole" if compiled.fullmatch(t) else "no_whole"].append(t)
        line["search" if compiled.search(t) else "no_search"].append(t)
    json.dump(line, sys.stdout, ensure_ascii=False)
    print()
    n += 1
