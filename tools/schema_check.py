#!/usr/bin/env python3
"""Asks PyPI's jsonschema whether generated answers are valid. A development aid; nothing at build or run time needs it.

    CYGNET_SCHEMA_DUMP=/tmp/dump.jsonl build/release/tests/text/t_schema
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install 'jsonschema[format]'
    /tmp/venv/bin/python tools/schema_check.py /tmp/dump.jsonl       lines {"name", "schema", "text"}: each text must be JSON and valid
    /tmp/venv/bin/python tools/schema_check.py --cases tests/golden/schema/cases.jsonl
                                                                     lines {"schema", "valid", "invalid"}: the cases themselves
    /tmp/venv/bin/python tools/schema_check.py --suite JSON-Schema-Test-Suite/tests/draft2020-12 > /tmp/suite.jsonl
    CYGNET_SCHEMA_SUITE=/tmp/suite.jsonl build/release/tests/text/t_schema
"""
import glob
import json
import os
import sys

from jsonschema import Draft7Validator, Draft202012Validator


def validator(schema, formats=True):
    """Of the draft that the schema names, 2020-12 otherwise; formats are asserted."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    of = Draft7Validator if isinstance(named, str) and "draft-07" in named else Draft202012Validator
    return of(schema, format_checker=of.FORMAT_CHECKER if formats else None)


def check_dump(path):
    n = bad = 0
    last, v = None, None
    for line in open(path, encoding="utf-8"):
        case = json.loads(line)
        if case["schema"] != last or json.dumps(case["schema"]) != json.dumps(last):
            last = case["schema"]
            v = validator(last)
        n += 1
        try:
            errors = [e.message for e in v.iter_errors(json.loads(case["text"]))]
        except json.JSONDecodeError as e:
            errors = [f"not JSON: {e}"]
        if errors:
            bad += 1
            print(f"{case['name']}: {case['text'][:300]}: {errors[0][:300]}")
    print(f"{n} texts, {bad} not valid")
    return bad


def check_cases(path):
    n = bad = 0
    for line in open(path, encoding="utf-8"):
        case = json.loads(line)
        if "error" in case or case.get("openapi"):
            continue
        strict, lax = validator(case["schema"]), validator(case["schema"], formats=False)
        for wanted in ("valid", "invalid"):
            for x in case[wanted]:
                n += 1
                good = strict.is_valid(x)
                if good == (wanted == "valid"):
                    continue
                if wanted == "invalid" and "format" in json.dumps(case["schema"]) and lax.is_valid(x):
                    continue  # its checkers of formats let more through than the formats do
                bad += 1
                print(f"{case['name']}: {json.dumps(x)}: expected {wanted}")
    print(f"{n} instances, {bad} otherwise than the case says")
    return bad


def convert_suite(folder):
    """The public test suite, as lines of the form of our cases."""
    for path in sorted(glob.glob(folder + "/*.json") + glob.glob(folder + "/optional/format/*.json")):
        if path.endswith("/regex.json"):
            continue  # as a format an annotation here
        for group in json.load(open(path, encoding="utf-8")):
            by = {True: [], False: []}
            for test in group["tests"]:
                by[test["valid"]].append(test["data"])
            name = f"{os.path.basename(path)[:-5]}: {group['description']}"
            print(json.dumps({"name": name, "schema": group["schema"], "valid": by[True], "invalid": by[False]}))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--suite":
        sys.exit(convert_suite(sys.argv[2]))
    if len(sys.argv) == 3 and sys.argv[1] == "--cases":
        sys.exit(check_cases(sys.argv[2]) > 0)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(check_dump(sys.argv[1]) > 0)
