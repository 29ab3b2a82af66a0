#!/usr/bin/env python3
"""The turns, the table and the CSV of bench/peers.sh, which finds or builds the programs: start that.

Each turn runs every program once for each row, in an order that turns with it; the table has medians, and the median of the turns' ratios.

  prefill  512 tokens of a prompt                    llama-bench -p 512, cygnet bench --prompt 512
  decode   128 tokens of one user                    llama-bench -n 128, cygnet bench --gen 128 (without guesses)
  depth    both behind --depth tokens: 512 and 32    llama-bench -d; ik_llama.cpp's has decoding only (-gp)
  users    --users at once over HTTP, 128 tokens each, short prompts: tokens per second together, sampling and sockets included
           (servers, bench/serve.py's client; cygnet without guesses)
  load     a server from its start until the answer of one token is there, the file warm, 8k context for 4 users
  memory   that server's resident memory after four requests at once; and the part of it that is no file's

Flash attention is on everywhere; keys and values are each program's default (cygnet bf16, the others f16). CSV columns: date, machine, commit, file, test,
threads, program, turn, value, unit. Ctrl-C ends the run and prints what there is.
"""
import argparse, csv, datetime, http.client, json, os, platform, re, shutil, socket, statistics, subprocess, sys, time

sys.dont_write_bytecode = True  # nothing is left in the tree
import serve  # noqa: E402

ROWS = ("prefill", "decode", "depth", "users", "load", "memory")
SHORTER_IS_BETTER = ("s", "MiB")
CTX, SLOTS = 8192, 4


def stop(text):
    sys.exit("peers.py: " + text)


def run(cmd):
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        last = p.stderr.strip().splitlines()[-1:] or ["no word"]
        raise RuntimeError("%s ended with status %d: %s" % (" ".join(cmd[:6]), p.returncode, last[0]))
    return p.stdout


class Program:
    """kind: "cygnet", "llama.cpp" or "ik_llama.cpp"; path: cygnet's binary, or the folder of the other's."""

    def __init__(self, kind, path):
        self.kind, self.path = kind, path

    def bench(self, o, file, threads, prompt, gen, depth, pin):
        """{"prefill": tokens/s, "decode": tokens/s}, as far as the program can tell; prompt or gen 0: not wanted."""
        if self.kind == "cygnet":
            got = json.loads(run(pin + [self.path, "bench", "-m", file, "--threads", str(threads), "--prompt", str(prompt or 1), "--gen", str(gen or 1),
                                        "--depth", str(depth), "--repeat", "1", "--json", "--quiet"]))
            return {r["kind"]: r["tokens_per_s"] for r in got["runs"] if (gen if r["kind"] == "decode" else prompt)}
        cmd = pin + [os.path.join(self.path, "llama-bench"), "-m", file, "-t", str(threads), "-fa", "1", "-r", "1", "-o", "json"]
        if depth and self.kind == "ik_llama.cpp":
            if not gen:
                return {}
            got = json.loads(run(cmd + ["-p", "0", "-n", "0", "-gp", "%d,%d" % (depth, gen)]))
            return {"decode": got[-1]["avg_ts"]}
        got = json.loads(run(cmd + ["-p", str(prompt), "-n", str(gen)] + (["-d", str(depth)] if depth else [])))
        return {"decode" if r["n_gen"] else "prefill": r["avg_ts"] for r in got}


class Running(serve.Server):
    """A server of any of the three; self.took: seconds from its start to the answer of one token."""

    def __init__(self, program, file, threads, slots, ctx, pin):
        self.kind = program.kind
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        if program.kind == "cygnet":
            cmd = [program.path, "serve", "-m", file, "--threads", str(threads), "--port", str(self.port), "--quiet", "--draft", "-1",
                   "--ctx", str(ctx), "--max-running-requests", str(slots)]
        else:
            cmd = [os.path.join(program.path, "llama-server"), "-m", file, "-t", str(threads), "--port", str(self.port), "-fa", "on", "--no-warmup",
                   "-np", str(slots), "-c", str(slots * ctx)] + (["--no-webui"] if program.kind == "llama.cpp" else ["--webui", "none"])
        start = time.monotonic()
        self.p = subprocess.Popen(pin + cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not self.answers():
                if self.p.poll() is not None:
                    raise RuntimeError("%s ended with status %s" % (cmd[0], self.p.returncode))
                if time.monotonic() - start > 600:
                    raise RuntimeError("%s does not answer" % cmd[0])
                time.sleep(0.005)
            self.took = time.monotonic() - start
        except BaseException:
            self.stop()
            raise

    def answers(self):
        """One token, or False while the model is being loaded."""
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            c.request("GET", "/health")
            if c.getresponse().status != 200:
                return False
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            c.request("POST", "/v1/completions", json.dumps({"prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}), {"Content-Type": "application/json"})
            r = c.getresponse()
            r.read()
            return r.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def memory_mib(self):
        with open("/proc/%d/status" % self.p.pid) as f:
            found = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB", f.read(), re.M))
        return {k: int(v) / 1024 for k, v in found.items()}

    def together(self, n, tokens, words):
        bodies = [{"prompt": "Story %d about a %s: %s" % (i, serve.WORDS[i % len(serve.WORDS)], serve.prose(i, words)), "max_tokens": tokens,
                   "ignore_eos": True} for i in range(n)]
        took, made = serve.stream_all(self, "/v1/completions", bodies)
        return made / took


def measure(o, program, file, threads, row, pin):
    """[(test, value, unit)]"""
    if row == "bench":
        got = program.bench(o, file, threads, 512 if "prefill" in o.rows else 0, 128 if "decode" in o.rows else 0, 0, pin)
        return [({"prefill": "prefill 512", "decode": "decode 128"}[k], v, "tok/s") for k, v in got.items()]
    if row == "depth":
        got = program.bench(o, file, threads, 512, 32, o.depth, pin)
        return [({"prefill": "prefill 512 at %d", "decode": "decode 32 at %d"}[k] % o.depth, v, "tok/s") for k, v in got.items()]
    if row == "users":
        s = Running(program, file, threads, o.users, 1024, pin)
        try:
            s.together(1, 8, 8)
            return [("decode, %d users" % o.users, s.together(o.users, 128, 8), "tok/s")]
        finally:
            s.stop()
    with open(file, "rb") as f:  # warm
        while f.read(1 << 24):
            pass
    s = Running(program, file, threads, SLOTS, CTX, pin)
    try:
        got = [("load, first token", s.took, "s")] if "load" in o.rows else []
        if "memory" in o.rows:
            s.together(SLOTS, 8, 300)
            m = s.memory_mib()
            got += [("resident, 8k x 4", m["VmRSS"], "MiB"), ("of that no file's", m["RssAnon"], "MiB")]
        return got
    finally:
        s.stop()


def machine():
    name = platform.machine()
    with open("/proc/cpuinfo") as f:
        found = re.search(r"model name\s*:\s*(.+)", f.read())
    return "%s x %d" % (found.group(1).strip() if found else name, len(os.sched_getaffinity(0)))


def commit():
    git = ["git", "-C", os.path.dirname(os.path.abspath(__file__))]
    try:
        got = subprocess.run(git + ["rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
        changed = subprocess.run(git + ["diff", "--quiet", "HEAD", "--", "../src"], stderr=subprocess.DEVNULL).returncode == 1
    except OSError:
        return "unknown"
    return (got or "unknown") + ("+" if got and changed else "")


def table(figures, kinds):
    """figures: {(file, test, threads, unit): {kind: {turn: value}}}"""
    others = [k for k in kinds if k != "cygnet"]
    print("| file | | threads | unit | %s |" % " | ".join(list(kinds) + ["cygnet : " + k for k in others]))
    print("|---|---|---|---|%s" % ("---|" * (len(kinds) + len(others))))
    for (file, test, threads, unit), by in figures.items():
        cells = []
        for k in kinds:
            v = sorted(by.get(k, {}).values())
            cells.append("" if not v else "%.4g" % statistics.median(v) + (" (%.4g – %.4g)" % (v[0], v[-1]) if len(v) > 1 else ""))
        for k in others:
            both = [by["cygnet"][t] / v for t, v in by.get(k, {}).items() if t in by.get("cygnet", {})]
            cells.append("%.2f" % statistics.median(both) if both else "")
        print("| %s | %s | %d | %s | %s |" % (file, test, threads, unit + (", less is better" if unit in SHORTER_IS_BETTER else ""), " | ".join(cells)))


def numbers(text, option):
    try:
        got = [int(x) for x in text.split(",")]
    except ValueError:
        got = []
    if not got or min(got) < 1:
        stop("%s: expected numbers from 1 on with commas between, found \"%s\"" % (option, text))
    return got


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-m", "--model", action="append", required=True, help="GGUF file; several times for several")
    ap.add_argument("--threads", default="1,2")
    ap.add_argument("--turns", type=int, default=5)
    ap.add_argument("--rows", default=",".join(ROWS))
    ap.add_argument("--depth", type=int, default=16384)
    ap.add_argument("--users", type=int, default=16)
    ap.add_argument("--csv", help="write every figure of every turn here; a file that is there already gets more lines")
    ap.add_argument("--pin", action="store_true", help="to the first processors of the affinity mask, as many as threads (taskset)")
    ap.add_argument("--cygnet", default="build/cygnet")
    ap.add_argument("--llama", default="", help="folder with llama-bench and llama-server")
    ap.add_argument("--ik", default="", help="the same of ik_llama.cpp")
    ap.add_argument("--check", action="store_true", help="look at the options and stop")
    o = ap.parse_args()
    o.threads, o.rows = numbers(o.threads, "--threads"), o.rows.split(",")
    for r in o.rows:
        if r not in ROWS:
            stop("--rows: expected some of %s, found \"%s\"" % (",".join(ROWS), r))
    if o.turns < 1 or o.depth < 1 or o.users < 1:
        stop("--turns, --depth, --users: expected 1 or more")
    for f in o.model:
        if not os.path.isfile(f):
            stop("-m: expected a GGUF file, %s is not there" % f)
    if o.pin and not shutil.which("taskset"):
        stop("--pin: expected taskset to be installed, it is not")
    return o


def main():
    o = options()
    if o.check:
        return 0
    programs = [Program("cygnet", o.cygnet)]
    if o.llama:
        programs.append(Program("llama.cpp", o.llama))
    if o.ik:
        programs.append(Program("ik_llama.cpp", o.ik))
    steps = [r for r in ("bench", "depth", "users", "server") if {"bench": {"prefill", "decode"}, "server": {"load", "memory"}}.get(r, {r}) & set(o.rows)]
    mask = sorted(os.sched_getaffinity(0))
    about = {"date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit()}
    figures, lines, failed, interrupted = {}, [], set(), False
    try:
        for file in o.model:
            name = os.path.basename(file)
            for threads in o.threads:
                pin = ["taskset", "-c", ",".join(map(str, mask[:threads]))] if o.pin else []
                for turn in range(o.turns):
                    order = programs[turn % len(programs):] + programs[:turn % len(programs)]
                    for row in steps:
                        for p in order:
                            if (p.kind, file, row) in failed:
                                continue
                            try:
                                got = measure(o, p, file, threads, row, pin)
                            except (RuntimeError, OSError, ValueError, KeyError) as e:
                                failed.add((p.kind, file, row))
                                print("# %s left out of %s, %s: %s" % (p.kind, name, row, e), file=sys.stderr, flush=True)
                                continue
                            for test, value, unit in got:
                                figures.setdefault((name, test, threads, unit), {}).setdefault(p.kind, {})[turn] = value
                                lines.append({**about, "file": name, "test": test, "threads": threads, "program": p.kind, "turn": turn + 1,
                                              "value": "%.5g" % value, "unit": unit})
                            print("# %s, %d threads, turn %d of %d, %s: %s" % (name, threads, turn + 1, o.turns, p.kind, ", ".join(
                                "%s %.4g %s" % g for g in got) or "nothing"), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print("# ended early", file=sys.stderr)
    print("%(machine)s, commit %(commit)s, %(date)s; medians (least – greatest), ratios of turns\n" % about)
    table(figures, [p.kind for p in programs])
    if o.csv and lines:
        new = not os.path.exists(o.csv) or os.path.getsize(o.csv) == 0
        with open(o.csv, "a", newline="") as f:
            w = csv.DictWriter(f, list(lines[0]), lineterminator="\n")
            if new:
                w.writeheader()
            w.writerows(lines)
    return 130 if interrupted else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
