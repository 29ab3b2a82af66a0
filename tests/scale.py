#!/usr/bin/env python3
"""Two servers behind one address: HAProxy and nginx with the files in deploy/, and PyPI's sglang-router (cache-aware).

Usage: tests/scale.py [NAME...]; a test is left out with a sentence when its program is not here. Last line: N passed, N failed
"""
import importlib.util, json, os, re, shutil, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import *


def left_out(name, what):
    print("left out: %s needs %s" % (name, what))


class Balancer:
    """A file of deploy/ with its ports replaced, and the program that reads it."""

    def __init__(self, template, command, servers):
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="cygnet-scale-")
        with open(os.path.join(ROOT, "deploy", template)) as f:
            text = f.read()
        for old, new in ((8080, self.port), (8081, servers[0].port), (8082, servers[1].port)):
            text = text.replace("127.0.0.1:%d" % old, "127.0.0.1:%d" % new)
        if template.startswith("nginx"):
            text = "daemon off; pid %s/pid; error_log %s/error.log;\n" % (self.dir, self.dir) + text.replace(
                "http {", "http {\n access_log off; client_body_temp_path %s/b; proxy_temp_path %s/p; fastcgi_temp_path %s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s;" % ((self.dir,) * 5), 1)
        path = os.path.join(self.dir, template)
        with open(path, "w") as f:
            f.write(text)
        self.p = subprocess.Popen(command(path, self.dir), stdout=subprocess.DEVNULL, stderr=open(os.path.join(self.dir, "log"), "w"))

    def __enter__(self):
        wait_until("the balancer", lambda: alive(self.port), 20)
        return self

    def __exit__(self, *_):
        self.p.terminate()
        try:
            self.p.wait(10)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def alive(port):
    try:
        return ask(port, "GET", "/health", timeout=5)[0] == 200
    except OSError:
        return False


def complete(port, prompt, n, key="", stream=False):
    body = {"model": "any", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": stream}
    return ask(port, "POST", "/v1/completions", body, {"Authorization": "Bearer " + key} if key else None)


def finished(srv):
    return json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]["n_finished"]


def through(port, servers):
    """What every balancer must do: both work, a user stays, streams stream, a draining server loses nobody."""
    users = ["user-%d" % i for i in range(12)]
    for u in users:
        check(complete(port, "hello from " + u, 4, u)[0] == 200, u)
    check(all(finished(s) > 0 for s in servers), "both servers have work: %s" % [finished(s) for s in servers])

    prompt = "A long beginning that both turns have in common, word after word after word."
    complete(port, prompt, 4, "user-3")
    o = json.loads(complete(port, prompt + " And more.", 4, "user-3")[2])
    check(o["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, o["usage"])

    want = json.loads(complete(port, "stream this", 40)[2])["choices"][0]["text"]
    status, head, data = complete(port, "stream this", 40, stream=True)
    chunks = [json.loads(l) for l in sse(data)[:-1]]
    check(status == 200 and "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == want, data)

    # one server drains while requests keep coming: each of them is answered
    answers, failures, stop = [], [], threading.Event()

    def keep_asking(i):
        while not stop.is_set():
            try:
                status, head, data = complete(port, "again and again %d" % i, 6, "user-%d" % i)
                answers.append(status)
                if status != 200:
                    failures.append((status, head, data))
            except Exception as e:
                failures.append(repr(e))
    threads = [threading.Thread(target=keep_asking, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    time.sleep(0.5)
    check(servers[0].term(30) == 0, "the drained server ends with 0")
    time.sleep(2)
    stop.set()
    [t.join() for t in threads]
    check(len(answers) > 12 and not failures, failures[:3])
    return answers


@test
def haproxy():
    if not shutil.which("haproxy"):
        return left_out("haproxy", "the Debian package haproxy")
    with Server() as one, Server() as two, Balancer("haproxy.cfg", lambda path, _: ["haproxy", "-db", "-f", path], (one, two)) as b:
        answers = through(b.port, (one, two))
        check(set(answers) == {200}, {s: answers.count(s) for s in set(answers)})


@test
def nginx():
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not os.path.exists(program):
        return left_out("nginx", "the Debian package nginx-light")
    with Server() as one, Server() as two, Balancer("nginx.conf", lambda path, d: [program, "-p", d, "-c", path], (one, two)) as b:
        answers = through(b.port, (one, two))
        check(set(answers) == {200}, {s: answers.count(s) for s in set(answers)})


@test
def sglang_router():
    if importlib.util.find_spec("sglang_router") is None:
        return left_out("sglang_router", "the Python package sglang-router")
    with Server() as one, Server() as two:
        port, prometheus = free_port(), free_port()
        log = tempfile.mkdtemp(prefix="cygnet-router-")
        p = subprocess.Popen([sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", one.url, two.url, "--policy", "cache_aware", "--host", "127.0.0.1",
                              "--port", str(port), "--prometheus-port", str(prometheus), "--worker-startup-check-interval", "1", "--log-dir", log,
                              "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-check-timeout-secs", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until("the router", lambda: p.poll() is None and alive(port), 60)
            wait_until("its workers", lambda: complete(port, "hello", 2)[0] == 200, 30)
            prompts = ["%s: tell me about it." % w * 6 for w in ("stone", "river", "garden", "thunder")]
            for i in range(24):  # a conversation is best answered where its beginning is cached
                body = {"text": prompts[i % 4], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
                status, _, data = ask(port, "POST", "/generate", body)
                check(status == 200, data)
                if i >= 12:
                    check(json.loads(data)["meta_info"]["cached_tokens"] > 0, data)
            body = {"model": "any", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0, "stream": True}
            status, _, data = ask(port, "POST", "/v1/chat/completions", body)
            check(status == 200 and sse(data)[-1] == "[DONE]", data)
            check(one.term(30) == 0, "the drained server ends with 0")
            # it does not pass a refused connection on to the other worker: docs/scaling.md
            wait_until("the router's health check", lambda: complete(port, "after the drain", 2)[0] == 200, 20)
            time.sleep(1.5)
            for _ in range(12):
                status, head, data = complete(port, "after the drain", 2)
                check(status == 200, ("after the drain", status, head, data))
        finally:
            p.kill()
            p.wait()
            shutil.rmtree(log, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
