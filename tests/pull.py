#!/usr/bin/env python3
"""`cygnet pull` against a hub of its own that redirects to another port for large files, and whose every fault is asked for: cut and silent connections, wrong
bytes, wrong ranges, refusals; and `-m ORG/NAME` for what was pulled.

Standard library only. Usage: tests/pull.py [NAME...]   last line: N passed, N failed
"""
import hashlib, http.server, pty, random, select, shutil, tempfile, threading, urllib.parse

from serving import *

TMP = tempfile.mkdtemp(prefix="cygnet-pull-")
for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "XDG_CACHE_HOME"):
    ENV.pop(name, None)
ENV["HOME"] = os.path.join(TMP, "home")
CACHE = os.path.join(ENV["HOME"], ".cache", "cygnet", "models")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


def is_large(path):
    return path.endswith((".gguf", ".safetensors"))


class Hub:
    """repos: {"org/name": {path: bytes}}. fault(path, *what): what happens to the next requests for its bytes, one each."""

    def __init__(self, repos):
        self.repos, self.faults, self.seen, self.pages, self.token, self.gated, self.extra = repos, {}, [], 0, None, False, []
        self.no_digests, self.no_etags, self.etag = False, False, lambda data: '"%s"' % sha256(data)[:32]
        self.hub, self.cdn = self.start(False), self.start(True)
        self.url = "http://127.0.0.1:%d" % self.hub.server_port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in (self.hub, self.cdn):
            s.shutdown()
            s.server_close()

    def fault(self, path, *what):
        self.faults.setdefault(path, []).extend(what)

    def asked(self, part, cdn=None):
        return [h for host, target, h in self.seen if part in target and (cdn is None or cdn == host)]

    def start(self, cdn):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, data=b"", **headers):
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k.replace("_", "-"), v)
                if "Content_Length" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                target = urllib.parse.unquote(self.path)
                hub.seen.append((cdn, target, {k.lower(): v for k, v in self.headers.items()}))
                try:
                    hub.blob(self, target) if cdn else hub.page(self, target)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # who went away in the middle did so on purpose
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def page(self, h, target):
        m = re.match(r"/(?:api/models/)?([^/]+/[^/]+)/(tree|resolve)/(.*)$", target)
        repo = self.repos.get(m.group(1)) if m else None
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            return h.answer(401, b'{"error": "Invalid username or password."}', X_Error_Code="RepoNotFound")
        if self.gated:
            return h.answer(403, b"Access to model is restricted", X_Error_Code="GatedRepo")
        if self.faults.get(m and m.group(2)):
            status, headers = self.faults[m.group(2)].pop(0)
            return h.answer(status, b"not now", **headers)
        if repo is None:
            return h.answer(404, b'{"error": "Repository not found"}', X_Error_Code="RepoNotFound")
        revision, _, path = m.group(3).partition("?")[0].partition("/")
        if m.group(3).startswith("refs/pr/1"):
            revision, path = "refs/pr/1", m.group(3).partition("?")[0][len("refs/pr/1/"):]
        if revision not in ("main", "v2", "refs/pr/1"):
            return h.answer(404, b'{"error": "Invalid rev id"}', X_Error_Code="RevisionNotFound")
        if m.group(2) == "tree":
            return self.tree(h, target, repo)
        data = repo.get(path)
        if data is None:
            return h.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
        if not is_large(path):
            return self.bytes(h, path, data, '"%s"' % git_sha1(data))
        linked = {} if self.no_digests else {"X_Linked_ETag": '"%s"' % sha256(data)}
        h.answer(302, b"Found. Redirecting", Location="http://127.0.0.1:%d/%s/%s" % (self.cdn.server_port, m.group(1), urllib.parse.quote(path)), X_Linked_Size=str(len(data)), **linked)

    def tree(self, h, target, repo):
        rows = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for path, data in repo.items():
            row = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if is_large(path):
                row["oid"] = "1" * 40  # of the pointer
                row["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            if self.no_digests:
                row.pop("lfs", None)
                row.pop("oid")
            rows.append(row)
        rows += self.extra
        if not self.pages:
            return h.answer(200, json.dumps(rows).encode())
        at = int((re.search(r"cursor=(\d+)", target) or [0, "0"])[1])
        more = {"Link": '<%s/api/models/%s&cursor=%d>; rel="next"' % (self.url, target.split("/api/models/")[1].split("&")[0], at + self.pages)} if at + self.pages < len(rows) else {}
        h.answer(200, json.dumps(rows[at:at + self.pages]).encode(), **more)

    def blob(self, h, target):
        org, name, path = target[1:].split("/", 2)
        data = self.repos[org + "/" + name][path]
        self.bytes(h, path, data, self.etag(data))

    def bytes(self, h, path, data, etag):
        fault = self.faults[path].pop(0) if self.faults.get(path) else ("fine",)
        headers = {} if self.no_etags else {"ETag": etag}
        start, m = 0, re.match(r"bytes=(\d+)-$", h.headers.get("Range", ""))
        if m and h.headers.get("If-Range", etag) == etag and fault[0] != "no-range":
            start = int(m.group(1))
            headers["Content_Range"] = "bytes %d-%d/%d" % (start, len(data) - 1, len(data))
        if fault[0] == "status":
            return h.answer(fault[1], b"not now", **fault[2])
        if fault[0] == "wrong-range":
            headers["Content_Range"] = "bytes 0-%d/%d" % (len(data) - 1, len(data))
        body, n = data[start:], len(data) - start
        if fault[0] == "wrong":
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault[0] == "long":
            body += b"and more"
        h.send_response(206 if "Content_Range" in headers else 200)
        for k, v in headers.items():
            h.send_header(k.replace("_", "-"), v)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        if fault[0] in ("cut", "silent"):
            h.wfile.write(body[:fault[1]])
            h.wfile.flush()
            if fault[0] == "silent":
                time.sleep(fault[2])
            h.close_connection = True
        elif fault[0] == "slow":
            for i in range(0, n, fault[1]):
                h.wfile.write(body[i:i + fault[1]])
                h.wfile.flush()
                time.sleep(0.05)
        else:
            h.wfile.write(body)


def start(hub, *args, env=None, **kw):
    return subprocess.Popen([CYGNET, "pull", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**ENV, "HF_ENDPOINT": hub.url, **(env or {})}, **kw)


def pull(hub, *args, env=None, status=0, says=()):
    """Returns the standard output and error; each of `says` stands in the error."""
    p = start(hub, *args, env=env)
    out, err = (x.decode() for x in p.communicate(timeout=60))
    check(p.returncode == status, (args, p.returncode, out, err))
    check(status == 0 or (not out and "cygnet: " in err), (args, out, err))
    for s in [says] if isinstance(says, str) else says:
        check(s in err, (args, s, err[-600:]))
    return out, err


def run(*args, env=None, timeout=60):
    p = subprocess.run([CYGNET, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(ENV, **(env or {})), timeout=timeout)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def folder(name):
    path = os.path.join(TMP, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def fresh_cache():
    shutil.rmtree(ENV["HOME"], ignore_errors=True)
    os.makedirs(ENV["HOME"])


def read(path):
    with open(path, "rb") as f:
        return f.read()


def tiny_files():
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    return {n: read(os.path.join(TINY, n)) for n in names}


def holds(path, files):
    """The folder holds these files and no others."""
    found = {os.path.relpath(os.path.join(d, f), path): read(os.path.join(d, f)) for d, _, fs in os.walk(path) for f in fs}
    check(sorted(found) == sorted(files), (sorted(found), sorted(files)))
    for name, data in files.items():
        check(found[name] == data, "%s: other bytes" % name)


# ---- what is fetched ------------------------------------------------------------------------------------------------------------------


@test
def a_folder_and_then_a_model():
    fresh_cache()
    wanted = dict(tiny_files(), **{"chat_template.jinja": b"{{ messages }}", "empty.json": b""})
    other = {"README.md": b"# tiny", ".gitattributes": b"*", "original/params.json": b"{}", "consolidated.safetensors": noise(5000), "flax_model.msgpack": noise(3000)}
    with Hub({"org/tiny": dict(wanted, **other)}) as hub:
        rc, out, err = run("complete", "-m", "org/tiny", "--ids", "2,300", "-n", "3", "-q")
        check(rc == 2 and "pull it first: 'cygnet pull org/tiny'" in err, (rc, err))
        check(not hub.seen, "the network was asked at run time")
        out, err = pull(hub, "org/tiny", says=["model.safetensors", "SHA-256 is right", "git SHA-1 is right", "next: cygnet chat -m org/tiny\n"])
        path = out.strip()
        check(path == os.path.join(CACHE, "org", "tiny"), path)
        holds(path, wanted)
        n = len(hub.seen)
        want = run("complete", "-m", TINY, "--ids", "2,300", "-n", "5", "-q", "--json")
        got = run("complete", "-m", "org/tiny", "--ids", "2,300", "-n", "5", "-q", "--json")
        check(got[0] == 0 and json.loads(got[1])["ids"] == json.loads(want[1])["ids"], (got, want))
        here = os.path.join(TMP, "here")
        os.makedirs(here + "/org")
        open(here + "/org/tiny", "w").close()
        p = subprocess.run([CYGNET, "inspect", "org/tiny"], cwd=here, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(p.returncode == 2 and b"pull" not in p.stderr, "a path that exists is no name: %r" % p.stderr)
        check(run("inspect", "org/tiny")[0] == 0 and run("tokenize", "-m", "org/tiny")[0] == 0, "other commands")
        check(len(hub.seen) == n, "the network was asked at run time")
        _, err = pull(hub, "org/tiny")
        check(err.count("is here already and right") == len(wanted) and len(hub.seen) == n + 1, err)


@test
def one_gguf_by_name_and_by_format():
    fresh_cache()
    gguf = read(os.path.join(TINY, "model-mixed.gguf"))
    files = {"tiny-Q4_K_M.gguf": gguf, "tiny-Q4_K_S.gguf": noise(4000), "tiny-IQ4_XS.gguf": noise(4001), "sub/tiny-q8_0.gguf": noise(4002), "tiny-BF16.gguf": noise(4003),
             "mmproj-BF16.gguf": noise(900), "README.md": b"#"}
    with Hub({"org/g": files, "org/one": {"x-Q2_K.gguf": gguf}, "org/none": {"README.md": b"#"}}) as hub:
        out, err = pull(hub, "org/g:Q4_K_M", says=["next: cygnet chat -m org/g:tiny-Q4_K_M.gguf", "cygnet pull org/g:mmproj-BF16.gguf"])
        check(out.strip() == os.path.join(CACHE, "org/g/tiny-Q4_K_M.gguf"), out)
        for name in ("org/g", "org/g:Q4_K_M", "org/g:tiny-Q4_K_M.gguf"):
            check(run("inspect", name)[0] == 0, name)
        pull(hub, "org/g:q8_0")
        pull(hub, "org/g:BF16")  # not the projector
        pull(hub, "org/g:tiny-IQ4_XS.gguf")
        _, err = pull(hub, "org/g:mmproj-BF16.gguf")
        check("next:" not in err, err)
        _, err = pull(hub, "org/g:Q4_K_M", says="--mmproj org/g:mmproj-BF16.gguf")
        holds(os.path.join(CACHE, "org/g"), {k: v for k, v in files.items() if k not in ("README.md", "tiny-Q4_K_S.gguf")})
        check(run("inspect", "org/g:Q4_K_M")[0] == 0, "one of several")
        rc, _, err = run("inspect", "org/g")
        check(rc == 2 and "several models" in err and "tiny-Q4_K_M.gguf" in err and "mmproj" not in err, err)
        rc, _, err = run("inspect", "org/g:Q4_K_M", "--mmproj", "org/g:Q6_K")
        check(rc == 2 and "org/g:Q6_K: among what was pulled" in err, err)
        rc, _, err = run("inspect", "org/g:Q6_K")
        check(rc == 2 and "no file Q6_K" in err, err)
        check(pull(hub, "org/one")[0].strip().endswith("/org/one/x-Q2_K.gguf"), "the only one")
        for name, says in (("org/g:Q4_K", "no file Q4_K"), ("org/g:K_M", "no file K_M"), ("org/g", "several models"), ("org/g:nothing.gguf", "no file nothing.gguf"), ("org/none", "no GGUF")):
            _, err = pull(hub, name, status=2, says=says)
            check(name == "org/none" or ("4.0 KiB" not in err and "  tiny-Q4_K_M.gguf" in err and "3.9 KiB" in err), err)
        check(pull(hub, "org/g:README.md")[0].strip().endswith("org/g/README.md"), "any file by its name")


@test
def all_parts_of_a_split_set():
    fresh_cache()
    parts = {"Q4_0/m-Q4_0-%05d-of-00003.gguf" % i: noise(3000 + i, i) for i in (1, 2, 3)}
    with Hub({"org/s": dict(parts, **{"m-Q8_0.gguf": noise(10)}), "org/gap": {"m-00001-of-00002.gguf": b"x"}}) as hub:
        out, _ = pull(hub, "org/s:Q4_0")
        check(out.strip().endswith("/org/s/Q4_0/m-Q4_0-00001-of-00003.gguf"), out)
        holds(os.path.join(CACHE, "org/s"), parts)
        pull(hub, "org/s:Q4_0/m-Q4_0-00002-of-00003.gguf", "--out", folder("any-part"))
        holds(os.path.join(TMP, "any-part"), parts)
        os.remove(os.path.join(CACHE, "org/s/Q4_0/m-Q4_0-00003-of-00003.gguf"))
        rc, _, err = run("inspect", "org/s:Q4_0")
        check(rc == 2 and "only a part of it was pulled" in err, err)
        pull(hub, "org/gap", status=2, says="part 2 is not there")


@test
def revisions_and_folders():
    fresh_cache()
    files = tiny_files()
    with Hub({"org/tiny": files}) as hub:
        out, _ = pull(hub, "org/tiny@v2")
        check(out.strip() == os.path.join(CACHE, "org/tiny@v2") and hub.asked("/resolve/v2/config.json"), out)
        check(run("inspect", "org/tiny@v2")[0] == 0 and run("inspect", "org/tiny")[0] == 2, "another revision is another model")
        out, _ = pull(hub, "org/tiny@refs/pr/1")
        check(out.strip() == os.path.join(CACHE, "org/tiny@refs%2Fpr%2F1") and run("inspect", "org/tiny@refs/pr/1")[0] == 0, out)
        pull(hub, "org/tiny@nothing", status=2, says="no branch, tag or commit nothing")
        out, err = pull(hub, "org/tiny", "--out", folder("a place/x") + "/", says="next: cygnet chat -m '%s/a place/x'" % TMP)
        holds(os.path.join(TMP, "a place/x"), files)
        out, _ = pull(hub, "org/tiny", env={"XDG_CACHE_HOME": os.path.join(TMP, "xdg")})
        check(out.strip() == os.path.join(TMP, "xdg/cygnet/models/org/tiny"), out)
        out, _ = pull(hub, "org/tiny:tokenizer.json@v2", "-q", "--out", folder("one"))
        holds(os.path.join(TMP, "one"), {"tokenizer.json": files["tokenizer.json"]})
        out, err = pull(hub, "org/tiny", "-q", "--out", folder("quiet"))
        check(not err and out.strip() == os.path.join(TMP, "quiet"), (out, err))
        pull(hub, "org/tiny", "--out", path_of_file(), status=2, says="expected a folder, found a file")


def path_of_file():
    path = os.path.join(TMP, "a-file")
    open(path, "w").close()
    return path


@test
def a_listing_in_pages():
    files = dict(tiny_files(), **{"extra-%d.json" % i: b"{}" for i in range(20)})
    with Hub({"org/tiny": files}) as hub:
        hub.pages = 7
        pull(hub, "org/tiny", "--out", folder("pages"))
        holds(os.path.join(TMP, "pages"), files)
        check(len(hub.asked("/tree/")) == 4, hub.asked("/tree/"))


# ---- names from strangers -------------------------------------------------------------------------------------------------------------


@test
def odd_names_stay_outside():
    place = folder("deep/er/odd")
    with Hub({"org/tiny": tiny_files()}) as hub:
        odd = ["../up.json", "/abs.json", "a/../../up.json", "x\\y.json", "tab\t.json", "a//b.json", "./c.json", "d/.json/../../e.json", ""]
        hub.extra = [{"type": "file", "oid": "0" * 40, "size": 3, "path": p} for p in odd + [".hidden.json"]]
        _, err = pull(hub, "org/tiny", "--out", place, says="files left out: not plain paths")
        holds(os.path.join(TMP, "deep"), {"er/odd/" + k: v for k, v in tiny_files().items()})
        for name in ("org/tiny:../up.json", "org/tiny:/abs.json", "org/tiny:.hidden.json", "org/tiny:"):
            pull(hub, name, "--out", place, status=2, says="expected a file's path in the repository")


@test
def names_that_are_none():
    with Hub({}) as hub:
        for name in ("tiny", "a/b/c", "/a/b", "a/..", "../a", ".a/b", "a/.b", "a b/c", "a/", "", "-a/b", "a/b@", "a/b@..", "a/b@x/../y", "org/" + "x" * 300):
            p = start(hub, "--repo=" + name)
            _, err = p.communicate(timeout=20)
            check(p.returncode == 2 and b"expected" in err, (name, err))
        check(not hub.seen, hub.seen)
        p = start(hub)
        check(b"no repository given" in p.communicate(timeout=20)[1] and p.returncode == 2, "nothing given")
        for endpoint in ("ftp://x", "nothing", "http://u:p@h", "http://h/?a"):
            pull(hub, "org/tiny", env={"HF_ENDPOINT": endpoint}, status=2, says="HF_ENDPOINT: expected https://HOST")


@test
def listings_that_are_none():
    with Hub({"org/tiny": tiny_files()}) as hub:
        for row, says in (({"type": "file", "path": "x", "size": -1}, "size"), ({"type": "file", "size": 1}, "path and size"), ("x", "list of objects"),
                          ({"type": "file", "path": "big.json", "size": 1 << 60, "oid": "0" * 40}, "the disk has")):
            hub.extra = [row]
            pull(hub, "org/tiny", "--out", folder("none"), status=1 if "disk" in says else 2, says=says)
            check(not os.path.exists(os.path.join(TMP, "none", "config.json")), "something was fetched")


# ---- going on -------------------------------------------------------------------------------------------------------------------------

BIG = noise(3 << 20, 7)


@test
def a_cut_transfer_goes_on():
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 1 << 20), ("cut", 1 << 19), ("status", 503, {}), ("cut", 0))
        _, err = pull(hub, "org/b", "--out", folder("cut"), says="again in 0.5 s")
        holds(os.path.join(TMP, "cut"), {"b.gguf": BIG})
        ranges = [(h.get("range"), h.get("if-range")) for h in hub.asked("b.gguf", cdn=True)]
        tag = hub.etag(BIG)
        check(ranges == [(None, None), ("bytes=%d-" % (1 << 20), tag)] + [("bytes=%d-" % (3 << 19), tag)] * 3, ranges)


@test
def a_later_run_goes_on():
    place = folder("later")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 2 << 20))
        pull(hub, "org/b", "--out", place, "--retries", "0", status=1, says=["2.0 MiB of 3.0 MiB are kept in", "b.gguf.part"])
        check(os.path.getsize(place + "/b.gguf.part") == 2 << 20, "the part")
        pull(hub, "org/b", "--out", place, says="going on after 2.0 MiB")
        check(hub.asked("b.gguf", cdn=True)[-1]["range"] == "bytes=%d-" % (2 << 20), "range")
        holds(place, {"b.gguf": BIG})


@test
def a_part_that_is_whole_is_only_checked():
    place = folder("whole")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", len(BIG) - 1))
        pull(hub, "org/b", "--out", place, "--retries=0", status=1)
        with open(place + "/b.gguf.part", "ab") as f:
            f.write(BIG[-1:])
        n = len(hub.asked("b.gguf"))
        pull(hub, "org/b", "--out", place)
        check(len(hub.asked("b.gguf")) == n, "it was fetched again")
        holds(place, {"b.gguf": BIG})


@test
def a_part_of_another_version_is_not_gone_on_with():
    place = folder("version")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 1 << 20))
        pull(hub, "org/b", "--out", place, "--retries=0", status=1)
        hub.repos["org/b"]["b.gguf"] = other = noise(3 << 20, 8)
        pull(hub, "org/b", "--out", place, says="of another version: beginning anew")
        holds(place, {"b.gguf": other})
        hub.repos["org/b"]["b.gguf"] = BIG  # nothing that was whole is lost
        pull(hub, "org/b", "--out", place, says="kept as %s/b.gguf.old" % place)
        holds(place, {"b.gguf": BIG, "b.gguf.old": other})


@test
def the_hub_may_begin_anew():
    place = folder("anew")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 1 << 20), ("no-range",))
        pull(hub, "org/b", "--out", place, says="from its beginning")
        holds(place, {"b.gguf": BIG})
        place = folder("anew-etag")
        hub.fault("b.gguf", ("cut", 1 << 20))
        pull(hub, "org/b", "--out", place, "--retries=0", status=1)
        hub.etag = lambda data: '"another"'  # If-Range does not hold any more
        pull(hub, "org/b", "--out", place, says="from its beginning")
        holds(place, {"b.gguf": BIG})


@test
def without_digests_the_etag_must_do():
    place = folder("plain")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.no_digests = True
        hub.fault("b.gguf", ("cut", 1 << 20))
        pull(hub, "org/b", "--out", place, says="no digest to check it by")
        check(hub.asked("b.gguf", cdn=True)[-1].get("if-range") == hub.etag(BIG), "if-range")
        holds(place, {"b.gguf": BIG})
        hub.no_etags = True
        place = folder("plainer")
        hub.fault("b.gguf", ("cut", 1 << 20))
        pull(hub, "org/b", "--out", place)
        check("range" not in hub.asked("b.gguf", cdn=True)[-1], "a part of no known version was gone on with")
        holds(place, {"b.gguf": BIG})


@test
def only_half_is_no_model():
    fresh_cache()
    with Hub({"org/tiny": tiny_files(), "org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("model.safetensors", ("cut", 1000))
        pull(hub, "org/tiny", "--retries=0", status=1)
        rc, _, err = run("inspect", "org/tiny")
        check(rc == 2 and "'cygnet pull org/tiny' goes on" in err, err)
        pull(hub, "org/tiny")
        check(run("inspect", "org/tiny")[0] == 0, "whole")
        hub.fault("b.gguf", ("cut", 1000))
        pull(hub, "org/b", "--retries=0", status=1)
        rc, _, err = run("inspect", "org/b")
        check(rc == 2 and "only a part of it was pulled" in err, err)


@test
def ctrl_c_keeps_the_part():
    for sig in (signal.SIGINT, signal.SIGTERM):
        place = folder("stop")
        with Hub({"org/b": {"b.gguf": BIG}}) as hub:
            hub.fault("b.gguf", ("slow", 1 << 16))
            p = start(hub, "org/b", "--out", place)
            wait_until("bytes", lambda: os.path.exists(place + "/b.gguf.part") and os.path.getsize(place + "/b.gguf.part") > 200000)
            p.send_signal(sig)
            out, err = p.communicate(timeout=10)
            check(p.returncode == 1 and not out and b"the same command goes on: cygnet pull org/b --out " + place.encode() in err and b"are kept in" in err, (p.returncode, err))
            check(os.path.getsize(place + "/b.gguf.part") >= 200000, "the part")
            pull(hub, "org/b", "--out", place, says="going on after")
            holds(place, {"b.gguf": BIG})


@test
def ctrl_c_ends_a_pause():
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("tree", (429, {"Retry_After": "50"}))
        p = start(hub, "org/b")
        line = p.stderr.readline()
        check(b"again in 50.0 s" in line, line)
        p.send_signal(signal.SIGINT)
        check(b"the same command goes on" in p.communicate(timeout=5)[1] and p.returncode == 1, "stopped")


@test
def two_at_once():
    place = folder("two")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("slow", 1 << 16))
        p = start(hub, "org/b", "--out", place)
        wait_until("bytes", lambda: os.path.exists(place + "/b.gguf.part") and os.path.getsize(place + "/b.gguf.part") > 100000)
        pull(hub, "org/b", "--out", place, status=1, says="another 'cygnet pull' is writing it")
        check(p.wait(30) == 0, p.stderr.read())
        holds(place, {"b.gguf": BIG})


# ---- faults ---------------------------------------------------------------------------------------------------------------------------


@test
def wrong_bytes_are_kept_and_refused():
    place = folder("wrong")
    with Hub({"org/b": {"b.gguf": BIG}, "org/tiny": tiny_files()}) as hub:
        hub.fault("b.gguf", ("wrong",))
        pull(hub, "org/b", "--out", place, status=2, says=["expected SHA-256 " + sha256(BIG), "b.gguf.wrong"])
        check(os.path.exists(place + "/b.gguf.wrong") and not os.path.exists(place + "/b.gguf"), os.listdir(place))
        pull(hub, "org/b", "--out", place)
        check(read(place + "/b.gguf") == BIG, "fetched anew")
        hub.fault("config.json", ("wrong",))
        place = folder("wrong-small")
        pull(hub, "org/tiny", "--out", place, status=2, says="expected git SHA-1 " + git_sha1(tiny_files()["config.json"]))
        check(not os.path.exists(place + "/config.json"), "a wrong file has a name")


@test
def a_damaged_part_is_found():
    place = folder("damaged")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 1 << 20))
        pull(hub, "org/b", "--out", place, "--retries=0", status=1)
        with open(place + "/b.gguf.part", "r+b") as f:
            f.seek(5000)
            f.write(b"damage")
        pull(hub, "org/b", "--out", place, status=2, says="found")
        pull(hub, "org/b", "--out", place)
        check(read(place + "/b.gguf") == BIG, "fetched anew")


@test
def a_damaged_file_is_found():
    place = folder("rotten")
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        pull(hub, "org/b", "--out", place)
        with open(place + "/b.gguf", "r+b") as f:
            f.write(b"rot")
        rotten = read(place + "/b.gguf")
        pull(hub, "org/b", "--out", place, says="the one that was here differs")
        holds(place, {"b.gguf": BIG, "b.gguf.old": rotten})


@test
def wrong_ranges_and_lengths():
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("cut", 1 << 20), ("wrong-range",))
        pull(hub, "org/b", "--out", folder("range"), status=1, says="asked for bytes 1048576 to 3145727")
        hub.fault("b.gguf", ("long",))
        pull(hub, "org/b", "--out", folder("long"), status=2, says="more come")


@test
def asked_again_with_pauses():
    with Hub({"org/tiny": tiny_files()}) as hub:
        hub.fault("tree", (500, {}), (429, {"Retry_After": "1"}))
        hub.fault("config.json", ("status", 429, {"Retry_After": "1"}), ("status", 502, {}))
        began = time.time()
        _, err = pull(hub, "org/tiny", "--out", folder("again"), says=["answers 500: not now: again in 0.5 s", "answers 429: not now: again in 1.0 s"])
        check(time.time() - began >= 3, "it did not wait")
        hub.fault("resolve", *[(503, {})] * 3)
        pull(hub, "org/tiny", "--out", folder("again"), "--retries=2", status=1, says="the hub answers 503")
        check(not hub.faults["resolve"], hub.faults)


@test
def a_silent_hub():
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("b.gguf", ("silent", 1 << 20, 6))
        pull(hub, "org/b", "--out", folder("silent"), "--timeout", "2", says="nothing came for 2 s")
        holds(os.path.join(TMP, "silent"), {"b.gguf": BIG})
    began = time.time()
    p = subprocess.run([CYGNET, "pull", "org/b", "--retries=1"], env=dict(ENV, HF_ENDPOINT="http://127.0.0.1:%d" % free_port()), stderr=subprocess.PIPE, timeout=30)
    check(p.returncode == 1 and b"again in" in p.stderr and time.time() - began < 10, p.stderr)


@test
def a_host_that_redirects_in_circles():
    with Hub({"org/b": {"b.gguf": BIG}}) as hub:
        hub.fault("resolve", *[(302, {"Location": "/org/b/resolve/main/b.gguf"})] * 9)
        pull(hub, "org/b", "--out", folder("circle"), status=1, says="redirects more than 5 times")
        hub.faults = {"resolve": [(302, {"Location": "file:///etc/passwd"})]}
        pull(hub, "org/b", "--out", folder("circle"), "--retries=0", status=1)
        hub.faults = {"tree": [(307, {"Location": "/api/models/org/b/tree/main?recursive=true"})]}  # a repository that was renamed
        pull(hub, "org/b", "--out", folder("circle"))


# ---- who asks -------------------------------------------------------------------------------------------------------------------------


@test
def the_token_goes_to_the_hub_alone():
    with Hub({"org/tiny": tiny_files()}) as hub:
        hub.token = "hf_secret"
        place = os.path.join(ENV["HOME"], ".cache", "huggingface")
        os.makedirs(place, exist_ok=True)
        os.makedirs(TMP + "/hf")
        for way in ("variable", "file", "path", "home"):
            hub.seen.clear()
            env = {}
            if way == "variable":
                env["HF_TOKEN"] = " hf_secret\n"
            else:
                name = {"file": place + "/token", "path": TMP + "/t.txt", "home": TMP + "/hf/token"}[way]
                with open(name, "w") as f:
                    f.write("hf_secret\n")
                env = {"file": {}, "path": {"HF_TOKEN_PATH": name}, "home": {"HF_HOME": TMP + "/hf"}}[way]
            out, err = pull(hub, "org/tiny", "--out", folder("token"), env=env)
            check("hf_secret" not in out + err, err)
            check(hub.seen and all((h.get("authorization") == "Bearer hf_secret") != cdn for cdn, _, h in hub.seen), hub.seen)
            check(hub.asked("model.safetensors", cdn=True), "the redirect was followed")
            if way == "file":
                os.remove(name)
        pull(hub, "org/tiny", env={"HF_TOKEN": "a\nb: c"}, status=2, says="HF_TOKEN: expected a token")
        check(len(hub.asked("b: c")) == 0, "a header was made of it")


@test
def refusals_are_sentences():
    with Hub({"org/tiny": tiny_files()}) as hub:
        _, err = pull(hub, "org/nothing", status=2, says=["no such repository", "org/nothing"])
        hub.token = "hf_right"
        pull(hub, "org/tiny", status=2, says=["private or gated (401)", hub.url + "/org/tiny", "HF_TOKEN"])
        _, err = pull(hub, "org/tiny", env={"HF_TOKEN": "hf_wrong"}, status=2, says=["does not take this token", "401"])
        check("hf_wrong" not in err, err)
        hub.gated = True
        pull(hub, "org/tiny", env={"HF_TOKEN": "hf_right"}, status=2, says=["gated: this token may not read it (403)", "accept its terms at " + hub.url + "/org/tiny"])
        hub.token = None
        pull(hub, "org/tiny", status=2, says=["gated (403)", "set HF_TOKEN"])
        hub.gated = False
        hub.extra = [{"type": "file", "oid": "0" * 40, "size": 3, "path": "gone.json"}]
        pull(hub, "org/tiny", "--out", folder("gone"), status=2, says="lists a file that it does not have")


@test
def what_the_terminal_shows():
    with Hub({"org/b": {"b.gguf": BIG, "config.txt": b"x"}}) as hub:
        hub.fault("b.gguf", ("slow", 1 << 17))
        master, slave = pty.openpty()
        p = subprocess.Popen([CYGNET, "pull", "org/b", "--out", folder("shown")], stdout=subprocess.PIPE, stderr=slave, env=dict(ENV, HF_ENDPOINT=hub.url))
        os.close(slave)
        shown = b""
        while select.select([master], [], [], 20)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        os.close(master)
        check(p.wait(20) == 0, shown)
        lines = re.findall(rb"1/1 b\.gguf  \[[#.]{6}\] +\d+ %  [\d.]+ [KM]iB of 3\.0 MiB  [\d.]+ [KM]iB/s  \d+:\d\d left", shown)
        check(len(lines) >= 3, shown)
        check(all(len(re.sub(rb"\x1b\[K", b"", l).strip()) < 80 for l in re.split(rb"[\r\n]+", shown) if b"1/1" in l), "a line is wider than the terminal")


if __name__ == "__main__":
    try:
        status = main()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    sys.exit(status)
