#!/usr/bin/env python3
"""`cygnet eval`: every suite on tiny data sets, against a scripted server that answers right, wrong, oddly, slowly and with errors, and against tiny models in
process; logs that are continued, minimums, gates.

Standard library only. Usage: tests/evals.py [NAME...]   last line: N passed, N failed
"""
import base64, http.server, math, struct, tempfile, threading

from serving import *
from vocabulary import with_words

TMP = tempfile.mkdtemp(prefix="cygnet-evals-")
GOLDEN = os.path.join(ROOT, "tests", "golden")
PICTURE = os.path.join(GOLDEN, "media-gemma3", "a.rgb.png")
OTHER = os.path.join(GOLDEN, "media-gemma3", "c.rgb.jpg")
SMALL = ("--threads", "1", "-q", "--mem", "256MiB")


def run(*args, env=None, timeout=60):
    p = subprocess.run([CYGNET, "eval", *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=dict(ENV, **(env or {})))
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def result(*args, status=0, **kw):
    found, out, err = run(*args, "--json", **kw)
    check(found == status, (args, found, out, err))
    return json.loads(out)


def refused(*args, says=(), status=2, **kw):
    found, out, err = run(*args, **kw)
    check(found == status and err.startswith("cygnet: ") and len(err.splitlines()) == 1 and not out, (args, found, out, err))
    for s in [says] if isinstance(says, str) else says:
        check(s in err, (s, err))


def lines(path):
    with open(path) as f:
        return [json.loads(l) for l in f]


def data(name, rows):
    """A folder with one .jsonl."""
    folder = os.path.join(TMP, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "test.jsonl"), "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    return folder


def fresh(name):
    path = os.path.join(TMP, name)
    if os.path.exists(path):
        os.remove(path)
    return path


class Scripted:
    """A server of OpenAI's API whose answers a function makes: text, (text, finish), a status, bytes that are the whole body, or None: none ever."""

    def __init__(self, answer, model="scripted"):
        self.asked, self.answer, self.most, self.now, self.lock = [], answer, 0, 0, threading.Lock()
        me = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def say(self, status, body, **headers):
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k, v)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.say(200, json.dumps({"data": [{"id": model}]}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with me.lock:
                    me.asked.append(dict(body, path=self.path, key=self.headers.get("Authorization")))
                    me.now += 1
                    me.most = max(me.most, me.now)
                try:
                    said = me.answer(body)
                    if said is None:
                        time.sleep(5)
                        return
                    if isinstance(said, int):
                        return self.say(said, b'{"error": {"message": "as scripted"}}')
                    if isinstance(said, bytes):
                        return self.say(200, said)
                    text, finish = said if isinstance(said, tuple) else (said, "stop")
                    choice = {"finish_reason": finish, **({"message": {"content": text}} if "messages" in body else {"text": text})}
                    self.say(200, json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode())
                finally:
                    with me.lock:
                        me.now -= 1

        class Many(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def handle_error(self, *_):
                pass

        self.server = Many(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def number_of(body):
    """The question's number: each says "number N?" last."""
    text = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
    return int(re.findall(r"number (\d+)", text)[-1])


def sums(n):
    return [{"question": "What is number %d?" % i, "answer": "It is %d.\n#### %d" % (i, i)} for i in range(n)]


def contest(n):
    return [{"question": "Find number %d." % i, "answer": str(i)} for i in range(n)]


def choices(n, open_every=0):
    rows = []
    for i in range(n):
        r = {"id": "validation_%s_%d" % ("Art_Theory" if i % 2 else "Math", i), "question": "<image 1> Which is number %d?" % i, "answer": "ABCD"[i % 4],
             "options": "['one', \"two's\", 'thr\\xe9e', '<image 2>']", "question_type": "multiple-choice", "image_1": "a.png", "image_2": {"path": "b.jpg"}, "image_3": None}
        if open_every and i % open_every == 0:
            r.update(question_type="open", options="[]", answer="['%d.5', 'half']" % i)
        rows.append(r)
    return rows


def pictures(folder):
    for name, source in (("a.png", PICTURE), ("b.jpg", OTHER)):
        with open(source, "rb") as f, open(os.path.join(folder, name), "wb") as g:
            g.write(f.read())
    return folder


# ---- what is asked, and how it is counted ----------------------------------------------------------------------------------------


@test
def gsm8k():
    folder, log = data("gsm8k", sums(230)), fresh("gsm8k.log")
    with Scripted(lambda b: (time.sleep(0.3), " so %d apples, %d in all" % (number_of(b) + 1, number_of(b) if number_of(b) % 4 else 5000))[1]) as s:
        r = result("gsm8k", "--url", s.url + "/v1/", "--data", folder, "--log", log, "--min", "0.75", "--api-key", "secret")
        check(r["score"] == 0.75 and r["right"] == 150 and r["questions"] == 200 and r["passed"] and r["low"] < 0.75 < r["high"] and r["errors"] == 0, r)
        check(abs(r["low"] - 0.685598) < 1e-4 and abs(r["high"] - 0.804982) < 1e-3, r)
        check(r["completion_tokens"] == 600 and r["model"] == "scripted" and r["shots"] == 5 and r["api"] == "completion", r)
        check(64 < s.most <= 128 and len(s.asked) == 200, s.most)
        shots = "".join("Question: What is number %d?\nAnswer: It is %d.\n#### %d\n\n" % (i, i, i) for i in range(5))
        for b in s.asked:
            check(b["prompt"] == shots + "Question: What is number %d?\nAnswer:" % number_of(b), b["prompt"])
            check(b["stop"] == ["Question", "Assistant:", "<|separator|>"] and b["max_tokens"] == 512 and b["temperature"] == 0 and b["path"] == "/v1/completions", b)
            check(b["key"] == "Bearer secret" and b["model"] == "scripted" and "seed" not in b, b)
        check({number_of(b) for b in s.asked} == set(range(200)), "the first 200")
        log = lines(log)
        check(log[0]["eval"] == "gsm8k" and log[0]["model"] == "scripted" and log[0]["max_tokens"] == 512 and len(log) == 201, log[0])
        one = next(l for l in log if l.get("id") == "gsm8k-6")
        check(one["extracted"] == "6" and one["expected"] == "6" and one["right"] and one["text"] == " so 7 apples, 6 in all" and one["seconds"] >= 0.3, one)
        check("secret" not in json.dumps(log), "the key is in the log")
        n = len(s.asked)
        check(run("gsm8k", "--url", s.url, "--data", folder, "--limit", "8", "--shots", "0", "--parallel", "1", "--min", "0.76")[0] == 1, "below the minimum")
        check(s.asked[n]["prompt"] == "Question: What is number 0?\nAnswer:" and len(s.asked) == n + 8, s.asked[n])


@test
def gsm8k_as_conversation():
    with Scripted(lambda b: "The answer is -%d.50" % number_of(b) if number_of(b) == 5 else "%d.00 dollars." % number_of(b)) as s:
        r = result("gsm8k", "--url", s.url, "--data", data("gsm8k-chat", sums(15)), "--api", "chat", "--limit", "0")
        check(r["questions"] == 10 and r["right"] == 9 and r["max_tokens"] == 2048, r)  # the examples are no questions
        check(all(b["path"] == "/v1/chat/completions" and b["messages"][0]["content"].startswith("Question: What is number 0?\nAnswer: It is 0.") for b in s.asked), s.asked[0])


@test
def aime():
    folder = data("aime", contest(6))
    with Scripted(lambda b: "Thus.\nAnswer: %03d" % (number_of(b) + b.get("seed", 0) % 2)) as s:
        r = result("aime", "--url", s.url, "--data", folder)
        check(r["score"] == 0.5 and r["samples"] == 4 and r["questions"] == 6 and r["temperature"] == 1, r)
        check(len({b["seed"] for b in s.asked}) == 24 and s.asked[0]["top_k"] == 64 and s.asked[0]["max_tokens"] == 2048, s.asked[0])
        check("Find number" in s.asked[0]["messages"][0]["content"] and s.asked[0]["messages"][0]["content"].endswith("from 000 to 999."), s.asked[0])
        low = r["low"]
        r = result("aime", "--url", s.url, "--data", folder, "--temp", "0", "--think")
        check(r["score"] == 1 and r["samples"] == 1 and "top_k" not in s.asked[-1] and s.asked[-1]["chat_template_kwargs"] == {"enable_thinking": True}, r)
        check(low < 0.25, "the interval is over questions")
        refused("aime", "--url", s.url, "--data", folder, "--temp", "0", "--samples", "2", says="--temp 1")


@test
def mmmu():
    folder = pictures(data("mmmu", choices(60, open_every=5)))
    with Scripted(lambda b: "half" if number_of(b) % 5 == 0 else "(%s)" % "ABCD"[number_of(b) % 4] if number_of(b) % 3 else "I see nothing at all in there, sorry") as s:
        r = result("mmmu", "--url", s.url, "--data", folder)
        right = sum(1 for i in range(50) if i % 5 == 0 or i % 3)
        check(r["questions"] == 50 and r["right"] == right and r["unanswered"] == 50 - right and s.most <= 2 and r["max_tokens"] == 16, r)
        check(set(r["groups"]) == {"Art_Theory", "Math"} and r["groups"]["Math"]["n"] == 25, r["groups"])
        parts = next(b for b in s.asked if number_of(b) == 1)["messages"][0]["content"]
        check([p["type"] for p in parts] == ["image_url", "text", "image_url", "text"], parts)
        check(parts[1]["text"] == " Which is number 1?\nA. one\nB. two's\nC. thr\u00e9e\nD. ", parts[1])
        check(parts[3]["text"] == "\n\nAnswer with the option's letter from the given choices directly.", parts[3])
        for part, source, kind in ((parts[0], PICTURE, "png"), (parts[2], OTHER, "jpeg")):
            front, code = part["image_url"]["url"].split(",")
            check(front == "data:image/%s;base64" % kind and base64.b64decode(code) == open(source, "rb").read(), front)
        text = next(b for b in s.asked if number_of(b) == 0)["messages"][0]["content"][-1]["text"]
        check(text == " Which is number 0?\n\nAnswer the question using a single word or phrase.", text)


@test
def mmmu_pro():
    rows = choices(4)
    for i, r in enumerate(rows):
        if i >= 2:
            del r["question"]
            r["image"] = "b.jpg"
    with Scripted(lambda b: "A, B or C. Answer: **A**") as s:
        r = result("mmmu-pro", "--url", s.url, "--data", pictures(data("mmmu-pro", rows)), "--parallel", "1")
        check(r["right"] == 1 and r["questions"] == 4, r)
        check([p["type"] for p in s.asked[3]["messages"][0]["content"]] == ["image_url", "text"], s.asked[3])
        check(s.asked[3]["messages"][0]["content"][1]["text"] == "Answer with the option letter from the given choices directly.", s.asked[3])
        check(s.asked[0]["messages"][0]["content"][-1]["text"].endswith("\n\nAnswer with the option letter from the given choices directly."), s.asked[0])


# ---- trouble ----------------------------------------------------------------------------------------------------------------------


@test
def single_errors():
    """Tried again, or counted: never the end of the run."""
    tries = {}

    def answer(b):
        i = number_of(b)
        tries[i] = tries.get(i, 0) + 1
        if i == 1 and tries[i] < 3:
            return 503
        return {2: 400, 3: 500, 4: b"{nonsense", 5: b'{"choices": []}', 6: None, 7: b""}.get(i, str(i))

    log = fresh("errors.log")
    with Scripted(answer) as s:
        start = time.time()
        args = ("gsm8k", "--url", s.url, "--data", data("errors", sums(10)), "--retries", "2", "--timeout", "1", "--log", log)
        r = result(*args)
        check(r["errors"] == 6 and r["right"] == 4 and r["score"] == 0.4 and time.time() - start < 30, r)
        check(tries[1] == 3 and tries[2] == 1 and tries[3] == 3 and tries[4] == 1 and tries[6] == 3, tries)
        told = {l["id"]: l["error"] for l in lines(log)[1:] if "error" in l}
        check("HTTP 400: as scripted" in told["gsm8k-2"] and "HTTP 500" in told["gsm8k-3"] and "choices[0].text" in told["gsm8k-5"], told)
        s.answer = lambda b: str(number_of(b))
        n = len(s.asked)
        r = result(*args)  # errors are asked again, and nothing else
        check(r["right"] == 10 and r["known"] == 4 and len(s.asked) == n + 6, (r, len(s.asked) - n))
        s.answer = lambda b: 400
        refused("gsm8k", "--url", s.url, "--data", os.path.join(TMP, "errors"), status=1, says=["no question could be answered", "as scripted"])
    refused("gsm8k", "--url", "http://127.0.0.1:%d" % free_port(), "--data", os.path.join(TMP, "errors"), "--retries", "0", status=1, says="/v1/models")


@test
def continued():
    """Ctrl-C, and the same command again: together they are one run."""
    folder, log = data("continued", sums(40)), fresh("continued.log")
    args = ["gsm8k", "--data", folder, "--log", log, "--parallel", "2"]
    with Scripted(lambda b: (time.sleep(0.1), str(number_of(b) if number_of(b) % 2 else 77))[1]) as s:
        p = subprocess.Popen([CYGNET, "eval", *args, "--url", s.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
        wait_until("answers", lambda: os.path.exists(log) and open(log).read().count("\n") > 8)
        refused(*args, "--url", s.url, says="another program")
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20)
        known = len(lines(log)) - 1
        check(p.returncode == 1 and b"goes on from there" in err and not out and 8 <= known < 40, (p.returncode, err, known))
        with open(log, "a") as f:
            f.write('{"id": "gsm8k-39", "te')  # a kill in the middle of a line
        s.asked.clear()
        r = result(*args, "--url", s.url)
        check(r["known"] == known and len(s.asked) == 40 - known and r["score"] == 0.5 and len(lines(log)) == 41, (r, known, len(s.asked)))
        check(len({l["id"] for l in lines(log)[1:]}) == 40, "an answer twice")
        check(result(*args, "--url", s.url, "--limit", "7")["known"] == 7 and len(s.asked) == 40 - known, "a smaller limit asks nothing")
        for more, says in ((("--shots", "3"), ["shots is 5", "here it is 3"]), (("-n", "9"), "max_tokens"), (("--temp", "1"), "temperature"), (("--served-model-name", "b"), ["model", "scripted"])):
            refused(*args, "--url", s.url, *more, says=["another run", *([says] if isinstance(says, str) else says)])
        refused("aime", "--url", s.url, "--data", data("continued-aime", contest(2)), "--log", log, says=["another run", "gsm8k"])
        data("continued", [dict(q, question=q["question"] + " Now number %d?" % i) for i, q in enumerate(sums(40))])
        refused(*args, "--url", s.url, says=["worded otherwise", "gsm8k-"])
        for text in ("hello\n", "{}\n", '{"a": 1}\n{"b": 2}\n', "x"):
            with open(log, "w") as f:
                f.write(text)
            refused(*args, "--url", s.url, says="--log")
            check(open(log).read() == text, "a file that is no log was changed")
        refused(*args[:3], "--log", TMP, "--url", s.url, says="--log")
        refused(*args[:3], "--log", os.path.join(TMP, "none", "x"), "--url", s.url, says="--log")


@test
def refusals():
    d = data("few", sums(6))
    m = ("-m", TINY, *SMALL)
    refused(says="perplexity")
    refused("gsm9k", *m, "--data", d, says=["gsm9k", "gsm8k"])
    refused("gsm8k", "--data", d, says=["-m MODEL", "neither"])
    refused("gsm8k", *m, "--url", "http://x", "--data", d, says="both")
    refused("gsm8k", *m, says="--data")
    refused("gsm8k", "--url", "ftp://x", "--data", d, says="--url")
    refused("gsm8k", *m, "--data", os.path.join(TMP, "nowhere"), says=["nowhere", "No such"])
    refused("gsm8k", *m, "--data", d, "--shots", "7", says=["--shots", "found 6"])
    refused("gsm8k", "--url", "http://x", "--data", d, "--threads", "2", says="--threads")
    refused("gsm8k", *m, "--data", d, "--max", "1", says=["--max", "--min"])
    refused("perplexity", *m, "--data", d, "--min", "0.5", says=["--min", "--max"])
    refused("aime", *m, "--data", d, "--shots", "1", says="--shots")
    refused("gsm8k", *m, "--data", d, "--think", says="--think")
    refused("gsm8k", *m, "--data", d, "--window", "9", says="--window")
    refused("kl", "--url", "http://x", "--data", d, says="-m MODEL")
    refused("gsm8k", *m, "--data", d, "--stop", "x", says="--stop")
    empty = os.path.join(TMP, "empty")
    os.makedirs(empty, exist_ok=True)
    refused("gsm8k", *m, "--data", empty, says=".jsonl")
    open(os.path.join(empty, "test-00000-of-00001.parquet"), "wb").close()
    refused("gsm8k", *m, "--data", empty, says="parquet_to_jsonl.py")
    for name, row, says in (("q", {"answer": "1"}, "question"), ("a", {"question": "x"}, "answer"), ("n", {"question": "x", "answer": "none"}, "number"), ("t", {"question": 3, "answer": "1"}, "question"), ("l", [1], "object")):
        refused("gsm8k", *m, "--data", data("bad-" + name, [row] * 5), says=["line 1", says])
    good = choices(1)[0]
    for name, change, says in (("secret", {"answer": "?"}, "answer"), ("beyond", {"answer": "E"}, "answer"), ("options", {"options": "['a'"}, "options"), ("code", {"options": "__import__('os')"}, "options"),
                               ("picture", {"image_1": None}, "image_1"), ("type", {"image_1": 5}, "image_1")):
        refused("mmmu", *m, "--data", data("bad-mmmu-" + name, [dict(good, **change)]), says=["line 1", says])
    with open(os.path.join(TMP, "few", "test.jsonl"), "ab") as f:
        f.write(b"{nonsense\n")
    refused("gsm8k", *m, "--data", d, says="line 7")


# ---- in this process ---------------------------------------------------------------------------------------------------------------


@test
def a_model_here_and_behind_a_server():
    """The same answers: one at a time, all together, and over HTTP."""
    folder = data("tiny", [{"question": "ab %d?" % i, "answer": "#### %d" % i} for i in range(12)])
    logs = [fresh("tiny%d.log" % i) for i in range(3)]
    args = ("gsm8k", "--data", folder, "--shots", "1", "-n", "12")
    a = result(*args, "-m", TINY, *SMALL, "--log", logs[0], "--parallel", "1")
    b = result(*args, "-m", TINY, *SMALL, "--log", logs[1])
    check(a["errors"] == 0 and a["completion_tokens"] > 12 and a["right"] == b["right"] and a["isa"] and a["weight_bytes"] > 0, (a, b))
    with Server("--threads", "1", "--mem", "256MiB") as srv:
        result(*args, "--url", srv.url, "--log", logs[2])
        r = result("aime", "--url", srv.url, "--data", data("tiny-aime", contest(2)), "-n", "5", "--samples", "2")
        check(r["errors"] == 0 and r["unanswered"] == 4 and r["completion_tokens"] == 20, r)
    texts = [{l["id"]: (l["text"], l["completion_tokens"]) for l in lines(log)[1:]} for log in logs]
    check(texts[0] == texts[1] == texts[2] and len(texts[0]) == 12, texts)
    r = result("aime", "-m", TINY, *SMALL, "--data", os.path.join(TMP, "tiny-aime"), "-n", "5", "--samples", "3", "--log", fresh("tiny-aime.log"))
    check(r["questions"] == 2 and r["samples"] == 3 and r["cut"] + r["unanswered"] >= 6, r)
    again = result("aime", "-m", TINY, *SMALL, "--data", os.path.join(TMP, "tiny-aime"), "-n", "5", "--samples", "4", "--log", os.path.join(TMP, "tiny-aime.log"))
    check(again["known"] == 6 and again["samples"] == 4, again)
    check(run(*args, "-m", TINY, *SMALL, "--min", "0")[0] == 0 and run(*args, "-m", TINY, *SMALL, "--min", "1")[0] == 1, "--min")
    refused("mmmu", "-m", TINY, *SMALL, "--data", pictures(data("tiny-mmmu", choices(2))), status=1, says="no question could be answered")


@test
def pictures_here_and_behind_a_server():
    """Two questions with two pictures each; the answers are the same on both ways, and not those without the pictures."""
    model, folder = with_words("media-gemma4-e2b"), pictures(data("seen", choices(3)))
    args, logs = ("mmmu", "--data", folder, "-n", "6"), [fresh("seen%d.log" % i) for i in range(3)]
    here = result(*args, "-m", model, *SMALL, "--log", logs[0])
    with Server("--threads", "1", "--mem", "256MiB", model=model) as srv:
        there = result(*args, "--url", srv.url, "--log", logs[1])
    check(here["questions"] == 3 and here["errors"] == there["errors"] == 0 and here["prompt_tokens"] == there["prompt_tokens"], (here, there))
    with open(os.path.join(folder, "a.png"), "wb") as f, open(OTHER, "rb") as other:
        f.write(other.read())
    blind = result(*args, "-m", model, *SMALL, "--log", logs[2])
    texts = [[l["text"] for l in sorted(lines(log)[1:], key=lambda l: l["id"])] for log in logs]
    check(blind["errors"] == 0 and texts[0] == texts[1] != texts[2] and len(texts[0]) == 3 and all(texts[0]), texts)


@test
def stopped_here():
    folder, log = data("stopped", [{"question": "ab %d?" % i, "answer": "#### %d" % i} for i in range(80)]), fresh("stopped.log")
    args = [CYGNET, "eval", "gsm8k", "-m", TINY, *SMALL, "--data", folder, "--limit", "0", "--log", log, "-n", "40", "--shots", "1"]
    p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    wait_until("answers", lambda: os.path.exists(log) and open(log).read().count("\n") > 3)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    check(p.returncode == 1 and b"goes on from there" in err and not out, (p.returncode, out, err))
    n = len(lines(log)) - 1
    r = json.loads(subprocess.run([*args, "--json"], stdout=subprocess.PIPE, env=ENV, timeout=60).stdout)
    check(r["known"] == n and r["questions"] == 80 and len(lines(log)) == 81, (n, r))


# ---- likelihoods ----------------------------------------------------------------------------------------------------------------------


def tensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, body = json.loads(f.read(n)), f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (struct.unpack("<%d%s" % ((b - a) // 4, {"F32": "f", "I32": "i"}[t["dtype"]]), body[a:b]), t["shape"])
    return out


def logits_of(ids, out, *more):
    p = subprocess.run([CYGNET, "logits", "-m", TINY, *SMALL, "--ids", ",".join(map(str, ids)), "--out", out, *more], stderr=subprocess.PIPE, env=ENV)
    check(p.returncode == 0, p.stderr)
    flat, (rows, vocab) = tensors(out)["logits"]
    return [flat[i * vocab : (i + 1) * vocab] for i in range(rows)]


def nll_of(row, id):
    top = max(row)
    return top + math.log(sum(math.exp(x - top) for x in row)) - row[id]


@test
def perplexity_of_ids_and_texts():
    ids = [2] + [260 + (i * 37) % 240 for i in range(59)]
    where = os.path.join(TMP, "windows.safetensors")
    rows = logits_of(ids, where)
    want = sum(nll_of(rows[i], ids[i + 1]) for i in range(59)) / 59
    r = result("perplexity", "-m", TINY, *SMALL, "--ids", ",".join(map(str, ids)))
    check(abs(r["nll"] - want) < 1e-5 and r["tokens"] == 59 and r["windows"] == 1 and abs(r["perplexity"] - math.exp(want)) < 1e-3, (r, want))
    total, begin, scored = 0, 0, 1  # windows of 20, 8 apart: what the one before did not reach
    while scored < 60:
        part = ids[begin : begin + 20]
        rows = logits_of(part, where)
        total += sum(nll_of(rows[i - begin - 1], ids[i]) for i in range(scored, begin + len(part)))
        scored, begin = begin + len(part), begin + 8
    r = result("perplexity", "-m", TINY, *SMALL, "--ids", ",".join(map(str, ids)), "--window", "20", "--stride", "8")
    check(abs(r["nll"] - total / 59) < 1e-5 and r["windows"] == 6, (r, total / 59))
    text = os.path.join(TMP, "text.txt")
    with open(text, "w") as f:
        f.write("the quick brown fox\n\njumps over the lazy dog")
    a = result("perplexity", "-m", TINY, *SMALL, "--data", text, "--window", "16", "--stride", "15")
    table = os.path.join(TMP, "text.jsonl")
    with open(table, "w") as f:
        f.write('{"text": "the quick brown fox"}\n{"text": "jumps over the lazy dog"}\n')
    b = result("perplexity", "-m", TINY, *SMALL, "--data", table, "--window", "16", "--stride", "15")
    check(a["nll"] == b["nll"] and a["tokens"] == b["tokens"] > 16, (a, b))
    with Server("--threads", "1", "--mem", "256MiB") as srv:
        c = result("perplexity", "--url", srv.url, "--data", text, "--window", "16", "--stride", "15")
        check(abs(c["nll"] - a["nll"]) < 1e-5 and c["tokens"] == a["tokens"] and c["windows"] == a["windows"], (a, c))
    check(run("perplexity", "-m", TINY, *SMALL, "--data", text, "--max", "1.5")[0] == 1 and run("perplexity", "-m", TINY, *SMALL, "--data", text, "--max", "1e9")[0] == 0, "--max")
    refused("perplexity", "-m", TINY, *SMALL, "--ids", "2", says="2 tokens")
    refused("perplexity", "-m", TINY, *SMALL, "--data", text, "--window", "8", "--stride", "8", says="--stride")
    refused("perplexity", "-m", TINY, *SMALL, "--data", text, "--ctx", "16", "--window", "17", says=["--window", "16"])


@test
def divergence():
    own = os.path.join(TMP, "own.safetensors")
    logits_of([2, 300, 301, 302, 303], own)
    r = result("kl", "-m", TINY, *SMALL, "--data", own, "--max", "1e-9")
    check(abs(r["kl"]) < 1e-9 and r["top1"] == 1 and r["positions"] == 5, r)
    golden = os.path.join(TINY, "golden.safetensors")
    exact = result("kl", "-m", TINY, *SMALL, "--data", golden, "--isa", "ref", "--kv-type", "f32", "--max", "1e-6")
    check(abs(exact["kl"]) < 1e-6 and exact["top1"] == 1 and len(exact["prompts"]) == 6 and exact["positions"] > 90, exact)
    coarse = result("kl", "-m", TINY, *SMALL, "--data", golden, "--quant", "q4_0")
    check(1e-4 < coarse["kl"] < 1 and coarse["top1"] < 1 and coarse["largest"] > coarse["kl"], coarse)
    check(run("kl", "-m", TINY, *SMALL, "--data", golden, "--quant", "q4_0", "--max", "1e-5")[0] == 1, "--max")
    g = tensors(golden)  # by hand, one position
    mine = logits_of(g["case1.ids"][0], own, "--quant", "q4_0")
    p, q = g["case1.logits"][0][-len(mine[0]):], mine[-1]
    lp, lq = [-nll_of(p, i) for i in range(len(p))], [-nll_of(q, i) for i in range(len(q))]
    by_hand = sum(math.exp(a) * (a - b) for a, b in zip(lp, lq))
    check(by_hand <= coarse["prompts"]["case1"]["largest"] * (1 + 1e-4), (by_hand, coarse["prompts"]["case1"]))
    refused("kl", "-m", TINY, *SMALL, "--data", os.path.join(GOLDEN, "gemma3-text-scale", "golden.safetensors"), says=["logits", "512"])
    refused("kl", "-m", TINY, *SMALL, "--data", os.path.join(TINY, "model.safetensors"), says="NAME.ids")


@test
def sample_model_beside_its_reference():
    """The real Gemma 3 270M beside float32 results of an independent implementation (tests/golden/gemma3-270m)."""
    if not os.path.exists(SAMPLE):
        print("no %s: run ./test.sh once to fetch it" % SAMPLE)
        return
    golden = os.path.join(GOLDEN, "gemma3-270m", "golden.safetensors")
    r = result("kl", "-m", SAMPLE, "-q", "--ctx", "1024", "--data", golden, "--max", "0.004", timeout=600)
    check(r["positions"] == 895 and r["top1"] >= 0.94 and 0 < r["kl"] <= 0.004, r)
    g = tensors(golden)
    for more, bound in (((), 0.05), (("--isa", "ref", "--kv-type", "f32"), 2e-4)):
        nll = g["short.nll"][0]
        r = result("perplexity", "-m", SAMPLE, "-q", "--ctx", "1024", "--ids", " ".join(map(str, g["short.ids"][0])), *more, timeout=600)
        check(r["tokens"] == len(nll) and abs(r["nll"] - sum(nll) / len(nll)) <= bound, (r, sum(nll) / len(nll)))


# ---- gates -------------------------------------------------------------------------------------------------------------------------------

GATES = {"gemma-4-e2b-gsm8k": 0.05, "gemma-4-e4b-gsm8k": 0.60, "gemma-4-26b-a4b-gsm8k": 0.35, "gemma-4-31b-gsm8k": 0.70, "gemma-4-e2b-mmmu": 0.15, "gemma-4-e4b-mmmu": 0.30,
         "gemma-4-26b-a4b-mmmu": 0.40, "gemma-4-31b-mmmu": 0.50, "llama-3.2-11b-vision-mmmu": 0.3301}


def gates(*names, **env):
    p = subprocess.run([os.path.join(ROOT, "tools", "gates.sh"), *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, env=dict(ENV, CYGNET=CYGNET, **env))
    return p.returncode, p.stdout.decode()


@test
def each_gate_can_pass_and_fail():
    check({f[:-5] for f in os.listdir(os.path.join(ROOT, "tests", "gates"))} == set(GATES), "tests/gates")
    folder = os.path.join(TMP, "gates")
    data("gates/gsm8k", sums(20))
    pictures(data("gates/mmmu", choices(20)))
    with Scripted(lambda b: ("(%s)" % "ABCD"[number_of(b) % 4] if "messages" in b else str(number_of(b))) if number_of(b) < s.right else "no") as s:
        for name, least in GATES.items():
            s.right = math.ceil(least * 20 - 1e-9)
            status, out = gates(name, URL=s.url, DATA=folder)
            check(status == 0 and "passed  %s" % name in out and out.endswith("1 passed, 0 failed\n"), (name, out))
            s.right -= 1
            status, out = gates(name, URL=s.url, DATA=folder)
            check(status == 1 and "FAILED  %s" % name in out and out.endswith("0 passed, 1 failed\n"), (name, out))


@test
def gates_without_checkpoints():
    models = os.path.join(TMP, "models")
    os.makedirs(models, exist_ok=True)
    status, out = gates(MODELS=models, DATA=os.path.join(TMP, "gates"))
    check(status == 0 and out.count("skipped") >= len(GATES) and out.endswith("0 passed, 0 failed\n"), out)
    tiny = os.path.join(models, "gemma-4-E2B-it")  # a model of the same family that knows nothing: the gate's own command, and it fails
    if not os.path.exists(tiny):
        os.symlink(os.path.join(GOLDEN, "gemma4-e-tiny"), tiny)
    data("gates/gsm8k", [{"question": "a", "answer": "#### 8675309"}] * 6)  # no number that random words come upon
    status, out = gates("gemma-4-e2b-gsm8k", MODELS=models, DATA=os.path.join(TMP, "gates"), MORE="--threads 1")
    check(status == 1 and "FAILED  gemma-4-e2b-gsm8k" in out and "0.0 % right, 0 of 6" in out, out)
    status, out = gates("gemma-5", MODELS=models, DATA=TMP)
    check(status == 2 and "gemma-5" in out, out)


@test
def parquet():
    """The converter, where pyarrow is."""
    python = os.environ.get("PYTHON_PYARROW", sys.executable)
    if subprocess.run([python, "-c", "import pyarrow"], stderr=subprocess.DEVNULL).returncode:
        print("no pyarrow: the converter of Parquet is not tried")
        return
    source, out = os.path.join(TMP, "tables"), os.path.join(TMP, "converted")
    make = """
import pyarrow as pa, pyarrow.parquet as pq, os, sys
png, jpg, folder = open(sys.argv[1], "rb").read(), open(sys.argv[2], "rb").read(), sys.argv[3]
for subject in ("Art", "Math"):
    os.makedirs(os.path.join(folder, subject), exist_ok=True)
    rows = [{"id": "validation_%s_%d" % (subject, i), "question": "<image 1> number %d" % i, "options": "['a', 'b']", "answer": "A", "question_type": "multiple-choice",
             "image_1": {"bytes": png if i else jpg, "path": "x.png"}, "image_2": None} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), os.path.join(folder, subject, "validation-00000-of-00001.parquet"))
"""
    subprocess.run([python, "-c", make, PICTURE, OTHER, source], check=True)
    subprocess.run([python, os.path.join(ROOT, "tools", "parquet_to_jsonl.py"), source, out], check=True, stdout=subprocess.DEVNULL)
    check(len(os.listdir(os.path.join(out, "pictures"))) == 2, os.listdir(out))
    with Scripted(lambda b: "A") as s:
        r = result("mmmu", "--url", s.url, "--data", out)
        check(r["score"] == 1 and r["questions"] == 6 and set(r["groups"]) == {"Art", "Math"} and s.asked[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/"), r)


if __name__ == "__main__":
    sys.exit(main())
