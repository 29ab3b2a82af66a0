#!/usr/bin/env python3
"""The chat page in headless Chromium, driven over a pipe: against a scripted server, and against the program with a tiny model.

Standard library only. Usage: tests/page.py [NAME...]   last line: N passed, N failed
PAGE_SHOTS=folder keeps pictures of the page there.
"""
import base64, fcntl, hashlib, http.client, http.server, json, os, re, select, shutil, signal, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from vocabulary import with_words

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CYGNET = os.environ.get("CYGNET", os.path.join(ROOT, "build", "cygnet"))
TINY_GGUF = os.path.join(ROOT, "tests", "golden", "gemma3-text-tiny", "model-mixed.gguf")
PAGE = open(os.path.join(ROOT, "src", "server", "page.html"), encoding="utf-8").read()
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
SHOTS = os.environ.get("PAGE_SHOTS")
TMP = tempfile.mkdtemp(prefix="cygnet-page-")
tests = []


def test(fn):
    tests.append(fn)
    return fn


def check(cond, what):
    if not cond:
        raise AssertionError(what)


def same(found, expected, what):
    check(found == expected, "%s: expected %r, found %r" % (what, expected, found))


# ---- the browser -----------------------------------------------------------------------------------------------------------


class Browser:
    """DevTools protocol over two pipes: JSON with a NUL behind it; Chromium reads descriptor 3 and writes 4."""

    def __init__(self):
        def pipe():  # away from 3 and 4, which the child needs
            pair = os.pipe()
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in pair]
            for fd in pair:
                os.close(fd)
            return high
        (child_in, self.out), (self.inp, child_out) = pipe(), pipe()
        def descriptors():
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)
        flags = ["--headless=new", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--disable-extensions", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + os.path.join(TMP, "profile")]
        if os.getuid() == 0:
            flags.append("--no-sandbox")
        self.p = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  preexec_fn=descriptors, close_fds=False, start_new_session=True)
        os.close(child_in)
        os.close(child_out)
        self.lock, self.answers, self.events, self.n = threading.Condition(), {}, [], 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        held = b""
        while data := os.read(self.inp, 1 << 20):
            *whole, held = (held + data).split(b"\0")
            for m in map(json.loads, whole):
                with self.lock:
                    if "id" in m:
                        self.answers[m["id"]] = m
                    else:
                        self.events.append(m)
                    self.lock.notify_all()

    def call(self, method, session=None, timeout=20, **params):
        with self.lock:
            self.n += 1
            n = self.n
            m = {"id": n, "method": method, "params": params}
            if session:
                m["sessionId"] = session
            os.write(self.out, json.dumps(m).encode() + b"\0")
            check(self.lock.wait_for(lambda: n in self.answers, timeout), "the browser does not answer %s" % method)
            m = self.answers.pop(n)
        check("error" not in m, "%s: %s" % (method, m.get("error")))
        return m["result"]

    def close(self):
        try:
            self.call("Browser.close", timeout=3)
            self.p.wait(5)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            os.killpg(self.p.pid, signal.SIGKILL)
            self.p.wait()


KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "ArrowUp": (38, ""), "Tab": (9, ""), "/": (191, "/"), "a": (65, "a"), " ": (32, " ")}


class Tab:
    """One page with a storage of its own."""

    def __init__(self, url, width=1200, height=800, phone=False, dark=False, reduced=False):
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        self.target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(domain + ".enable")
        self.size(width, height, phone)
        self.media(dark, reduced)
        self.expected = []  # words of console messages that belong to the test
        self.url = url
        self.go()

    def call(self, method, **params):
        return browser.call(method, self.session, **params)

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)

    def media(self, dark, reduced=False):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                                                         {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"}])

    def go(self):
        self.call("Page.navigate", url=self.url)
        self.wait("document.readyState === 'complete' && document.getElementById('model')?.textContent.trim()")

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        check("exceptionDetails" not in r, "%s: %s" % (expression, r.get("exceptionDetails", {}).get("exception", {}).get("description")))
        return r["result"].get("value")

    def wait(self, expression, timeout=8):
        end = time.time() + timeout
        while time.time() < end:
            try:
                value = self.js("!!(%s)" % expression)
            except AssertionError:
                if time.time() + 0.1 > end:
                    raise
                value = None  # the document was being replaced
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError("never true: %s\nthe page says: %s" % (expression, self.js("document.body.innerText")))

    def key(self, name, shift=False):
        code, text = KEYS[name]
        if shift and name != "Enter":
            text = ""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name if len(name) > 1 else "", windowsVirtualKeyCode=code,
                      modifiers=8 if shift else 0, **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, what):
        """A real click on a selector, or on the last button that has this text or name."""
        at = self.js("""(() => {
          const what = %s;
          let e = /^[#.\\[]/.test(what) ? document.querySelector(what) : [...document.querySelectorAll('button')].filter(b => b.getClientRects().length &&
            (b.getAttribute('aria-label') === what || b.textContent === what)).pop();
          if (!e) return null;
          e.scrollIntoView({block: 'nearest'});
          const r = e.getBoundingClientRect();
          return [r.x + r.width / 2, r.y + r.height / 2];
        })()""" % json.dumps(what))
        check(at, "nothing to click: " + what)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left" if kind != "mouseMoved" else "none", clickCount=1)

    def say(self, text):
        self.js("document.getElementById('input').focus()")
        self.type(text)
        self.key("Enter")

    def chat(self, text):
        """Sends a message and waits for the end of its answer; returns the answer's text."""
        n = self.js("document.querySelectorAll('article.assistant').length")
        self.say(text)
        self.wait("document.querySelectorAll('article.assistant').length > %d" % n)
        return self.idle()

    def idle(self):
        self.wait("!document.querySelector('.streaming') && document.getElementById('send').textContent === 'Send'")
        return self.js("[...document.querySelectorAll('article.assistant .md')].pop()?.innerText")

    def shot(self, name):
        if SHOTS:
            with open(os.path.join(SHOTS, name + ".png"), "wb") as f:
                f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self):
        said = []
        with browser.lock:
            for m in browser.events:
                if m.get("sessionId") != self.session:
                    continue
                p = m["params"]
                if m["method"] == "Runtime.exceptionThrown":
                    said.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
                elif m["method"] == "Runtime.consoleAPICalled":
                    said.append("console: %s" % [a.get("value") for a in p["args"]])
                elif m["method"] == "Log.entryAdded":
                    said.append(p["entry"]["text"])
        return [s for s in said if not any(e in s for e in self.expected)]

    def close(self):
        said = self.complaints()
        browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        check(not said, "the browser complained: %s" % said)


# ---- a server that plays the API --------------------------------------------------------------------------------------------


def policy():
    def digest(name):
        inner = re.search("\n<%s>(.*?)</%s>" % (name, name), PAGE, re.S).group(1)
        return base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
    return ("default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'" % (digest("script"), digest("style")))


class Handler(http.server.BaseHTTPRequestHandler):
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def reply(self, status, body, kind="application/json", extra=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in (("Content-Type", kind), ("Content-Length", str(len(body))), *extra):
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message, code="busy"):
        self.reply(status, {"error": {"message": message, "type": "server_error", "param": None, "code": code}})

    def allowed(self):
        if api.key and self.headers.get("Authorization") != "Bearer " + api.key:
            self.fail(401, "expected the header with this server's API key", "invalid_api_key")
            return False
        return True

    def do_GET(self):
        if self.path == "/":
            self.reply(200, PAGE.encode(), "text/html; charset=utf-8", [("Content-Security-Policy", policy())])
        elif self.path == "/v1/models" and self.allowed():
            self.reply(200, {"object": "list", "data": [{"id": "tiny-model", "object": "model", "max_model_len": 4096, "supports_thinking": api.thinks, "supports_vision": api.sees,
                                                              "supports_audio": api.hears}]})
        elif self.path != "/v1/models":
            self.fail(404, "there is nothing here", "not_found")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        api.requests.append(body)
        try:
            api.scripts.pop(0)(self)
        except OSError:
            pass

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def put(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def gone(self, seconds):
        """True when the client hangs up within that time."""
        return bool(select.select([self.connection], [], [], seconds)[0]) and not self.connection.recv(1)


class Api(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d/" % self.server_port
        self.fresh()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fresh(self):
        self.key, self.requests, self.scripts, self.thinks, self.sees, self.hears = None, [], [], False, False, False

    def handle_error(self, request, address):
        pass


def chunk(text="", finish=None, usage=None):
    delta = {"content": text} if text else {}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}


def usage(prompt=120, completion=7, cached=96):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": cached}}


def event(o, end="\n\n"):
    return b"data: " + (o if isinstance(o, bytes) else json.dumps(o, ensure_ascii=False).encode()) + end.encode()


def whole(*texts, finish="stop", **counts):
    """The bytes of a complete answer."""
    return b"".join(event(chunk(t)) for t in texts) + event(chunk(finish=finish)) + event({"choices": [], "usage": usage(**counts)}) + event(b"[DONE]")


def answer(*texts, **kw):
    def script(h):
        h.begin()
        h.put(whole(*texts, **kw))
    return script


def open_page(*scripts, **kw):
    api.fresh()
    api.scripts += scripts
    return Tab(api.url, **kw)


# ---- pictures and sounds -----------------------------------------------------------------------------------------------------

FILES = """const file = (name, type, bytes) => new File([bytes], name, {type});
  const picture = (name, side, noise) => new Promise(done => {
    const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
    canvas.width = side; canvas.height = side / 2;
    pen.fillStyle = '#2a7'; pen.fillRect(0, 0, side, side);
    if (noise) {
      const d = pen.getImageData(0, 0, side, side / 2);
      for (let i = 0; i < d.data.length; i++) d.data[i] = i % 4 === 3 ? 255 : Math.random() * 256;
      pen.putImageData(d, 0, 0);
    }
    canvas.toBlob(b => done(file(name, 'image/png', b)));
  });
  const carried = (...files) => { const t = new DataTransfer(); for (const f of files) t.items.add(f); return t; };"""


def put(tab, js):
    """Runs js, which may await, with the helpers above."""
    tab.js("window.putDone = false, (async () => { %s; %s; window.putDone = true; })(), 0" % (FILES, js))
    tab.wait("window.putDone")


DIALOG = "document.getElementById('files').files = carried(%s).files; document.getElementById('files').dispatchEvent(new Event('change'))"
PASTE = "document.getElementById('input').dispatchEvent(new ClipboardEvent('paste', {clipboardData: carried(%s), bubbles: true, cancelable: true}))"
DROP = ("for (const kind of ['dragover', 'drop']) document.getElementById('main').dispatchEvent("
        "new DragEvent(kind, {dataTransfer: carried(%s), bubbles: true, cancelable: true}))")


def pending(tab, n):
    tab.wait("document.querySelectorAll('#pending li').length === %d" % n)


def seeing(*scripts, sees=True, hears=False, **kw):
    api.fresh()
    api.scripts += scripts
    api.sees, api.hears = sees, hears
    tab = Tab(api.url, **kw)
    tab.wait("document.getElementById('attach').hidden === %s" % json.dumps(not (sees or hears)))
    return tab


@test
def pictures_by_dialog_paste_and_drop():
    tab = seeing(answer("A green field."), answer("Again."))
    put(tab, DIALOG % "await picture('one.png', 40)")
    pending(tab, 1)
    put(tab, PASTE % "await picture('two.png', 60)")
    pending(tab, 2)
    put(tab, DROP % "await picture('three.png', 80), file('notes.txt', 'text/plain', 'x')")
    pending(tab, 3)
    tab.wait("document.getElementById('notice').innerText.includes('none of what this model takes')")
    tab.wait("[...document.querySelectorAll('#pending img')].every(i => i.complete && i.naturalWidth > 0)")
    check(tab.js("document.getElementById('drop').hidden"), "the place to drop is gone again")
    tab.shot("pictures-pending")
    tab.click("Remove two.png")
    pending(tab, 2)
    same(tab.chat("What is it?"), "A green field.", "answer")
    parts = api.requests[0]["messages"][0]["content"]
    same([p["type"] for p in parts], ["image_url", "image_url", "text"], "parts")
    check(all(p["image_url"]["url"].startswith("data:image/png;base64,") for p in parts[:2]) and parts[2]["text"] == "What is it?", "addresses")
    pending(tab, 0)
    tab.wait("document.querySelectorAll('article.user .thumb img').length === 2")
    tab.wait("[...document.querySelectorAll('article.user img')].every(i => i.naturalWidth > 0)")
    tab.click("Look at one.png")
    tab.wait("document.getElementById('look').open && document.querySelector('#look img').naturalWidth === 40")
    tab.shot("pictures-look")
    tab.key("Escape")
    tab.shot("pictures-sent")
    # an edit keeps them, and so does the history
    tab.click("Edit")
    tab.js("(() => { const a = document.querySelector('.editor textarea'); a.value = 'And now?'; a.dispatchEvent(new Event('input')); })()")
    tab.key("Enter")
    tab.wait("document.querySelectorAll('article.assistant').length === 1 && document.querySelector('article.assistant .md')?.innerText === 'Again.'")
    same([p["type"] for p in api.requests[1]["messages"][0]["content"]], ["image_url", "image_url", "text"], "parts after the edit")
    # and a page that is loaded anew
    api.scripts.append(answer("Still."))
    tab.go()
    tab.wait("document.querySelectorAll('article.user .thumb img').length === 2")
    tab.wait("[...document.querySelectorAll('article.user img')].every(i => i.naturalWidth > 0)")
    tab.chat("More")
    same([type(m["content"]).__name__ for m in api.requests[2]["messages"]], ["list", "str", "str"], "history")
    same(api.requests[2]["messages"][0]["content"][0], parts[0], "the same picture")
    tab.close()


@test
def large_pictures_are_made_smaller():
    tab = seeing(answer("Noise."))
    put(tab, DIALOG % "await picture('noise.png', 3000, true)")
    pending(tab, 1)
    tab.say("")  # a picture alone is a message
    tab.idle()
    url = api.requests[0]["messages"][0]["content"][0]["image_url"]["url"]
    check(url.startswith("data:image/jpeg;base64,"), url[:40])
    data = base64.b64decode(url.split(",")[1])
    at = 2
    while data[at + 1] not in (0xc0, 0xc2):
        at += 2 + int.from_bytes(data[at + 2:at + 4], "big")
    same((int.from_bytes(data[at + 7:at + 9], "big"), int.from_bytes(data[at + 5:at + 7], "big")), (1600, 800), "size")
    same(len(api.requests[0]["messages"][0]["content"]), 1, "no text")
    tab.close()


@test
def sounds_where_the_model_hears():
    tab = seeing(answer("A beep."), sees=False, hears=True)
    same(tab.js("document.getElementById('attach').getAttribute('aria-label')"), "Add sound", "name")
    put(tab, DROP % "file('beep.wav', 'audio/wav', 'RIFFxxxx'), await picture('no.png', 10)")
    pending(tab, 1)
    tab.chat("What do you hear?")
    part = api.requests[0]["messages"][0]["content"][0]
    same(part, {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFFxxxx").decode(), "format": "wav"}}, "part")
    tab.wait("document.querySelector('article.user .sound')?.innerText === 'beep.wav'")
    tab.shot("sound-sent")
    tab.close()


@test
def models_that_take_text_alone():
    tab = seeing(answer("Hm."), sees=False)
    put(tab, DROP % "await picture('one.png', 40)")
    tab.wait("document.getElementById('notice').innerText.includes('takes text alone')")
    pending(tab, 0)
    tab.chat("Hello")
    same(api.requests[0]["messages"], [{"role": "user", "content": "Hello"}], "messages")
    tab.close()


@test
def a_refused_picture_says_why():
    def script(h):
        h.fail(400, "messages[0].content[0]: the picture is damaged", "invalid_image")
    tab = seeing(script, answer("Fine."), dark=True, width=420, height=800, phone=True)
    tab.expected.append("400")
    put(tab, DIALOG % "file('broken.png', 'image/png', 'nothing')")
    pending(tab, 1)
    tab.say("Look")
    tab.wait("document.querySelector('.error')?.innerText.includes('the picture is damaged')")
    tab.shot("picture-refused")
    tab.click("Retry")
    same(tab.idle(), "Fine.", "answer")
    tab.close()


# ---- streaming ---------------------------------------------------------------------------------------------------------------


@test
def streams_whatever_the_split():
    text = "Grüße, 世界 🦢 — done."
    shown = threading.Event()
    def script(h):
        h.begin()
        h.put(b": a comment\r\n\r\n" + event(chunk("Begin. "), "\r\n\r\n"))
        shown.wait(8)
        data = b"event: x\nid: 1\n" + event(chunk(text[:6]), "\r\n\r\n") + b"data: " + json.dumps(chunk(text[6:]), indent=1, ensure_ascii=False).replace("\n", "\r\ndata: ").encode() + b"\r\n\r\n"
        data += event(chunk(finish="stop"), "\r\r") + event({"choices": [], "usage": usage()}, "\r\n\r\n") + event(b"[DONE]")
        for i in range(len(data)):
            h.put(data[i:i + 1])
            if data[i] >= 0x80 or data[i] == 13:  # within a character, between CR and LF
                time.sleep(0.01)
    t = open_page(script)
    t.say("Hello")
    t.wait("document.querySelector('article.assistant').innerText.includes('Begin.')")
    same(t.js("document.getElementById('send').textContent"), "Stop", "the button while it streams")
    same(t.js("document.querySelector('article.assistant').getAttribute('aria-busy')"), "true", "aria-busy")
    same(t.js("document.getElementById('live').textContent"), "", "what a screen reader hears while it streams")
    shown.set()
    same(t.idle(), "Begin. " + text, "the answer")
    check(text in t.js("document.getElementById('live').textContent"), "a screen reader hears the finished answer")
    figures = t.js("document.querySelector('.stats').textContent")
    check(re.search(r"^7 tokens · [\d.]+ tokens/s · first after \d+\.\d\d s · prompt 120 \(96 cached\)$", figures), "figures: %r" % figures)
    same(t.js("document.getElementById('meter').getAttribute('aria-valuetext')"), "127 of 4,096 tokens", "the meter")
    same(api.requests[0]["stream"], True, "stream")
    same(api.requests[0]["stream_options"]["include_usage"], True, "include_usage")
    same(api.requests[0]["messages"], [{"role": "user", "content": "Hello"}], "messages")
    t.close()


@test
def stops_and_the_server_sees_it():
    for how in ("Escape", "Stop the answer"):
        seen = threading.Event()
        def script(h):
            h.begin()
            h.put(event(chunk("One two three")))
            if h.gone(8):
                seen.set()
        t = open_page(script, answer("Another"))
        t.say("Count")
        t.wait("document.querySelector('article.assistant').innerText.includes('three')")
        t.key(how) if how == "Escape" else t.click(how)
        same(t.idle(), "One two three", "what was there stays")
        check(seen.wait(3), "the server does not see that the client went")
        check("stopped" in t.js("document.querySelector('.stats').textContent"), "it says that it was stopped")
        t.chat("More")
        same([m["content"] for m in api.requests[1]["messages"]], ["Count", "One two three", "More"], "the next request")
        t.close()


@test
def follows_the_end_only_from_the_end():
    go = threading.Event()
    def script(h):
        h.begin()
        h.put(event(chunk("line\n\n" * 60)))
        go.wait(8)
        h.put(whole("more\n\n" * 60))
    t = open_page(script, height=600)
    t.say("Long")
    t.wait("document.getElementById('main').scrollHeight > 1500 && document.getElementById('main').scrollTop + document.getElementById('main').clientHeight > document.getElementById('main').scrollHeight - 5")
    t.js("document.getElementById('main').scrollTop = 200")
    t.wait("!document.getElementById('down').hidden")
    go.set()
    t.idle()
    same(t.js("document.getElementById('main').scrollTop"), 200, "where the reader was")
    t.click("To the end")
    t.wait("document.getElementById('down').hidden")
    t.close()


# ---- conversations -----------------------------------------------------------------------------------------------------------


@test
def regenerates_beside_the_first():
    t = open_page(answer("First answer"), answer("Second answer"))
    t.chat("Question")
    t.click("Regenerate")
    t.wait("document.querySelector('article.assistant').innerText.includes('Second answer')")
    t.idle()
    same(api.requests[1]["messages"], api.requests[0]["messages"], "the same question again")
    same(t.js("document.querySelector('article.assistant .which').textContent"), "2 / 2", "versions")
    t.click("Version before")
    same(t.idle(), "First answer", "the first is kept")
    same(t.js("document.activeElement.closest('article')?.className"), "assistant", "focus stays with the versions")
    t.close()


@test
def edits_a_past_message():
    t = open_page(answer("A1"), answer("A2"), answer("A3"), answer("A4"))
    t.chat("Q1")
    t.chat("Q2")
    t.key("ArrowUp")  # the empty field: the last message
    t.wait("document.activeElement.getAttribute('aria-label') === 'Edit your message'")
    t.type("+")
    t.key("Escape")
    same(t.js("[document.querySelectorAll('.editor').length, document.activeElement.id].join()"), "0,input", "Escape leaves the edit")
    t.key("ArrowUp")
    t.type(" changed")
    t.key("Enter")
    t.wait("[...document.querySelectorAll('article.user')].pop().innerText.includes('Q2 changed')")
    t.wait("document.querySelectorAll('article')[3]?.innerText.includes('A3')")
    t.idle()
    same([m["content"] for m in api.requests[2]["messages"]], ["Q1", "A1", "Q2 changed"], "the branch")
    t.js("document.querySelector('article.user .foot button:last-child').click()")  # Edit of the first
    t.wait("document.activeElement.value === 'Q1'")
    t.key("a")
    t.click(".editor .main")
    t.wait("document.querySelectorAll('article')[1]?.innerText.includes('A4')")
    t.idle()
    same([m["content"] for m in api.requests[3]["messages"]], ["Q1a"], "later messages are not of this branch")
    same(t.js("document.querySelectorAll('article').length"), 2, "messages shown")
    t.click("Version before")
    same(t.js("document.querySelectorAll('article').length"), 4, "the old branch is kept")
    t.close()


@test
def continues_an_answer():
    t = open_page(answer("It ends in ", finish="length"), answer(" the middle."))
    t.chat("Q")
    check("cut at the limit" in t.js("document.querySelector('.stats').textContent"), "it says why it ended")
    t.click("Continue")
    t.wait("document.querySelector('article.assistant').innerText.includes('middle')")
    same(t.idle(), "It ends in the middle.", "one answer")
    same(api.requests[1]["messages"][-1], {"role": "assistant", "content": "It ends in"}, "the open message")
    same([api.requests[1].get(k) for k in ("continue_final_message", "add_generation_prompt")], [True, False], "how it is asked")
    check("continue_final_message" not in api.requests[0], "a plain question does not ask so")
    check(not t.js("[...document.querySelectorAll('button')].some(b => b.textContent === 'Continue')"), "nothing to continue")
    t.close()


@test
def keeps_conversations():
    t = open_page(answer("A1"), answer("B1"), answer("A2"))
    titles = "[...document.querySelectorAll('#chats .open')].map(b => b.textContent)"
    t.chat("First talk")
    t.click("New conversation")
    t.chat("Second talk")
    same(t.js(titles), ["Second talk", "First talk"], "the list")
    t.go()
    same(t.js("document.getElementById('title').textContent"), "Second talk", "after a reload the same conversation")
    same(t.js(titles), ["Second talk", "First talk"], "the list after a reload")
    t.click("First talk")
    t.wait("document.querySelector('article.assistant').innerText.includes('A1')")
    t.chat("And on")
    same([m["content"] for m in api.requests[2]["messages"]], ["First talk", "A1", "And on"], "its own messages alone")
    t.click("Rename: First talk")
    t.wait("document.activeElement.getAttribute('aria-label') === 'Title'")
    t.type("<b>Renamed</b>")
    t.key("Enter")
    same(t.js("document.getElementById('title').textContent"), "<b>Renamed</b>", "the title")
    same(t.js("document.activeElement.className"), "open", "focus after renaming")
    exported = t.js("exported('json')")
    same(exported[0], "b-Renamed-b.json", "the file's name")
    same([m["content"] for m in json.loads(exported[2])["messages"]], ["First talk", "A1", "And on", "A2"], "exported")
    check("## You\n\nAnd on\n\n## Answer\n\nA2\n" in t.js("exported('markdown')")[2], "exported as Markdown")
    t.click("Delete: <b>Renamed</b>")
    same(t.js(titles), ["Second talk"], "deleted")
    same(t.js("store.names().length"), 1, "deleted from the storage")
    t.click("Undo")
    same(t.js(titles), ["<b>Renamed</b>", "Second talk"], "and back")
    same(t.js("document.querySelectorAll('article').length"), 4, "with its messages")
    t.close()


@test
def answers_go_on_behind():
    go = threading.Event()
    def slow(h):
        h.begin()
        h.put(event(chunk("Slow ")))
        go.wait(8)
        h.put(whole("and done"))
    t = open_page(slow, answer("Quick"))
    t.say("One")
    t.wait("document.querySelector('article.assistant')?.innerText.includes('Slow')")
    t.click("New conversation")
    same(t.chat("Two"), "Quick", "a second conversation meanwhile")
    check("answering" in t.js("[...document.querySelectorAll('#chats .open')].find(b => b.textContent.includes('One')).getAttribute('aria-label')"), "the list says so")
    t.click("One, answering")
    go.set()
    t.wait("document.querySelector('article.assistant').innerText.includes('and done')")
    same(t.idle(), "Slow and done", "the first")
    t.close()


# ---- settings ----------------------------------------------------------------------------------------------------------------


@test
def settings_are_sent():
    t = open_page(answer("A"), answer("B"), answer("C"))
    names = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty"]
    t.chat("Q")
    check(not set(names) & set(api.requests[0]), "nothing is sent that was not set")
    t.click("Settings")
    t.wait("document.getElementById('settings').open")
    t.shot("settings")
    values = dict(zip(names, [0.25, 0.9, 40, 0.05, 77, 1234, 0.5, -0.5, 1.1]))
    for name, value in values.items():
        t.js("document.getElementById('set-%s').focus()" % name)
        t.type(str(value))
    t.js("document.getElementById('system').focus()")
    t.type("Be brief.")
    t.click("Done")
    t.chat("Q2")
    same({k: api.requests[1].get(k) for k in names}, values, "settings")
    same(api.requests[1]["messages"][0], {"role": "system", "content": "Be brief."}, "system prompt")
    t.go()
    t.click("Settings")
    same(t.js("document.getElementById('set-top_k').value"), "40", "kept over a reload")
    t.js("document.getElementById('set-top_p').select()")
    t.type("7")
    same(t.js("document.getElementById('set-top_p').getAttribute('aria-invalid')"), "true", "out of range")
    same(t.js("settings.top_p ?? null"), None, "and not sent")
    t.click("Reset to defaults")
    t.key("Escape")
    t.chat("Q3")
    check(not set(names) & set(api.requests[2]), "reset")
    t.close()


@test
def thoughts_are_folded():
    def thought(text):
        return event({"choices": [{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}], "usage": None})
    held = threading.Event()
    def script(h):
        h.begin()
        h.put(thought("First <b>this</b>,\n") + thought("then\0that."))
        held.wait(8)
        h.put(whole("The answer."))
    t = open_page(answer("A"))
    t.chat("Q")
    t.click("Settings")
    same(t.js("document.getElementById('think-label').hidden"), True, "no switch for a model that does not think")
    t.close()
    t = open_page(script, answer("B"), answer("C"))
    api.thinks = True
    t.go()
    t.wait("model.thinks")
    t.click("Settings")
    t.js("document.getElementById('think').click()")
    t.shot("settings-think")
    t.click("Done")
    t.say("Q")
    t.wait("document.querySelector('.thought div')?.textContent.endsWith('that.')")
    same(t.js("document.querySelector('article.assistant .wait').textContent"), "Thinking …", "while it thinks")
    same(t.js("document.querySelector('.thought').open"), False, "folded")
    held.set()
    t.idle()
    same(t.js("document.querySelector('.thought div').textContent"), "First <b>this</b>,\nthen\ufffdthat.", "the thought")
    same(t.js("document.querySelector('article.assistant .md').innerText.trim()"), "The answer.", "the answer")
    t.shot("thoughts")
    same(api.requests[0].get("enable_thinking"), True, "the switch is sent")
    t.go()
    same(t.js("document.querySelector('.thought div').textContent.length > 10"), True, "kept over a reload")
    t.wait("model.thinks")
    t.chat("Q2")
    same([m["content"] for m in api.requests[1]["messages"]], ["Q", "The answer.", "Q2"], "thoughts are not sent back")
    t.click("Settings")
    t.js("document.getElementById('think').click()")
    t.click("Done")
    t.chat("Q3")
    check("enable_thinking" not in api.requests[2], "switched off")
    t.close()


@test
def nul_is_not_sent_back():
    t = open_page(answer("a\0b", "\0"), answer("C"))
    t.chat("Q")
    t.chat("Q2")
    same(api.requests[1]["messages"][1]["content"], "a\ufffdb\ufffd", "what is sent back")
    t.close()


# ---- errors ------------------------------------------------------------------------------------------------------------------


@test
def busy_and_again():
    t = open_page(lambda h: h.fail(503, "17 requests are being served; try again later"), answer("Now"))
    t.expected = ["503"]
    t.say("Q")
    t.wait("document.querySelector('.error')?.innerText.includes('17 requests are being served; try again later')")
    same(t.js("document.querySelector('.error').getAttribute('role')"), "alert", "it is heard")
    t.click("Retry")
    t.wait("document.querySelector('article.assistant').innerText.includes('Now')")
    t.idle()
    same(t.js("document.querySelectorAll('.error, .which').length"), 0, "the failure left nothing")
    same(api.requests[0], api.requests[1], "the same request")
    t.close()


@test
def breaks_while_streaming():
    def error(h):
        h.begin()
        h.put(event(chunk("Half ")) + event({"error": {"message": "the engine has stopped", "code": "internal_error"}}) + event(b"[DONE]"))
    def cut(h):
        h.begin()
        h.put(event(chunk("Cut ")) + b"data: {\"cho")
    def nonsense(h):
        h.begin()
        h.put(event(chunk("Odd ")) + event(b"{nonsense"))
    def proxy(h):
        h.reply(502, b"<h1>Bad gateway</h1>", "text/html")
    t = open_page(error, cut, nonsense, proxy, answer("Fine"))
    t.expected = ["502", "ERR_INCOMPLETE"]
    for i, (text, words) in enumerate([("Half", "the engine has stopped"), ("Cut", "The connection ended before"), ("Odd", "was cut off"), ("", "502")]):
        t.say("Q") if i == 0 else t.click("Retry")
        t.wait("document.querySelector('.error span')?.textContent.includes(%s)" % json.dumps(words))
        same(t.idle().strip(), text, "what came before the end")
    t.click("Retry")
    t.wait("document.querySelector('article.assistant').innerText.includes('Fine')")
    same(t.idle(), "Fine", "at last")
    same(t.js("document.querySelector('article.assistant .which').textContent"), "4 / 4", "what had text is kept, what had none is not")
    t.close()


@test
def server_away():
    t = open_page()
    t.expected = ["ERR_CONNECTION_REFUSED"]
    t.js("ask = (was => (url, o) => was(url.replace('v1/', 'http://127.0.0.1:9/'), o))(ask)")
    t.expected.append("Content Security Policy")
    t.say("Q")
    t.wait("document.querySelector('.error')?.innerText.includes('cannot be reached')")
    t.close()


@test
def asks_for_the_key():
    api.fresh()
    api.key, api.scripts = "sesame", [answer("Open")]
    t = Tab(api.url)
    t.expected = ["401"]
    t.wait("document.getElementById('ask-key').open")
    same(t.js("document.activeElement.id"), "key", "focus")
    t.key("Escape")
    t.say("Q")
    t.wait("document.getElementById('ask-key').open")
    t.type("sesame")
    t.key("Enter")
    t.wait("document.querySelector('article.assistant')?.innerText.includes('Open')")
    t.wait("document.getElementById('model').textContent.includes('tiny-model')")
    check("sesame" not in t.js("JSON.stringify(localStorage)"), "the key is not kept for good")
    check("sesame" in t.js("JSON.stringify(sessionStorage)"), "the key is kept in the tab")
    t.close()


# ---- text of the model ---------------------------------------------------------------------------------------------------------

HOSTILE = """<img src=x onerror="window.hit=1"> <script>window.hit=1</script> <svg onload=window.hit=1><iframe src="javascript:window.hit=1"></iframe>

[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](data:text/html,<script>window.hit=1</script>) [d]( java\tscript:alert(1)) [e](vbscript:x)
![picture](http://127.0.0.1:9/pixel.png) ![x](javascript:window.hit=1) <javascript:window.hit=1> [f](http://ok.example/"onmouseover="window.hit=1)
[rel](/v1/models) [ok](https://ok.example/?a=1&b="2") <https://auto.example/x> http://bare.example/y. [mail](mailto:a@b.example)

| <img src=x onerror=window.hit=1> | [t](javascript:window.hit=1) |
|---|---|
| <b onclick=window.hit=1>x</b> | `<script>` |

```"><img src=x onerror=window.hit=1>
</code></pre><script>window.hit=1</script>
```

- <style>*{display:none}</style>
- <a href="javascript:window.hit=1">x</a> <form action=/x><input name=y></form> <base href=//evil.example> <meta http-equiv=refresh content="0;url=/x">
"""


@test
def hostile_text_stays_text():
    t = open_page(answer(*[HOSTILE[i:i + 7] for i in range(0, len(HOSTILE), 7)]))
    t.chat(HOSTILE)
    found = t.js("""(() => {
      const all = [...document.querySelectorAll('article *')];
      return {
        tags: [...new Set(all.map(e => e.tagName))].sort(),
        handlers: all.flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on') || n === 'style' || n === 'src'),
        links: all.filter(e => e.href).map(e => e.href), rel: all.filter(e => e.href).every(e => e.rel === 'noopener noreferrer' && e.target === '_blank'),
        hit: window.hit ?? 0, scripts: document.scripts.length, images: document.images.length, loaded: performance.getEntriesByType('resource').map(e => e.name),
        shown: document.querySelector('article.assistant').innerText, mine: document.querySelector('article.user .body').textContent,
      };
    })()""")
    allowed = {"A", "BUTTON", "CODE", "DIV", "LI", "P", "PRE", "SPAN", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL"}
    check(set(found["tags"]) <= allowed, "elements: %s" % (set(found["tags"]) - allowed))
    same(found["handlers"], [], "handlers")
    same(found["hit"], 0, "scripts that ran")
    same((found["scripts"], found["images"]), (1, 0), "scripts and pictures")
    same([l for l in found["links"] if not re.match(r"(https?://|mailto:)", l)], [], "links")
    for link in ("https://ok.example/?a=1&b=%222%22", "https://auto.example/x", "http://bare.example/y", "mailto:a@b.example", "http://127.0.0.1:9/pixel.png"):
        check(link in found["links"], "link %s: %s" % (link, found["links"]))
    check(found["rel"], "links tell nothing about this page")
    check(not [u for u in found["loaded"] if not u.startswith(api.url + "v1/")], "loaded: %s" % found["loaded"])
    for words in ("<script>window.hit=1</script>", "<style>*{display:none}</style>", "[a](javascript:window.hit=1)", '<img src=x onerror="window.hit=1">'):
        check(words in found["shown"], "not shown as it is: " + words)
    same(found["mine"], HOSTILE.strip(), "my own message")
    t.close()


MARKDOWN = [
    ("# One #\n## Two\ntext\n#tag", "<h2>One</h2><h3>Two</h3><p>text\n#tag</p>"),
    ("a **b *c* d** _e_ ~~f~~ snake_case_name 2 * 3 * 4 ***x***",
     "<p>a <strong>b <em>c</em> d</strong> <em>e</em> <del>f</del> snake_case_name 2 * 3 * 4 <em><strong>x</strong></em></p>"),
    ("**open and *open\n\n`code **not**` \\*plain\\* `` a`b ``", "<p>**open and *open</p><p><code>code **not**</code> *plain* <code>a`b</code></p>"),
    ("- a\n- b\n  - c\n    more\n  - d\n- e", "<ul><li>a</li><li>b<ul><li>c\nmore</li><li>d</li></ul></li><li>e</li></ul>"),
    ("3. x\n4. y\n\n   z\n\nafter", '<ol start="3"><li>x</li><li><p>y</p><p>z</p></li></ol><p>after</p>'),
    ("1. one\n   - two\n      1. three\n\n* other", "<ol><li>one<ul><li>two<ol><li>three</li></ol></li></ul></li></ol><ul><li>other</li></ul>"),
    ("- [ ] todo\n- [x] **done**", "<ul><li>☐ todo</li><li>☑ <strong>done</strong></li></ul>"),
    ("> q\n> > deep\n\n---\nend", "<blockquote><p>q</p><blockquote><p>deep</p></blockquote></blockquote><hr><p>end</p>"),
    ("$x_1 + y_2$ and \\(a\\)", "<p>$x_1 + y_2$ and (a)</p>"),
    ("[a *b* `c`](https://x.example/p_(q)) (see https://y.example/a_b_c).",
     '<p><a href="https://x.example/p_(q)" rel="noopener noreferrer" target="_blank">a <em>b</em> <code>c</code></a> (see <a href="https://y.example/a_b_c" rel="noopener noreferrer" target="_blank">https://y.example/a_b_c</a>).</p>'),
    ("a  \nb", "<p>a\nb</p>"),
    ("x | y\nno table", "<p>x | y\nno table</p>"),
]


@test
def markdown_becomes_nodes():
    t = open_page()
    for text, expected in MARKDOWN:
        html = t.js("(() => { const d = document.createElement('div'); new Markdown(d).update(%s); return d.innerHTML; })()" % json.dumps(text))
        same(html, expected, text)
    table = t.js("(() => { const d = document.createElement('div'); new Markdown(d).update(%s); return [...d.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.className + ':' + c.textContent)); })()"
                 % json.dumps("before\n| a | b | c |\n|:--|:-:|--:|\n| 1 | | x \\| y |\n| only |\nafter"))
    same(table, [[":a", "center:b", "right:c"], [":1", "center:", "right:x | y"], [":only", "center:", "right:"]], "table")
    code = t.js("(() => { const d = document.createElement('div'); new Markdown(d).update(%s); return [...d.querySelectorAll('code')].map(c => c.textContent); })()"
                % json.dumps("````md\n```js\nlet a\n```\n````\n- item\n  ```py\n  if x:\n  \ty\n  ```\n~~~\nopen"))
    same(code, ["```js\nlet a\n```", "if x:\n\ty", "open"], "fences")
    t.close()


@test
def growing_text_is_drawn_as_the_whole():
    t = open_page()
    text = "\n\n".join(m[0] for m in MARKDOWN) + "\n\n" + HOSTILE + "\n| a | b |\n|---|---|\n| c | d |\n\ntail\n# end\n#tag\n- x\n1. y\n"
    same(t.js("""(() => {
      const text = %s, wrong = [];
      let seed = 1;
      for (const most of [1, 3, 40]) {
        const root = document.createElement('div'), m = new Markdown(root);
        for (let n = 0; n < text.length;) {
          seed = seed * 48271 %% 2147483647;
          n = Math.min(text.length, n + 1 + seed %% most);
          m.update(text.slice(0, n));
          if (n < text.length && most < 40 && n %% (most === 1 ? 89 : 7)) continue;
          const other = document.createElement('div');
          new Markdown(other).update(text.slice(0, n));
          if (root.innerHTML !== other.innerHTML && wrong.length < 3) wrong.push([n, text.slice(n - 30, n), root.innerHTML.slice(-300), other.innerHTML.slice(-300)]);
        }
      }
      return wrong;
    })()""" % json.dumps(text)), [], "drawn piece by piece and at once")
    t.close()


@test
def pathological_text_is_drawn_soon():
    t = open_page()
    slow = t.js("""(() => {
      const slow = [];
      for (const unit of ['*a ', '[', '[a](', '`', '` `` ', '> ', '- ', '  - a\\n', '_a* ', '~~a ', '|', '| a\\n|-\\n', '![', '<http://', 'http://a', '\\\\', '```\\n', '**a*', '1. ', '#', '\\t', '"', 'a"', '](', '((', '[[]']) {
        const begin = performance.now();
        new Markdown(document.createElement('div')).update(unit.repeat(49000 / unit.length));
        if (performance.now() - begin > 1500) slow.push([unit, performance.now() - begin]);
      }
      return slow;
    })()""")
    same(slow, [], "took long")
    t.close()


@test
def a_line_of_a_megabyte():
    line = "lorem **ipsum** " * 65536
    t = open_page(answer(*[line[i:i + 4096] for i in range(0, len(line), 4096)]))
    begin = time.time()
    t.say("Long")
    t.wait("document.querySelector('article.assistant')?.textContent.length > 1e6", timeout=12)
    t.wait("document.getElementById('send').textContent === 'Send'", timeout=8)
    check(time.time() - begin < 10, "took %.1f s" % (time.time() - begin))
    t.close()


# ---- keys, names, looks ----------------------------------------------------------------------------------------------------------


@test
def keyboard_alone():
    t = open_page(answer("A"))
    same(t.js("document.activeElement.id"), "input", "focus at the start")
    t.type("line")
    t.key("Enter", shift=True)
    t.type("two")
    t.key("Enter")
    t.wait("document.querySelector('article.assistant')?.innerText.includes('A')")
    t.idle()
    same(api.requests[0]["messages"][0]["content"], "line\ntwo", "Shift+Enter")
    seen = []
    for _ in range(40):
        t.key("Tab")
        seen.append(t.js("(e => e.id || e.getAttribute('aria-label') || e.textContent)(document.activeElement)"))
        check(t.js("document.activeElement === document.body || document.activeElement.id === 'input' || getComputedStyle(document.activeElement).outlineStyle === 'solid'"), "no visible focus at " + seen[-1])
    for name in ("new", "theme", "open-settings", "Copy your message", "Edit", "Copy the answer", "Regenerate", "input", "send", "Rename: line", "Delete: line", "skip"):
        check(name in seen, "Tab does not reach %s: %s" % (name, seen))
    t.js("document.getElementById('theme').focus()")
    t.key("/")
    same(t.js("[document.activeElement.id, document.activeElement.value].join()"), "input,", "/ goes to the field")
    t.key("/")
    same(t.js("document.activeElement.value"), "/", "/ in the field is a letter")
    t.close()


@test
def names_and_landmarks():
    t = open_page(answer("# Head\n\ntext `code`\n\n```py\nx\n```\n\n|a|b|\n|-|-|\n|1|2|"))
    t.chat("Q")
    t.call("Accessibility.enable")
    def roles():
        nodes = t.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"] and "role" in n]
    found = roles()
    for role, name in (("navigation", "Conversations"), ("main", "Conversation"), ("form", "Write a message"), ("banner", None), ("contentinfo", None), ("textbox", "Message"),
                       ("article", "You"), ("article", "Answer"), ("meter", "Context used"), ("button", "Copy this code"), ("region", "Code, py"), ("button", "Dark colours")):
        check(any(r == role and name in (None, n) for r, n in found), "no %s called %s: %s" % (role, name, sorted(set(found))))
    t.click("Settings")
    found += roles()
    for role, name in found:
        if role in ("button", "textbox", "link", "spinbutton", "article", "region", "dialog", "navigation", "main", "form", "meter"):
            check(name.strip(), "a %s without a name" % role)
    check(("dialog", "Settings") in found and len([1 for r, _ in found if r == "spinbutton"]) == 9, "the dialog: %s" % found)
    check(any(r == "spinbutton" and n.startswith("Temperature") for r, n in found), "labels of fields")
    t.close()


CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = parse(c).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor, p = parse(c); if (p.length === 3 || p[3] === 1) return c; } return 'rgb(255, 255, 255)'; };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.getClientRects().length || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    if (ratio < 4.5 && !e.disabled) low.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 20) + ' ' + ratio.toFixed(2));
  }
  return low;
})()"""

SHOWN = """Swans mate for life, *mostly*. The short version:

## Three facts

1. A **cygnet** is a young swan.
2. They ride on their parents' backs:
   - for warmth
   - for safety
3. See the [Wikipedia article](https://en.wikipedia.org/wiki/Swan).

| Species | Span | Mass |
|:--|:-:|--:|
| Mute swan | 2.4 m | 12 kg |
| Whooper swan | 2.3 m | 10 kg |

```python
def swans(n):
    return [f"swan {i}" for i in range(n)]  # one line that is long enough to scroll sideways on every telephone that there is
```

> Grace is a matter of hidden paddling, says `physics`.
"""


@test
def dark_and_light():
    t = open_page(answer(SHOWN, prompt=1204, cached=1180, completion=212), lambda h: h.fail(503, "17 requests are being served; try again later"), answer("Again"))
    t.expected = ["503"]
    ground = "getComputedStyle(document.body).backgroundColor"
    t.chat("What should I know about swans?")
    t.shot("light")
    t.say("Another question, to a server that has no time for it")
    t.wait("document.querySelector('.error')")
    t.shot("error")
    light = t.js(ground)
    same(t.js(CONTRAST), [], "contrast in the light")
    t.media(dark=True)
    t.wait("%s !== %s" % (ground, json.dumps(light)))
    dark = t.js(ground)
    same(t.js(CONTRAST), [], "contrast in the dark")
    t.shot("dark")
    t.click("Light colours")
    same(t.js(ground), light, "the button")
    t.go()
    same(t.js(ground), light, "is remembered")
    t.click("Dark colours")
    same(t.js(ground), dark, "and back")
    t.media(dark=False)
    t.wait("%s === %s" % (ground, json.dumps(light)))  # the system is followed again
    t.click("Settings")
    same(t.js(CONTRAST), [], "contrast of the settings")
    t.close()


@test
def narrow_screens():
    t = open_page(answer(SHOWN + "\n\n" + "Donaudampfschifffahrtsgesellschaft" * 10 + "\n\n" + "|a" * 30 + "|\n" + "|-" * 30 + "|\n" + "|long word" * 30 + "|\n"), width=360, height=740, phone=True, reduced=True)
    t.shot("phone-empty")
    t.chat("What should I know about swans? " + "x" * 200)
    wide = "[document.documentElement.scrollWidth, document.getElementById('main').scrollWidth - document.getElementById('main').clientWidth]"
    same(t.js(wide), [360, 0], "width of the page")
    check(t.js("[...document.querySelectorAll('article > *')].every(e => e.getBoundingClientRect().right <= 360 && e.getBoundingClientRect().left >= -8)"), "something sticks out")
    t.js("document.getElementById('main').scrollTop = 0")
    t.shot("phone")
    check(t.js("document.getElementById('side').inert && document.getElementById('side').getBoundingClientRect().right <= 0"), "the list is out of sight and reach")
    t.click("Conversations")
    t.wait("document.getElementById('side').getBoundingClientRect().left === 0")
    same(t.js("document.activeElement.id"), "close-side", "focus in the list")
    t.shot("phone-list")
    t.key("Escape")
    t.wait("document.getElementById('side').getBoundingClientRect().right <= 0")
    same(t.js("document.activeElement.id"), "menu", "focus back")
    t.click("Settings")
    same(t.js("document.getElementById('settings').scrollWidth <= document.getElementById('settings').clientWidth && document.getElementById('settings').getBoundingClientRect().right <= 360"), True, "the settings fit")
    t.shot("phone-settings")
    t.close()


# ---- the program ------------------------------------------------------------------------------------------------------------------


def start_program(model):
    """(process, port)"""
    p = subprocess.Popen([CYGNET, "serve", "--port", "0", "-m", model, "--threads", "1", "--ctx", "1024"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env={k: v for k, v in os.environ.items() if not k.startswith("CYGNET_")})
    port, said = 0, ""
    while not port:
        line = p.stdout.readline().decode()
        check(line, "the server ended: " + said)
        said += line
        m = re.search(r"http://[^ ]*:(\d+)", line)
        port = int(m.group(1)) if m else 0
    threading.Thread(target=p.stdout.read, daemon=True).start()
    return p, port


@test
def the_program_sees_pictures():
    p, port = start_program(with_words("media-gemma3"))
    try:
        t = Tab("http://127.0.0.1:%d/" % port)
        t.wait("!document.getElementById('attach').hidden")
        t.js("settings = {max_tokens: 4, temperature: 0, ignore_eos: true}")
        put(t, DIALOG % "await picture('one.png', 40)")
        pending(t, 1)
        t.chat("What is it?")
        same(t.js("document.querySelectorAll('.error').length"), 0, "errors")
        check("4 tokens" in t.js("document.querySelector('.stats').textContent"), "figures")
        t.expected = ["400"]
        put(t, DIALOG % "file('broken.png', 'image/png', 'nothing')")
        pending(t, 1)
        t.say("And this?")
        t.wait("document.querySelector('.error')?.innerText.includes('messages[2].content[0]')")
        t.close()
    finally:
        p.terminate()
        p.wait(10)


@test
def the_program_serves_it():
    p, port = start_program(TINY_GGUF)
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        c.request("GET", "/")
        r = c.getresponse()
        same((r.status, r.getheader("Content-Type")), (200, "text/html; charset=utf-8"), "the page")
        check(r.read().decode() == PAGE, "the page is not the one of the source")
        rules = r.getheader("Content-Security-Policy")
        for rule in ("default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
            check(rule in rules, "the policy lacks %s: %s" % (rule, rules))
        check(rules == policy(), "the policy's hashes are not those of the page: " + rules)
        t = Tab("http://127.0.0.1:%d/" % port)
        t.js("settings = {max_tokens: 8, seed: 1, temperature: 1}")
        t.chat("Hello there, this is a first message of some length, so that there is something to be found again.")
        figures = t.js("document.querySelector('.stats').textContent")
        check(re.search(r"prompt \d+ \(\d+ cached\)", figures), "figures: %r" % figures)
        t.chat("And a second one")
        same(t.js("document.querySelectorAll('.error').length"), 0, "errors")
        t.js("settings = {ignore_eos: true, min_tokens: 400}")
        t.say("Go on")
        t.wait("document.querySelectorAll('article.assistant')[2]?.querySelector('.stats').textContent.includes('tokens')")
        t.key("Escape")
        t.idle()
        end, running = time.time() + 3, 1
        while running and time.time() < end:
            c.request("GET", "/server_info")
            running = json.load(c.getresponse())["internal_states"][0]["n_running"]
        same(running, 0, "requests that run after the stop")
        t.js("settings = {temperature: 101}")
        t.say("No")
        t.wait("document.querySelector('.error')?.innerText.includes('temperature')")
        t.expected = ["400"]
        t.close()
    finally:
        p.terminate()
        p.wait(10)


def main():
    global browser, api
    if not CHROMIUM:
        print("no Chromium here (Debian: apt-get install chromium): the chat page is not tested")
        print("0 passed, 0 failed")
        return 0
    passed = failed = 0
    api, browser = Api(), Browser()
    try:
        browser.call("Browser.getVersion")
        for fn in tests:
            if len(sys.argv) > 1 and not any(a in fn.__name__ for a in sys.argv[1:]):
                continue
            start = time.time()
            try:
                fn()
                passed += 1
                print("ok    %-40s %5.1f s" % (fn.__name__, time.time() - start), flush=True)
            except Exception as e:  # a broken test must not hide the others
                failed += 1
                print("FAIL  %s (%.1f s): %s: %s" % (fn.__name__, time.time() - start, type(e).__name__, e), flush=True)
    finally:
        browser.close()
        shutil.rmtree(TMP, ignore_errors=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


sys.exit(main())
