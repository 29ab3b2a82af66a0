#!/usr/bin/env python3
"""Every fixture of text, pictures and sound through `--backend ascend`, on the emulator of CANN's interface, in all of its profiles.

What is compared: logits and hidden states with the golden values, within what rounding to the device's type explains and beside the CPU with bf16 keys; answers
with the golden ones as far as their margins are above that; graph mode with eager steps, to the token.

Standard library only. Usage: tests/npu.py [NAME...]   last line: N passed, N failed
By default each case runs on one profile, in turns; NPU_ALL=1: every case on every profile.
NPU_REAL=1: on this machine's own CANN and NPU, as its environment has them.
"""
import array, atexit, itertools, shutil, struct, tempfile

from serving import *

GOLDEN = os.path.join(ROOT, "tests", "golden")
EMULATOR = os.environ.get("CYGNET_EMULATOR", os.path.join(os.path.dirname(CYGNET), "release", "tests", "acl_emu"))
REAL = bool(os.environ.get("NPU_REAL"))
PROFILES = ("this machine",) if REAL else ("A2-8.1", "A2-8.5", "A2-9.1", "A3-9.1", "310P-8.5")
ALL = os.environ.get("NPU_ALL") == "1"
TMP = tempfile.mkdtemp(prefix="cygnet-npu-")
atexit.register(shutil.rmtree, TMP, True)
# fixture, form of the file, its golden values
TEXT = [("gemma3-text-tiny", "", "golden.safetensors"), ("gemma3-text-tiny", "model-mixed.gguf", "golden-mixed.safetensors"),
        ("gemma3-text-scale", "", "golden.safetensors"), ("gemma3-text-ropescale", "", "golden.safetensors"),
        ("gemma3-text-ropescale", "model-q8_0.gguf", "golden-q8_0.safetensors")]
TEXT += [(f, m, g) for f in ("gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny") for m, g in (("", "golden.safetensors"), ("model-q8_0.gguf", "golden-q8_0.safetensors"))]
TEXT += [("gemma4-12b-tiny", "", "golden.safetensors")]
MEDIA = ("media-gemma3", "media-gemma4-e2b", "media-gemma4-12b", "media-gemma4-31b", "media-gemma4-26b", "media-mllama", "media-mllama-long")
# Relative L2 of logits to the float32 golden values: some 10 layers of random weights, every activation rounded to 8 bits (bf16) or 11 (fp16).
# An expert that is chosen differently changes a row as a whole. In 31b and 26b the encoder's rows are standardised by numbers that
# are nearly their spread, which enlarges its rounding: transformers itself, in bf16, is 0.18 to 0.31 away there.
BOUND, BOUND_EXPERTS, BOUND_STANDARDISED = 0.08, 0.25, 0.35
SMALL = ("--ctx", "1024", "--threads", "1", "-q")


def run(*args, profile=None, status=0, env=None):
    e = dict(ENV, **(env or {}))
    if profile:
        if not REAL:
            e["ASCEND_HOME_PATH"] = os.path.join(EMULATOR, profile)
        args = (*args, "--backend", "ascend")
    p = subprocess.run([CYGNET, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=900, env=e)
    check(p.returncode == status, (profile, args, p.returncode, p.stderr.decode()[-2000:]))
    return p.stdout.decode(), p.stderr.decode()


def tensors(path):
    """name → (shape, numbers) of a safetensors file, for int32 and float32."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    out = {}
    for key, t in head.items():
        if key == "__metadata__" or t["dtype"] not in ("I32", "F32"):
            continue
        numbers = array.array("i" if t["dtype"] == "I32" else "f")
        numbers.frombytes(data[slice(*t["data_offsets"])])
        out[key] = (t["shape"], numbers)
    return out


def distance(a, b):
    """Relative L2, and the greatest difference."""
    check(len(a) == len(b), (len(a), len(b)))
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) ** 0.5, max(abs(x - y) for x, y in zip(a, b))


def logits(model, ids, *more, profile=None):
    out = os.path.join(TMP, "out.safetensors")
    run("logits", "-m", model, "--ids", ",".join(map(str, ids)), "--out", out, *more, *SMALL, profile=profile)
    return tensors(out)


def complete(model, ids, n, *more, profile=None):
    out, _ = run("complete", "-m", model, "--ids", ",".join(map(str, ids)), "--temp", "0", "-n", str(n), "--ignore-eos", "--json", *more, *SMALL, profile=profile)
    return json.loads(out)["ids"]


class Case:
    """One prompt of a fixture with its golden values; what is not in a trimmed fixture is None."""

    def __init__(self, name, model, files, ids, golden, key):
        self.name, self.model, self.files, self.ids, self.key = name, model, files, list(ids), key
        for what in ("logits", "hidden", "greedy", "greedy_margin"):
            found = golden.get(key + "." + what)
            setattr(self, what, found and found[1])


def text_cases():
    for folder, model, name in TEXT:
        golden = tensors(os.path.join(GOLDEN, folder, name))
        for i in itertools.count():
            if "case%d.ids" % i not in golden:
                break
            yield Case(folder + "/" + model, os.path.join(GOLDEN, folder, model) if model else os.path.join(GOLDEN, folder), [], golden["case%d.ids" % i][1], golden, "case%d" % i)


def media_cases():
    for name in MEDIA:
        folder = os.path.join(GOLDEN, name)
        golden = tensors(os.path.join(folder, "golden.safetensors"))
        for key, c in json.load(open(os.path.join(folder, "cases.json")))["cases"].items():
            files = [x for kind, flag in (("pictures", "--image"), ("sounds", "--audio")) for p in c[kind] for x in (flag, os.path.join(folder, p))]
            yield Case(name, folder, files, c["ids"], golden, key)


def one(c, profile, count):
    what = (c.name, c.key, profile)
    off = None
    bound = BOUND_STANDARDISED if c.files and ("31b" in c.name or "26b" in c.name) else BOUND_EXPERTS if "moe" in c.name or "26b" in c.name else BOUND
    if c.logits:
        found = logits(c.model, c.ids, *c.files, profile=profile)
        far, off = distance(found["logits"][1], c.logits)
        worst = count["worst"].setdefault(c.name, {})
        worst[profile] = max(worst.get(profile, 0), far)
        if far > bound:
            cpu, _ = distance(logits(c.model, c.ids, *c.files, "--kv-type", "bf16")["logits"][1], c.logits)
            check(False, (*what, "logits", far, "CPU with bf16 keys", cpu))
        count["compared"] += 1
    graph = complete(c.model, c.ids, 8, *c.files, profile=profile)
    eager = complete(c.model, c.ids, 8, *c.files, "--no-graph", profile=profile)
    check(graph == eager, (*what, "graph mode", graph, eager))
    for step in range(min(8, len(c.greedy or [])) if off is not None else 0):  # equal as long as nothing could tip over
        if c.greedy_margin[step] < 4 * off:
            break
        check(graph[step] == c.greedy[step], (*what, "answer", graph, list(c.greedy), list(c.greedy_margin)))
        count["answers"] += 1


def through(cases):
    """All of them before any failure is told."""
    count, failed = {"worst": {}, "compared": 0, "answers": 0}, []
    for i, c in enumerate(cases):
        for profile in PROFILES if ALL else (PROFILES[i % len(PROFILES)],):
            try:
                one(c, profile, count)
            except AssertionError as e:
                failed.append(str(e)[:600])
    print("    %d prompts compared, %d answer tokens; relative L2 of logits, the greatest of each fixture%s:" % (count["compared"], count["answers"], " on each profile" if ALL else ""))
    for name, worst in count["worst"].items():
        print("      %-40s %s" % (name, "  ".join("%s %.2g" % x for x in worst.items()) if ALL else "%.2g" % max(worst.values())))
    check(not failed, "%d failed:\n%s" % (len(failed), "\n".join(failed)))
    check(count["compared"] > 0 and count["answers"] > 0, count)


@test
def text_fixtures():
    through(text_cases())


@test
def media_fixtures():
    through(media_cases())


@test
def without_cann():
    """No libraries: a sentence and exit 2."""
    if REAL:
        return  # they are found where CANN is usually installed
    empty = os.path.join(TMP, "nothing")
    os.makedirs(empty, exist_ok=True)
    _, err = run("complete", "-m", TINY, "-p", "a", "-n", "1", "--backend", "ascend", status=2, env={"ASCEND_HOME_PATH": empty, "LD_LIBRARY_PATH": empty})
    check("libascendcl.so" in err and err.count("\n") == 1, err)


if __name__ == "__main__":
    sys.exit(main())
