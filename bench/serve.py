#!/usr/bin/env python3
"""What users of a server feel: long chats, edited chats, shared prompts, many users, a book arriving in between. One server, or two side by side.

  bench/serve.py --cygnet build/cygnet -m MODEL.gguf [--peer llama-server] [--threads 2] [--runs abcdef] [--rounds 1]

Each scenario runs on a freshly started server of either kind, one after the other, interleaved by round; figures are medians over rounds.
Standard library only. The peer gets the flags in PEER_FLAGS below: change them there if you know better ones.

  a  a chat of 12 turns, about 4k tokens: prompt tokens sent and computed, time to first token per turn
  b  the same chat, with turn 8 edited and continued
  c  16 users at once with the same system prompt of about 2k tokens and different questions
  d  1, 4 and 16 users decoding: tokens per second, together
  e  16 users decoding when a prompt of about 16k tokens arrives, and a second later a short question: gaps, time to the first token
  f  resident memory at the start and after all of the above, and after --minutes of mixed traffic
"""
import argparse, http.client, json, os, random, selectors, signal, socket, statistics, subprocess, sys, threading, time

PEER_FLAGS = ["-c", "73728", "-np", "18", "-kvu", "-fa", "on", "--no-webui", "--jinja"]

WORDS = ("river stone paper window harbour candle winter garden silver engine mountain letter copper valley music bridge market orange shadow "
         "forest island thunder mirror coffee history signal planet kitchen doctor village weather author summer animal pocket ticket").split()


def prose(seed, n_words):
    r = random.Random(seed)
    out = []
    while len(out) < n_words:
        s = [r.choice(WORDS) for _ in range(r.randint(6, 14))]
        out += [s[0].capitalize()] + s[1:-1] + [s[-1] + "."]
    return " ".join(out)


class Server:
    def __init__(self, kind, binary, model, threads, extra=()):
        self.kind = kind
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        if kind == "cygnet":
            cmd = [binary, "serve", "-m", model, "--threads", str(threads), "--port", str(self.port), "--quiet", *extra]
        else:
            cmd = [binary, "-m", model, "-t", str(threads), "--port", str(self.port), *PEER_FLAGS, *extra]
        self.p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            time.sleep(0.1)
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            if self.p.poll() is not None:
                sys.exit("%s ended with status %s" % (cmd[0], self.p.returncode))
        sys.exit("%s does not answer" % cmd[0])

    def rss_mib(self):
        with open("/proc/%d/status" % self.p.pid) as f:
            for line in f:
                if line.startswith("VmRSS"):
                    return int(line.split()[1]) / 1024

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()

    def ask(self, path, body):
        """One streaming request. Times are seconds from its start."""
        body = dict(body, stream=True, temperature=0, stream_options={"include_usage": True})
        a = {"text": "", "times": [], "usage": None, "computed": None}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        start = time.monotonic()
        a["start"] = start
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            raise RuntimeError("%s: %d %s" % (path, r.status, r.read()[:300]))
        while True:
            line = r.readline()
            if not line:
                break
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            o = json.loads(line[6:])
            if "error" in o:
                raise RuntimeError(str(o["error"]))
            a["usage"] = o.get("usage") or a["usage"]
            if o.get("timings"):
                a["computed"] = o["timings"]["prompt_n"]
            for ch in o.get("choices", []):
                piece = ch.get("text") if "text" in ch else (ch.get("delta") or {}).get("content")
                if piece:
                    a["text"] += piece
                    a["times"].append(time.monotonic() - start)
        c.close()
        u = a["usage"]
        if a["computed"] is None:
            a["computed"] = u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"]
        a["ttft"] = a["times"][0] if a["times"] else time.monotonic() - start
        a["prompt"] = u["prompt_tokens"]
        return a

    def chat(self, messages, n):
        return self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": n})

    def complete(self, prompt, n):
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": n, "ignore_eos": True})


def together(jobs):
    """Run functions at the same time; their results in order."""
    results, errors = [None] * len(jobs), []

    def one(i):
        try:
            results[i] = jobs[i]()
        except Exception as e:
            errors.append(e)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def stream_all(server, path, bodies):
    """Many streaming requests from one thread that only takes bytes in: the clients of a busy server should not work on its cores. What came is read when
    all is over. Returns seconds from the first request to the last token, and the tokens that the servers count."""
    chosen = selectors.DefaultSelector()
    socks, start = [], time.monotonic()
    for body in bodies:
        raw = json.dumps(dict(body, stream=True, temperature=0, stream_options={"include_usage": True})).encode()
        c = socket.create_connection(("127.0.0.1", server.port))
        c.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(raw)) + raw)
        chosen.register(c, selectors.EVENT_READ, len(socks))
        socks.append(bytearray())
    last = start
    while chosen.get_map():
        for key, _ in chosen.select():
            got = key.fileobj.recv(1 << 16)
            if got:
                socks[key.data] += got
                last = time.monotonic()
            else:
                chosen.unregister(key.fileobj)
                key.fileobj.close()
    tokens = 0
    for answer in socks:
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError("%s: %s" % (path, bytes(answer[:300])))
        tokens += max(json.loads(line[6:])["usage"]["completion_tokens"] for line in answer.split(b"\n") if line.startswith(b"data: {") and b'"usage":{' in line)
    return last - start, tokens


TURNS, TURN_WORDS, ANSWER_TOKENS = 12, 130, 120


def chat_from(server, messages, first, edit=""):
    answers = []
    for turn in range(first, TURNS):
        messages.append({"role": "user", "content": "%sTurn %d. %s What stands out?" % (edit if turn == first else "", turn + 1, prose(1000 + turn, TURN_WORDS))})
        a = server.chat(messages, ANSWER_TOKENS)
        messages.append({"role": "assistant", "content": a["text"]})
        answers.append(a)
    return answers


def summary(answers):
    later = answers[1:] if len(answers) > 1 else answers
    return {"prompt tokens sent": sum(a["prompt"] for a in answers), "computed": sum(a["computed"] for a in answers),
            "most computed in a later turn": max(a["computed"] for a in later),
            "first token, median s": statistics.median(a["ttft"] for a in later), "first token, worst s": max(a["ttft"] for a in later)}


def run_a(server):
    server.messages = []
    return summary(chat_from(server, server.messages, 0))


def run_b(server):
    if not hasattr(server, "messages"):
        run_a(server)
    return summary(chat_from(server, server.messages[:14], 7, "Let us put this differently. "))


def run_c(server):
    system = prose(7, 1300)
    start = time.monotonic()
    got = together([lambda i=i: server.chat([{"role": "system", "content": system}, {"role": "user", "content": "Question %d: what about %s?" % (i, WORDS[i])}], 16)
                    for i in range(16)])
    return {"prompt tokens sent": sum(a["prompt"] for a in got), "computed": sum(a["computed"] for a in got),
            "last first token s": max(a["start"] - start + a["ttft"] for a in got)}


def run_d(server):
    out = {}
    for n in (1, 4, 16):
        server.complete("Once upon a time", 8)
        took, tokens = stream_all(server, "/v1/completions", [
            {"prompt": "Story %d about a %s: once upon a time" % (i, WORDS[i]), "max_tokens": 128, "ignore_eos": True} for i in range(n)])
        out["tokens/s of %d" % n] = tokens / took
    return out


def run_e(server):
    book = prose(99, 14600)
    res = {}

    def later(s, f):
        time.sleep(s)
        return f()
    jobs = [lambda i=i: server.complete("Story %d about a %s: once upon a time" % (i, WORDS[i]), 400) for i in range(16)]
    jobs.append(lambda: later(4, lambda: server.complete("Summarise this. " + book, 8)))
    jobs.append(lambda: later(5, lambda: server.complete("Is the sky blue or green or something else today?", 4)))
    got = together(jobs)
    book_at, book_done = got[16]["start"], got[16]["start"] + got[16]["ttft"]
    gaps, before = [], []
    for a in got[:16]:
        for t0, t1 in zip(a["times"], a["times"][1:]):
            at = a["start"] + t1
            (gaps if book_at < at < book_done + 0.5 else before if at < book_at else []).append(t1 - t0)
    gaps.sort()
    before.sort()
    res["book: prompt tokens"] = got[16]["prompt"]
    res["book: first token s"] = got[16]["ttft"]
    res["gap before, p95 s"] = before[int(len(before) * 0.95)] if before else float("nan")
    res["gap meanwhile, median s"] = gaps[len(gaps) // 2] if gaps else float("nan")
    res["gap meanwhile, p95 s"] = gaps[int(len(gaps) * 0.95)] if gaps else float("nan")
    res["gap meanwhile, longest s"] = gaps[-1] if gaps else float("nan")
    res["short question: first token s"] = got[17]["ttft"]
    return res


def run_f(server, minutes):
    out = {"resident at start MiB": server.rss_at_start, "after the runs MiB": server.rss_mib()}
    end, n = time.monotonic() + 60 * minutes, 0
    r = random.Random(5)
    while time.monotonic() < end:
        together([lambda s=r.random(): server.chat([{"role": "user", "content": prose(s, r.randint(5, 400))}], r.randint(1, 24)) for _ in range(8)])
        n += 8
    if n:
        out["after %d more requests MiB" % n] = server.rss_mib()
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cygnet", default="build/cygnet")
    ap.add_argument("--peer", help="llama-server binary")
    ap.add_argument("-m", "--model", required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--runs", default="abcdef")
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--minutes", type=float, default=0, help="of mixed traffic in f")
    ap.add_argument("--json")
    o = ap.parse_args()
    kinds = [("cygnet", o.cygnet)] + ([("peer", o.peer)] if o.peer else [])
    figures = {}
    for rnd in range(o.rounds):
        for kind, binary in kinds if rnd % 2 == 0 else kinds[::-1]:
            server = Server(kind, binary, o.model, o.threads)
            server.rss_at_start = server.rss_mib()
            try:
                for name in o.runs:
                    got = run_f(server, o.minutes) if name == "f" else globals()["run_" + name](server)
                    for k, v in got.items():
                        figures.setdefault((name, k), {}).setdefault(kind, []).append(v)
                    print("# %s %s %s" % (kind, name, {k: round(v, 3) for k, v in got.items()}), file=sys.stderr, flush=True)
            finally:
                server.stop()
    head = [k for k, _ in kinds]
    print("| | | %s |\n|---|---|%s" % (" | ".join(head), "---|" * len(head)))
    for (name, what), by in figures.items():
        print("| %s | %s | %s |" % (name, what, " | ".join("%.4g" % statistics.median(by[k]) if k in by else "" for k in head)))
    if o.json:
        with open(o.json, "w") as f:
            json.dump([{"run": n, "figure": k, **v} for (n, k), v in figures.items()], f, indent=1)


if __name__ == "__main__":
    main()
