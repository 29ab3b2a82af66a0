"""What the tests of the server in Python share: a server on a free port, plain requests. Standard library only."""
import http.client, json, os, re, signal, socket, subprocess, sys, time, traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CYGNET = os.environ.get("CYGNET", os.path.join(ROOT, "build", "cygnet"))
TINY = os.path.join(ROOT, "tests", "golden", "gemma3-text-tiny")
SAMPLE = os.environ.get("CYGNET_SAMPLE_MODEL", os.path.join(ROOT, "build", "models", "gemma-3-270m-q4_k_m.gguf"))
ENV = {k: v for k, v in os.environ.items() if not k.startswith("CYGNET_")}
subprocess.run([sys.executable, os.path.join(ROOT, "tools", "golden", "twin.py"), "unpack"], check=True)
tests = []


def test(fn):
    tests.append(fn)
    return fn


def check(cond, what):
    if not cond:
        raise AssertionError(what)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(what, ready, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if ready():
            return
        time.sleep(0.05)
    raise AssertionError("waited %d s for %s" % (seconds, what))


class Server:
    """`cygnet serve` on a port of its own, or on one that is given."""

    def __init__(self, *args, model=TINY, port=0):
        self.p = subprocess.Popen([CYGNET, "serve", "-m", model, "--port", str(port), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENV)
        log = b""
        end = time.time() + 60
        while time.time() < end:
            line = self.p.stdout.readline()
            log += line
            m = re.search(rb"https?://127\.0\.0\.1:(\d+)", line)
            if m:
                self.port = int(m.group(1))
                self.url = "http://127.0.0.1:%d" % self.port
                import threading
                threading.Thread(target=self.p.stdout.read, daemon=True).start()  # or a full pipe would stop it
                return
            if not line and self.p.poll() is not None:
                break
        raise AssertionError("server did not start: " + log.decode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()

    def term(self, seconds=20):
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(seconds)

    def ask(self, method, target, body=None, headers=None):
        return ask(self.port, method, target, body, headers)


def ask(port, method, target, body=None, headers=None, timeout=60):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    h = {"content-type": "application/json"} if body is not None else {}
    h.update(headers or {})
    try:
        c.request(method, target, json.dumps(body) if isinstance(body, (dict, list)) else body, h)
        r = c.getresponse()
        data = r.read()
        return r.status, dict((k.lower(), v) for k, v in r.getheaders()), data
    finally:
        c.close()


def sse(data):
    return [l[6:] for l in data.decode().split("\n") if l.startswith("data: ")]


def main():
    passed = failed = 0
    for fn in tests:
        if len(sys.argv) > 1 and fn.__name__ not in sys.argv[1:]:
            continue
        try:
            fn()
            passed += 1
        except Exception as e:
            failed += 1
            where = traceback.extract_tb(e.__traceback__)
            print("FAILED %s: line %s: %s: %s" % (fn.__name__, [f.lineno for f in where if os.path.abspath(f.filename) == os.path.abspath(sys.argv[0])][-1:], type(e).__name__, str(e)[:2000]))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0
