#!/usr/bin/env python3
"""Every option of every command, as --help lists them: a bad value is refused with a sentence that names it, whether it comes from the command line,
the environment or a config file; a good one does what the page says.

Standard library only. Usage: tests/options.py [NAME...]   last line: N passed, N failed
"""
import json, os, re, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import *

COMMANDS = ("serve", "chat", "complete", "logits", "tokenize", "render", "parse", "preprocess", "bench", "eval", "pull", "inspect")
TMP = tempfile.mkdtemp(prefix="cygnet-options-")
BAD = {  # what is refused before any work; bools: "maybe"; texts that can be anything: None
    "model": None, "quant": "q3", "draft": "65", "draft-model": None, "chat-template": "llama9", "threads": "2000", "ctx": "-1", "kv-type": "q3", "isa": "avx3", "numa": "on", "shortlist": "on", "attn": "cuda", "backend": "gpu", "device-id": "-1", "chunk": "70000",
    "page-size": "257", "max-running-requests": "5000", "max-queued-requests": "-1", "swa-full-tokens-ratio": "1.5", "mem": "much", "mem-fraction-static": "2",
    "step-ms": "-2", "n": "-2", "temp": "101", "top-k": "-2", "top-p": "2", "min-p": "1.1", "frequency-penalty": "3", "presence-penalty": "-3",
    "repetition-penalty": "2.1", "seed": "-2", "stop": None, "min-tokens": "-1", "json-schema": None, "grammar": None, "regex": None, "prompt": None, "file": None, "ids": None, "system": None, "out": None,
    "gen": "0", "depth": None, "batch": None, "repeat": "0", "host": None, "port": "65536", "api-key": None, "api-key-file": None, "admin-api-key": None,
    "tls-cert": None, "tls-key": None, "served-model-name": None, "cors-origin": None, "allowed-hosts": None, "grace-period": "3601", "max-body": "0",
    "max-connections": "0", "idle-timeout": "0", "prep-threads": "65", "config": None,
    "mmproj": None, "media-mem": "much", "media-pixels": "-1", "image": None, "audio": None, "media-tokens": "-1", "media-max": "0", "media-size": "big", "media-total": "big",
    "media-allow": None, "media-path": None, "media-timeout": "0",
    "suite": None, "url": None, "data": None, "log": None, "min": "2", "max": "-2", "limit": "-2", "parallel": "5000", "samples": "1001", "shots": "65", "api": "smoke",
    "serve": None, "workload": "smoke", "rate": None, "concurrency": "-1", "max-concurrency": "-1", "requests": "-1", "warmup": "-2", "input-len": "-1", "output-len": "-1",
    "range-ratio": "2", "groups": "-1", "prompts-per-group": "-1", "system-len": "-1", "turns": "-1", "image-count": "-1", "image-size": None, "image-format": "gif", "dataset": None,
    "slo-ttft-ms": "-1", "slo-tpot-ms": "-1", "slo-e2e-ms": "-1", "csv": None, "svg": None,
    "window": "-1", "stride": "-1", "timeout": "0", "retries": "101", "repo": None}


def run(*args, env=None, stdin=b"", timeout=60):
    p = subprocess.run([CYGNET, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=dict(ENV, **(env or {})))
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def config(values):
    path = os.path.join(TMP, "config.json")
    with open(path, "w") as f:
        json.dump(values, f)
    return path


def options_of(command):
    """(name, takes a value) of each line that begins an option."""
    page = run(command, "--help")[1]
    found = re.findall(r"^  (?:-\w,|   ) --([a-z0-9-]+)(?:, --[a-z0-9-]+)*( [A-Z[]\S*)?", page, re.M)
    check(len(found) >= 5, page)
    return [(name, bool(value)) for name, value in found]


@test
def bad_values_from_everywhere():
    n = 0
    for command in COMMANDS:
        for name, takes in options_of(command):
            check(name in BAD or not takes, "--%s of %s is not in this table" % (name, command))
            bad = BAD.get(name, "maybe") if (command, name) != ("bench", "prompt") else "0"
            if bad is None or name == "help":
                continue
            variable = "CYGNET_" + name.upper().replace("-", "_")
            ways = {"--" + name: run(command, "--%s=%s" % (name, bad)), variable: run(command, env={variable: bad}),
                    name: run(command, "--config", config({name: bad}))}
            for where, (status, out, err) in ways.items():
                check(status == 2 and err.startswith("cygnet: ") and where in err and "expected" in err and not out, (command, where, status, out, err))
                n += 1
    check(n > 300, n)


@test
def one_value_from_everywhere():
    """The same answer, wherever its options stand."""
    values = {"n": 6, "temp": 1, "seed": 5, "top-k": 40, "top-p": 0.9, "min-p": 0.01, "ignore-eos": True, "threads": 1, "ctx": 64, "page-size": 4, "chunk": 8,
              "kv-type": "f32", "isa": "ref", "attn": "ref", "mem": "64MiB", "no-graph": True, "disable-radix-cache": True, "json": True}
    base = ("complete", "-m", TINY, "--ids", "2,300,301")
    want = None
    for way in (run(*base, *["--%s=%s" % (k, str(v).lower() if isinstance(v, bool) else v) for k, v in values.items()]),
                run(*base, env={"CYGNET_" + k.upper().replace("-", "_"): str(v) for k, v in values.items()}), run(*base, "--config", config(values))):
        check(way[0] == 0, way)
        ids = json.loads(way[1])["ids"]
        check(len(ids) == 6 and (want is None or ids == want), (ids, want))
        want = ids


@test
def sampling_does_what_it_says():
    def ids(*args):
        status, out, err = run("complete", "-m", TINY, "--ids", "2,300,301", "--json", "--ignore-eos", "-n", "12", *args)
        check(status == 0, err)
        return json.loads(out)["ids"]
    greedy = ids()
    check(ids("--temp", "1", "--top-k", "1") == greedy and ids("--temp", "1", "--top-p", "0") == greedy and ids("--temp", "1", "--min-p", "1") == greedy, greedy)
    check(ids("--temp", "1", "--seed", "1") == ids("--temp", "1", "--seed", "1") != ids("--temp", "1", "--seed", "2"), "seeds")
    for penalty in ("--frequency-penalty", "--presence-penalty", "--repetition-penalty"):
        many = ids("-n", "200")
        check(ids("-n", "200", penalty, "2") != many, penalty)
    text = json.loads(run("complete", "-m", TINY, "--ids", "2,300,301", "--json", "--ignore-eos", "-n", "12")[1])["text"]
    word = next(c for c in text[2:] if c.isalnum())
    stopped = json.loads(run("complete", "-m", TINY, "--ids", "2,300,301", "--json", "--ignore-eos", "-n", "12", "--stop", word)[1])
    check(stopped["finish_reason"] == "stop" and stopped["text"] == text[:text.index(word)], (stopped, text))


@test
def forms_do_what_they_say():
    def text(*args):
        status, out, err = run("complete", "-m", TINY, "--ids", "2,300,301", "--json", "-n", "40", *args)
        check(status == 0, err)
        return json.loads(out)["text"]
    path = os.path.join(TMP, "form")
    for option, form, want in (("--json-schema", '{"enum": [["yes", 1]]}', '["yes", 1]'), ("--grammar", 'root ::= "ab" [0-9]{3}', "ab[0-9]{3}"), ("--regex", "[x-z]{4}", "[x-z]{4}")):
        found = text(option, form)
        with open(path, "w") as f:
            f.write(form)
        check(found == want or re.fullmatch(want, found), (option, found))
        check(text(option, "@" + path) == found, option)
        status, out, err = run("complete", "-m", TINY, "--ids", "2", option, "@" + path + ".missing")
        check(status != 0 and path in err and not out, (status, out, err))
    status, out, err = run("complete", "-m", TINY, "--ids", "2", "--regex", "a", "--grammar", "root ::= 'a'")
    check(status == 2 and "--regex" in err and "--grammar" in err, (status, err))
    status, out, err = run("complete", "-m", TINY, "--ids", "2", "--json-schema", '{"if": {}}')
    check(status == 2 and '"if"' in err and not out, (status, out, err))


@test
def guesses_and_types():
    def answer(*args):
        status, out, err = run("complete", "-m", TINY, "--ids", "2,300,301,300,301,300,301", "--json", "--ignore-eos", "-n", "30", *args)
        check(status == 0, err)
        return json.loads(out)
    plain = answer("--draft", "-1")
    check(plain["usage"]["completion_tokens_details"]["drafted_tokens"] == 0 and answer("--draft", "8")["ids"] == answer()["ids"] == plain["ids"], plain)
    sizes = [json.loads(run("inspect", TINY, "--json", *args)[1])["memory"]["weight_bytes"] for args in ((), ("--quant", "q8_0"), ("--quant", "q4_0"))]
    check(sizes[0] > sizes[1] > sizes[2], sizes)


@test
def sizes_show_in_server_info():
    def info(*args):
        with Server(*args) as srv:
            return json.loads(srv.ask("GET", "/server_info")[2])
    plain = info()
    for args, key, value in ((("--threads", "1"), "threads", 1), (("--ctx", "512"), "context_length", 512), (("--kv-type", "q8_0"), "kv_cache_dtype", "q8_0"),
                             (("--isa", "ref"), "isa", "ref"), (("--chunk", "64"), "chunked_prefill_size", 64), (("--page-size", "4"), "page_size", 4),
                             (("--max-running-requests", "3"), "max_running_requests", 3), (("--disable-radix-cache",), "disable_radix_cache", True),
                             (("--no-graph",), "graph_buckets", 0), (("--prep-threads", "5"), "prep_threads", 5),
                             (("--served-model-name", "swan"), "served_model_name", "swan"), (("--served-model-name=",), "served_model_name", plain["served_model_name"])):
        found = info(*args)
        check(found[key] == value and (plain[key] != value or args[-1].endswith("=")), (args, found[key]))
    pools = lambda i: (i["max_total_num_tokens"], i["swa_max_total_num_tokens"])
    check(pools(info("--mem", "16MiB")) < pools(plain), "--mem makes the pools smaller")
    full, sliding = pools(info("--swa-full-tokens-ratio", "0.5"))
    check(sliding == full // 2, (full, sliding))


@test
def sizes_that_cannot_be():
    for args, says in ((("--page-size", "3"), ["power of two", "3"]), (("--ctx", "4096"), ["reaches 1024", "4096"]),
                       (("--mem", "1MiB"), ["needs 1", "may use 1.0 MiB", "--ctx", "raise --mem"]),
                       (("--mem-fraction-static", "1e-7"), ["of what is free", "raise --mem-fraction-static"]),
                       (("--swa-full-tokens-ratio", "0.01"), ["0.01", "need 1", "raise it to ", "--chunk"])):
        for command in ("serve", "complete", "inspect"):
            status, out, err = run(command, "-m", TINY, *args, *(("-p", "x") if command == "complete" else ("--port", "0") if command == "serve" else ()))
            check(status in (1, 2) and not out and err.count("\n") == 1 and all(s in err for s in says), (command, args, status, err))
    ratio = re.search(r"raise it to ([0-9.]+)", err).group(1)
    check(run("inspect", TINY, "--swa-full-tokens-ratio", ratio)[0] == 0, "the advice is good: " + ratio)


@test
def one_at_a_time():
    with Server("--max-running-requests", "1", "--max-queued-requests", "1", "--ctx", "1024") as srv:
        answers = []
        body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}
        clients = [threading.Thread(target=lambda: answers.append(srv.ask("POST", "/v1/completions", body))) for _ in range(5)]
        [t.start() for t in clients]
        [t.join() for t in clients]
        good = [a for a in answers if a[0] == 200]
        busy = [a for a in answers if a[0] == 503]
        check(1 <= len(good) <= 3 and len(good) + len(busy) == 5, [a[0] for a in answers])
        check(all(int(a[1]["retry-after"]) >= 1 and json.loads(a[2])["error"]["code"] == "busy" for a in busy), busy)


@test
def connections():
    with Server("--idle-timeout", "1", "--max-connections", "2", "--max-body", "1") as srv:
        def connect():
            s = socket.create_connection(("127.0.0.1", srv.port), timeout=10)
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            check(b" 200 " in s.recv(1000), "health")
            return s
        first, second, third = connect(), connect(), connect()
        check(first.recv(1) == b"", "the longest idle one gave way")
        start = time.time()
        check(third.recv(1) == b"" and second.recv(1) == b"" and 0.3 < time.time() - start < 5, "idle ones are closed")
        check(srv.ask("POST", "/v1/completions", b"x" * (1 << 20) + b"x", {"content-type": "application/json"})[0] == 413, "--max-body")


@test
def hosts_and_origins():
    with Server("--cors-origin", "https://app.test", "--allowed-hosts", "swan.test,lake.test") as srv:
        check(srv.ask("GET", "/health", headers={"Host": "lake.test"})[0] == 200 and srv.ask("GET", "/health", headers={"Host": "evil.test"})[0] == 403, "hosts")
        check(srv.ask("GET", "/health", headers={"Origin": "https://app.test"})[1].get("access-control-allow-origin") == "https://app.test", "origin")
        check("access-control-allow-origin" not in srv.ask("GET", "/health", headers={"Origin": "https://other.test"})[1], "other origin")


@test
def media_options_are_checked_at_start():
    for args, says in ((("--media-allow", "http://x"), "media-allow: expected HOST or HOST:PORT"), (("--media-path", "/no/such/folder"), "media-path: /no/such/folder")):
        status, out, err = run("serve", "-m", TINY, "--port", "0", *args)
        check(status == 2 and says in err and not out, (args, status, err))
    picture = os.path.join(TMP, "x.png")
    open(picture, "wb").write(b"nothing")
    for command in (("complete", "-p", "x"), ("logits", "-p", "x", "--out", os.path.join(TMP, "o.safetensors")), ("chat", "-p", "x")):
        for option, file in (("--image", picture), ("--audio", picture), ("--image", "/no/such/file")):
            status, out, err = run(command[0], "-m", TINY, *command[1:], option, file)
            check(status == 2 and err.startswith("cygnet: ") and err.count("\n") == 1 and not out.strip(), (command, option, status, out, err))


@test
def grace_period():
    for seconds, most in (("0", 10), ("30", 29)):
        with Server("--grace-period", seconds, "--isa", "ref", "--attn", "ref") as srv:
            body = {"prompt": "x", "max_tokens": 900 if seconds == "0" else 200, "ignore_eos": True, "stream": True}
            got = []
            t = threading.Thread(target=lambda: got.append(srv.ask("POST", "/v1/completions", body)))
            t.start()
            wait_until("it runs", lambda: json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]["n_running"] == 1)
            check(srv.term(most) == 0, "ends with 0")
            t.join()
            last = json.loads(sse(got[0][2])[-2])
            check(("error" in last) == (seconds == "0"), last)


@test
def the_log():
    """Useful, quiet when nothing happens, and no flood of its own."""
    for args, lines in ((("--log-requests=off",), 0), ((), 1), (("--quiet",), 0)):
        p = subprocess.Popen([CYGNET, "serve", "-m", TINY, "--port", str(free_port()), *args], stderr=subprocess.PIPE, env=ENV)
        port = int(p.args[5])
        def up():
            try:
                return ask(port, "GET", "/health")[0] == 200
            except OSError:
                return False
        wait_until("the server", up)
        for _ in range(3):
            ask(port, "GET", "/health"), ask(port, "GET", "/metrics"), ask(port, "GET", "/ping")
        ask(port, "POST", "/v1/completions", {"prompt": "secret words", "max_tokens": 3, "ignore_eos": True}, {"x-request-id": "mine", "authorization": "Bearer key-1"})
        c = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(400):
            c.request("POST", "/v1/completions", "{}", {"content-type": "application/json"})
            c.getresponse().read()
        time.sleep(1.1)
        ask(port, "POST", "/tokenize", {"prompt": "x"})
        p.terminate()
        log = p.stderr.read().decode()
        p.wait(20)
        check(log.count("rid=mine api=completion status=200") == lines and "/health" not in log and "/metrics" not in log, log)
        check(log.count("status=400") <= 201 and ("more requests were answered" in log or log.count("status=400") in (0, 400)) or not lines, log.count("status=400"))
        check("secret" not in log and "key-1" not in log, "what is nobody's business")
        if not args:
            check(all(s in log for s in ("memory: weights", "prefix cache up to", "at most 32 requests", "answers at http://")), log)
            check(re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info  request id=", log, re.M), log)


if __name__ == "__main__":
    sys.exit(main())
