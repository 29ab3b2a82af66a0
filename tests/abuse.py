#!/usr/bin/env python3
"""Hostile HTTP against the whole program: mutated requests of every dialect, broken framing, bad manners. Standard library only.

Usage: tests/abuse.py [NAME...]
CYGNET_LONG=N: N seconds of mutated requests instead of about 20. CYGNET_SEED=N: others than usual. CYGNET_SLACK_MIB=N: memory that may grow.
After each test: every answer was legal HTTP, with an error object where one belongs, and the server has given back all that it held.
Last line: N passed, N failed
"""
import collections, copy, random, threading

from serving import *

LONG = float(os.environ.get("CYGNET_LONG", "20"))
SEED = int(os.environ.get("CYGNET_SEED", "1"))
SLACK = int(os.environ.get("CYGNET_SLACK_MIB", "48")) << 20
STATUSES = {200, 204, 400, 401, 403, 404, 405, 408, 413, 417, 431, 501, 503, 505}
POOLS = ("full_used_tokens", "swa_used_tokens", "full_cached_tokens", "swa_cached_tokens", "n_resume_points")
LIMITS = ("--ctx", "256", "--max-running-requests", "8", "--max-queued-requests", "64", "--max-body", "1", "--max-connections", "64")


# ---- answers ---------------------------------------------------------------------------------------------------------------


class Reader:
    """Bytes of one connection; EOFError where more were owed."""

    def __init__(self, sock):
        self.sock, self.had = sock, b""

    def more(self):
        data = self.sock.recv(65536)
        self.had += data
        return bool(data)

    def line(self):
        while b"\r\n" not in self.had:
            if not self.more():
                raise EOFError(self.had[-200:])
        line, self.had = self.had.split(b"\r\n", 1)
        return line

    def exactly(self, n):
        while len(self.had) < n:
            if not self.more():
                raise EOFError("%d of %d bytes" % (len(self.had), n))
        data, self.had = self.had[:n], self.had[n:]
        return data


def read_answer(r, method="POST"):
    """One whole answer, interim ones before it: status, headers, body. None: the connection ended instead."""
    if not r.had and not r.more():
        return None
    while True:
        status = re.fullmatch(rb"HTTP/1\.1 ([1-9]\d\d) [ -~]*", r.line())
        check(status, "a status line")
        status, headers = int(status.group(1)), {}
        while True:
            line = r.line()
            if not line:
                break
            m = re.fullmatch(rb"([0-9A-Za-z!#$%&'*+.^_`|~-]+):[ \t]*([\t -~]*)", line)
            check(m and m.group(1).lower().decode() not in headers, "a header line: %r" % line)
            headers[m.group(1).lower().decode()] = m.group(2).decode().strip()
        if status != 100:
            break
    if method == "HEAD" or status == 204:
        return status, headers, b""
    if "transfer-encoding" in headers:
        check(headers["transfer-encoding"] == "chunked" and "content-length" not in headers, headers)
        body = b""
        while True:
            n = int(r.line(), 16)
            body += r.exactly(n)
            check(r.line() == b"", "the end of a chunk")
            if n == 0:
                return status, headers, body
    if "content-length" not in headers:  # a stream for HTTP/1.0 ends with its connection
        check(headers["connection"] == "close" and headers["content-type"].startswith("text/event-stream"), headers)
        while r.more():
            pass
        return status, headers, r.exactly(len(r.had))
    check(headers["content-length"].isdigit(), headers)
    return status, headers, r.exactly(int(headers["content-length"]))


def strict_json(data):
    def pairs(items):
        check(len({k for k, _ in items}) == len(items), "a key twice: %r" % items)
        return dict(items)

    def constant(c):
        raise AssertionError("%s in JSON" % c)
    o = json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    json.dumps(o, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair
    return o


def judge_stream(data):
    blocks = data.decode("utf-8").split("\n\n")
    check(blocks.pop() == "" and blocks, "the end of a stream: %r" % data[-200:])
    last = None
    for block in blocks:
        m = re.fullmatch(r"(?:event: [a-z_.]+\n)?data: ([^\r\n]+)", block)
        check(m, "an event: %r" % block[:300])
        last = m.group(1) if m.group(1) == "[DONE]" else strict_json(m.group(1).encode())
    check(last == "[DONE]" or last["type"] in ("message_stop", "error", "response.completed", "response.incomplete", "response.failed"), last)


def judge(answer, method="POST"):
    status, headers, body = answer
    kind = headers.get("content-type", "")
    check(status in STATUSES, "status %d: %r" % (status, body[:300]))
    check(re.fullmatch(r"[!-~]{1,128}", headers.get("x-request-id", "")), "a request id: %r" % headers)
    if method == "HEAD":
        return
    if status >= 400:
        e = strict_json(body)["error"]
        check(kind == "application/json" and e["message"] and e["type"], body)
        check(status != 503 or headers["retry-after"].isdigit(), headers)
        check(status != 405 or re.fullmatch(r"[A-Z]+(, [A-Z]+)*", headers["allow"]), headers)
    elif kind.startswith("text/event-stream"):
        judge_stream(body)
    elif kind == "application/json":
        strict_json(body)


# ---- the server before and after ------------------------------------------------------------------------------------------


def state(srv):
    o = json.loads(srv.ask("GET", "/server_info")[2])
    return dict(o["internal_states"][0], resident=o["memory_usage"]["resident_bytes"], **o["http"])


def plain(srv):
    a = srv.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 24, "temperature": 0, "ignore_eos": True})
    b = srv.ask("POST", "/generate", {"text": "one two three", "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}})
    return json.loads(a[2])["choices"][0]["message"]["content"], json.loads(b[2])["text"]


class Abused(Server):
    """A server that has to be as it was when the test is over."""

    def ask(self, method, target, body=None):
        return ask(self.port, method, target, body, {"x-api-key": "k"})

    def __enter__(self):
        self.first = plain(self)
        self.resident = 0
        return self

    def warm(self):
        """From now on its memory may not grow."""
        self.resident = self.resident or state(self)["resident"]

    def __exit__(self, kind, *_):
        try:
            if kind:
                return
            check(self.p.poll() is None, "the server ended with %s" % self.p.poll())
            busy = ("n_running", "n_waiting", "calls")
            wait_until("the end of all work", lambda: not any(state(self)[k] for k in busy), 20)
            wait_until("the end of all connections", lambda: state(self)["connections"] == 1, 20)
            check(plain(self) == self.first, "the same text as at the start")
            check(self.ask("POST", "/flush_cache?timeout=5")[0] == 200, "flush")
            now = state(self)
            held = {k: v for k, v in now.items() if v and k in POOLS}
            check(not held and now["exchanges"] == 1, (held, now["exchanges"]))
            check(not self.resident or now["resident"] <= self.resident + SLACK, "memory grew from %d to %d" % (self.resident, now["resident"]))
            check(self.term() == 0, "SIGTERM ends it with 0")
        finally:
            super().__exit__()


def connect(port, seconds=60, receive_bytes=0):
    s = socket.socket()
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.settimeout(seconds)
    s.connect(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()


def in_threads(n, work):
    """work(random numbers) in n threads; the first failure is raised."""
    failures = []

    def run(i):
        try:
            work(random.Random("%d %s %d" % (SEED, work.__name__, i)))
        except BaseException as e:
            failures.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failures:
        raise failures[0]


# ---- requests that are right -----------------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Name a colour."}]},
                     {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another one \u00e9\u4e2d\U0001f600"}], "max_tokens": 5}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "frequency_penalty": 0.1, "presence_penalty": -0.1, "repetition_penalty": 1.1, "seed": 7,
            "stop": ["zzz", "\n\n"], "stop_token_ids": [5, 6], "logit_bias": {"7": -100, "9": 2.5}, "min_tokens": 1, "ignore_eos": False, "skip_special_tokens": True}
NATIVE = {"max_new_tokens": 5, "temperature": 0.5, "top_k": 5, "stop": "zz", "sampling_seed": 1, "min_new_tokens": 1, "logit_bias": {"8": 1}}
TURN = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["q"], "metadata": {"user_id": "u"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "more"}]}
VALID = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", dict(CHAT, **SAMPLING, logprobs=True, top_logprobs=2, n=2)),
    ("POST", "/v1/chat/completions", dict(CHAT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": False}, max_completion_tokens=4)),
    ("POST", "/v1/chat/completions", dict(CHAT, chat_template_kwargs={"enable_thinking": False}, response_format={"type": "text"}, tool_choice="none", user="u", rid="r",
                                          cache_salt="s", extra_key="k", priority=1, return_cached_tokens_details=True)),
    ("POST", "/v1/completions", {"prompt": "one two", "max_tokens": 4}),
    ("POST", "/v1/completions", dict({"prompt": ["one two", "three"], "max_tokens": 4, "n": 2, "logprobs": 2, "best_of": 1}, **SAMPLING)),
    ("POST", "/v1/completions", {"prompt": [[2, 30, 31], [2, 40]], "max_tokens": 0, "echo": True, "logprobs": 1}),
    ("POST", "/v1/completions", {"prompt": [2, 30, 31], "max_tokens": 6, "stream": True, "echo": True, "logprobs": 1, "stream_options": {"include_usage": True}}),
    ("POST", "/generate", {"text": "one two", "sampling_params": NATIVE, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
                           "return_text_in_logprobs": True, "rid": "a"}),
    ("PUT", "/generate", {"input_ids": [[2, 30], [2, 31, 32]], "sampling_params": [NATIVE, NATIVE], "rid": ["a", "b"], "stream": True, "incremental_streaming_output": True}),
    ("POST", "/generate", {"text": ["one", "two"], "sampling_params": dict(NATIVE, n=2), "stream": True, "return_logprob": [True, False], "return_prompt_token_ids": True}),
    ("POST", "/v1/responses", {"model": "m", "instructions": "Be brief.", "input": "Name a colour.", "max_output_tokens": 5, "temperature": 0.5, "store": False,
                               "metadata": {"a": "b"}, "text": {"format": {"type": "text"}}, "truncation": "disabled", "user": "u"}),
    ("POST", "/v1/responses", {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}], "max_output_tokens": 5, "stream": True,
                               "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    ("POST", "/v1/messages", TURN),
    ("POST", "/v1/messages", dict(TURN, stream=True, temperature=0.3, top_p=0.9, top_k=3, thinking={"type": "disabled"}, tool_choice={"type": "auto"})),
    ("POST", "/v1/messages/count_tokens", {"model": "m", "messages": TURN["messages"]}),
    ("POST", "/tokenize", {"prompt": ["one", "two"], "add_special_tokens": True}),
    ("POST", "/v1/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": True}),
    ("POST", "/detokenize", {"tokens": [[2, 30], [31, 32, 240, 250]], "skip_special_tokens": False}),
    ("POST", "/apply-template", {"messages": CHAT["messages"]}),
    ("POST", "/flush_cache?timeout=1", {"timeout": 0.5}),
    ("POST", "/abort_request", {"rid": "a", "prefix": True, "abort_all": False}),
    ("GET", "/health_generate", None),
    ("GET", "/health", None),
    ("GET", "/metrics", None),
    ("GET", "/v1/loads?include=core,memory,queues&format=json&dp_rank=0", None),
    ("GET", "/v1/models/m%2Fx", None),
    ("GET", "/v1/models", None),
    ("GET", "/get_model_info", None),
    ("GET", "/server_info", None),
    ("GET", "/", None),
]


# ---- mutations --------------------------------------------------------------------------------------------------------------


class Raw(str):
    """Text that stands in a body as it is."""


class Pairs(list):
    """An object whose keys may come twice."""


def open_up(v):
    if isinstance(v, dict):
        return Pairs([k, open_up(x)] for k, x in v.items())
    return [open_up(x) for x in v] if isinstance(v, list) else v


def text_of(v):
    if isinstance(v, Raw):
        return str(v)
    if isinstance(v, Pairs):
        return "{" + ",".join(text_of(k) + ":" + text_of(x) for k, x in v) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(text_of, v)) + "]"
    return json.dumps(v, ensure_ascii=False)


ODD = [None, True, False, 0, -1, 1, 2, 3, 21, 129, 255, 257, 511, 512, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -2**63 - 1, 0.5, -0.0, 1e-300, 1e300, 2.0000001, "", "a", "5", "-1", "null",
       "zz\n", "<bos>", "<start_of_turn>user\n", "<end_of_turn>", "\ufffd\u200b\u0301\U0010ffff", "\u202e\x7f\x80", "x" * 300, "y " * 3000, "auto", "none", "user", "system", "assistant",
       "tool", "text", "json_object", [], {}, [[]], [{}], [None], {"": 0}, {"type": "text"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
       {"role": "user", "content": "x"}, [5] * 300, ["x"] * 130, [0], [511], [512], [-1], ["a", 5], [5, "a"], [[5], "a"], [[5], [512]], [[], [5]], [2.5],
       Raw("1e999"), Raw("-1e999"), Raw("1" * 400), Raw("0." + "1" * 400), Raw("1e-999"), Raw("NaN"), Raw("Infinity"), Raw("01"), Raw("+1"), Raw("0x1"), Raw(".5"), Raw("'a'"), Raw(""),
       Raw('"\\u0000"'), Raw('"a\\u0000b"'), Raw('"\\ud83d"'), Raw('"\\ude00\\ud83d"'), Raw('"\\ud83d\\ude00"'), Raw('"\\uffff"'), Raw('"\\x41"'), Raw('"\n"'), Raw('"\x01"'), Raw("//x\n1"),
       Raw("[" * 62 + "]" * 62), Raw("[" * 70 + "]" * 70), Raw('{"a":' * 60 + "1" + "}" * 60), Raw("[" * 5000), Raw("[" * 5000 + "]" * 5000), Raw('{"a":1,"a":2}'), Raw("[1,]"), Raw("tru")]
FIELDS = sorted({k for _, _, body in VALID for k in body or {}} | {k for k in {**SAMPLING, **NATIVE}} | {
    "tools", "functions", "function_call", "suffix", "json_schema", "regex", "lora_path", "image_data", "input_embeds", "prompt_logprobs", "parallel_tool_calls", "reasoning_effort",
    "reasoning", "modalities", "continue_final_message", "add_generation_prompt", "no_stop_trim", "max_new_tokens", "previous_response_id", "background", "documents", "role", "content"})


def places(v, found):
    if isinstance(v, Pairs):
        for pair in v:
            found.append((v, pair))
            places(pair[1], found)
    elif isinstance(v, list):
        for i, x in enumerate(v):
            found.append((v, i))
            places(x, found)
    return found


def mutate_json(rng, body):
    v = open_up(copy.deepcopy(body))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = places(v, [])
        if not found or rng.random() < 0.01:
            return rng.choice(ODD)
        at, what = rng.choice(found)
        odd = open_up(copy.deepcopy(rng.choice(ODD)))
        do = rng.randrange(8)
        if isinstance(what, list):  # a pair of an object
            if do <= 2: what[1] = odd
            elif do == 3: at.remove(what)
            elif do == 4: at.append(copy.deepcopy(what))
            elif do == 5: what[0] = rng.choice(FIELDS + ["", "\u00e9", "a" * 200])
            elif do == 6: at.append([rng.choice(FIELDS), odd])
            else: what[1] = rng.choice(([what[1]], [what[1]] * 2, Pairs([["text", what[1]]])))
        elif do <= 3: at[what] = odd
        elif do == 4: del at[what]
        elif do == 5: at.append(copy.deepcopy(at[what]))
        elif do == 6: at.insert(what, odd)
        else: at[what] = [at[what]]
    return v


def mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        do = rng.randrange(7)
        if do == 0 and i < len(data): data[i] ^= 1 << rng.randrange(8)
        elif do == 1: data[i:i] = bytes([rng.randrange(256)])
        elif do == 2: del data[i:i + rng.choice((1, 2, 10))]
        elif do == 3: data[i:i] = data[i:min(j, i + 40)]
        elif do == 4: del data[i:]
        elif do == 5: data[i:i] = rng.choice((b"\0", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\r\n", b"\n", b"\r", b"\xef\xbb\xbf", b"\xb0\xa1", b"\x1b[31m"))
        else: data[i:j] = data[i:j][::-1]
    return bytes(data)


def body_of(rng, body):
    data = text_of(mutate_json(rng, body)).encode("utf-8", "surrogatepass")
    do = rng.randrange(20)
    if do < 3: return mutate_bytes(rng, data)
    if do == 3: return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "gb18030")))
    if do == 4: return rng.choice((b"", b" ", data + data, data + b"x", b"\0" + data, data + b"\0", b"[" * 100000, b"{" * 3, b'"', b"a=b&c=d", data + b" " * 70000))
    return data


def chunked(rng, data):
    out = b""
    while data:
        n = rng.choice((1, 2, 7, 64, 4096))
        out += b"%x%s\r\n%s\r\n" % (len(data[:n]), rng.choice((b"", b"", b";a=b")), data[:n])
        data = data[n:]
    return out + b"0\r\n" + rng.choice((b"", b"", b"X: y\r\n")) + b"\r\n"


def request(method, target, data, *more, rng=None):
    """rng: the body may come in chunks."""
    head = "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % (method, target) + "".join(line + "\r\n" for line in more)
    if data is None:
        return head.encode() + b"\r\n"
    head += "Content-Type: application/json\r\n"
    if rng and rng.random() < 0.2:
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(rng, data)
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def right(rng):
    method, target, body = rng.choice(VALID)
    return request(method, target, None if body is None else json.dumps(body).encode(), rng=rng)


counts = collections.Counter()


def ask_raw(conn, data, port):
    """Send one whole request, judge its answer; a connection for the next."""
    s, r = conn or (None, None)
    if not s:
        s = connect(port)
        r = Reader(s)
    try:
        s.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass  # answered early: it can still be read
    answer = read_answer(r, data.split(b" ", 1)[0].decode("latin-1"))
    check(answer, "an answer")
    judge(answer, data.split(b" ", 1)[0].decode("latin-1"))
    counts[answer[0]] += 1
    if answer[1]["connection"] == "close" or rng_close(data):
        s.close()
        return None
    return s, r


def rng_close(data):
    return len(data) % 97 == 0


# ---- tests --------------------------------------------------------------------------------------------------------------------


@test
def right_requests():
    """What the mutations start from is right, one by one and all of them pipelined; a HEAD answers as its GET without the body."""
    with Abused(*LIMITS) as srv:
        conn = None
        for method, target, body in VALID:
            data = request(method, target, None if body is None else json.dumps(body).encode())
            conn = ask_raw(conn, data, srv.port)
        check(set(counts) == {200, 404} and counts[404] == 1, counts)  # the one is /v1/models/m%2Fx
        conn = None
        with connect(srv.port) as s:
            r = Reader(s)
            s.sendall(b"".join(request(m, t, None if b is None else json.dumps(b).encode()) for m, t, b in VALID * 2))
            for method, target, _ in VALID * 2:
                answer = read_answer(r, method)
                judge(answer, method)
                check(answer[0] == (404 if target == "/v1/models/m%2Fx" else 200), (target, answer))
            for method, target, body in VALID:
                if method == "GET":
                    s.sendall(request("HEAD", target, None) + request("OPTIONS", target, None))
                    got = [read_answer(r, "HEAD"), read_answer(r)]
                    judge(got[0], "HEAD")
                    judge(got[1])
                    check(got[0][0] in (200, 404) and got[1][0] in (404, 405), (target, got))
            for target in ("/generate", "/flush_cache"):
                s.sendall(request("DELETE", target, None))
                answer = read_answer(r)
                judge(answer)
                check(answer[0] == 405, answer)


@test
def refusals():
    """Each route answers in its own dialect also where the request is refused before it is read."""
    with Abused(*LIMITS, "--api-key", "k") as srv:
        for target in ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/generate", "/tokenize", "/nothing", "//v1/models", "/v1/models/"):
            for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": "k", "content-type": "text/plain"}, {"x-api-key": "k", "host": "evil.test"}):
                status, got, data = ask(srv.port, "POST", target, b"{}", headers)
                o = strict_json(data)
                judge((status, got, data))
                check(status in (400, 401, 403, 404, 405) and (o.get("type") == "error") == target.startswith("/v1/messages"), (target, headers, o))


@test
def mutated_bodies():
    """Well-framed requests whose bodies are wrong in some way: each gets exactly one answer."""
    with Abused(*LIMITS) as srv:
        end = time.time() + LONG * 0.6

        def bodies(rng):
            conn = None
            while time.time() < end:
                if time.time() > end - LONG * 0.35:
                    srv.warm()
                method, target, body = rng.choice(VALID)
                data = None if body is None else body_of(rng, body)
                more = rng.choice(((), (), (), ("X-Request-Id: " + rng.choice(("a b", "x" * 128, "y" * 129, "", "%s%n", "\"'<>")),), ("Expect: 100-continue",), ("Connection: close",)))
                data = request(method, target, data, *more, rng=rng)
                try:
                    conn = ask_raw(conn, data, srv.port)
                except Exception as e:
                    raise AssertionError("%s: %s after %r" % (type(e).__name__, e, data[:1500])) from e
        in_threads(4, bodies)


LENGTHS = [b"0", b"1", b"-1", b"+5", b"0x5", b"5, 5", b"", b"5 5", b"99999999999999999999", b"2097152", b"00005", b"1e1", b"\xd9\xa5"]
CODINGS = [b"chunked", b"Chunked", b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity", b"", b"chunked\t", b"\x0bchunked", b"xchunked"]
TARGETS = [b"*", b"/", b"//v1/models", b"/v1/../v1/models", b"/%00", b"/%2e%2e/etc/passwd", b"http://127.0.0.1/v1/models", b"http://evil.test", b"https://a/", b"/v1/models/" + b"a" * 3000,
           b"/\xff", b"/a b", b"", b"?", b"/?" + b"q" * 9000, b"/v1/models#x", b"/health?\x01", b"/v1/chat/completions/", b"/V1/MODELS", b"/" + b"x" * 40000]
LINES = [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Host: 127.0.0.1", b"Host: evil.test", b"Host:", b"X: y", b" folded", b"\tfolded", b"NoColon", b": empty", b"A b: c", b"X:" + b"z" * 33000,
         b"X: \0", b"X: \xff\xfe", b"X: a\rb", b"Connection: close", b"Connection: keep-alive, close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Expect: 200-ok", b"Authorization: Bearer x",
         b"Authorization: " + b"B" * 5000, b"Origin: null", b"Sec-Fetch-Site: cross-site", b"X-Request-Id: a\x7fb", b"X-Request-Id: \xe9", b"Content-Type: text/plain", b"Content-Type: application/json; charset=utf-16",
         b"Content-Encoding: gzip", b"Trailer: X", b"Range: bytes=0-1", b"Cookie: a=b", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
BODIES = [b"5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"fffffffffffffffff\r\n", b"8000000000000000\r\n", b"-1\r\n", b"0\r\n\r\n", b"\r\n", b"5;" + b"e" * 9000 + b"\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n",
          b"0\r\n" + b"T: v\r\n" * 3000 + b"\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\nGET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]


def mutate_request(rng, data):
    """Wrong framing: the head's lines, its end, or any byte."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        do = rng.randrange(11)
        i = rng.randrange(len(lines))
        if do == 0: lines = [re.sub(rb"^Content-Length:.*", b"Content-Length: " + rng.choice(LENGTHS).replace(b"\\", b""), l) for l in lines]
        elif do == 1: lines.insert(max(1, i), b"Transfer-Encoding: " + rng.choice(CODINGS))
        elif do == 2: lines[0] = b" ".join([lines[0].split(b" ")[0], rng.choice(TARGETS), b"HTTP/1.1"])
        elif do == 3: lines[0] = lines[0].rsplit(b" ", 1)[0] + rng.choice((b"", b" ", b" HTTP/1.0", b" HTTP/2.0", b" HTTP/0.9", b" HTTP/1.1 ", b" http/1.1", b" HTTP/1.2", b" HTTP/11", b" HTTPS/1.1"))
        elif do == 4: lines[0] = rng.choice((b"get", b"G E T", b"", b"PRI", b"TRACE", b"CONNECT", b"DELETE", b"OPTIONS", b"P" * 9000, b"\x16\x03\x01\x02", b"POST\t")) + b" " + lines[0].split(b" ", 1)[-1]
        elif do == 5: lines.insert(max(1, i), rng.choice(LINES))
        elif do == 6: lines.insert(i, lines[i])
        elif do == 7: del lines[i]
        elif do == 8: body = rng.choice(BODIES)
        elif do == 9: lines += [b"H%d: x" % k for k in range(rng.choice((50, 99, 120, 5000)))]
        else: lines.append(rng.choice((b"Host: [::1]", b"Host: localhost:99999", b"Host: a@b", b"Host: " + b"h" * 300)))
        if not lines: lines = [b""]
    out = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n\r\n")).join(lines) + rng.choice((b"\r\n\r\n",) * 6 + (b"\n\n", b"\r\n", b"", b"\r\n\r\n\r\n")) + body
    return mutate_bytes(rng, out) if rng.random() < 0.3 else out


@test
def mutated_framing():
    """Whatever bytes come, all that goes back are whole legal answers, and then an end."""
    with Abused(*LIMITS) as srv:
        end = time.time() + LONG * 0.4

        def framing(rng):
            while time.time() < end:
                if time.time() > end - LONG * 0.25:
                    srv.warm()
                parts = [mutate_request(rng, right(rng)) if rng.random() < 0.7 else right(rng) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
                sent = b"".join(parts).replace(b"HEAD", b"HEAT") + b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                try:
                    with connect(srv.port) as s:
                        r = Reader(s)
                        try:
                            s.sendall(sent)
                        except OSError:
                            pass
                        while True:
                            s.settimeout(0.3)
                            try:
                                if not r.had and not r.more():
                                    break
                            except TimeoutError:
                                counts["waits for more"] += 1
                                break
                            except ConnectionResetError:  # closed while bytes of ours were unread, after its moment
                                break
                            s.settimeout(30)
                            answer = read_answer(r)
                            judge(answer)
                            counts[answer[0]] += 1
                except Exception as e:
                    raise AssertionError("%s: %s after %r" % (type(e).__name__, e, sent[:1500])) from e
        in_threads(8, framing)


@test
def resets():
    """The client is gone in any phase, with a reset or in good order: nothing stays behind."""
    long = json.dumps({"prompt": "one two three", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 2}).encode()
    whole = request("POST", "/v1/completions", long)
    with Abused(*LIMITS) as srv:

        def leave(rng):
            for _ in range(60):
                s = connect(srv.port)
                r = Reader(s)
                phase = rng.randrange(6)
                if phase == 0: s.sendall(whole[:rng.randrange(60)])
                elif phase == 1: s.sendall(whole[:-rng.randrange(1, len(long))])
                else:
                    s.sendall(whole if phase != 5 else request("POST", "/v1/completions", long.replace(b"true, \"n\"", b"false, \"n\"")))
                    if phase == 3: r.line()
                    if phase == 4 and any(r.line() == b"0" for _ in range(rng.randrange(20, 60))): continue  # aborted, and so at its end
                    if phase == 5: time.sleep(rng.random() * 0.05)
                if rng.random() < 0.5: reset(s)
                else: s.close()
                if phase == 2 and rng.random() < 0.3:
                    srv.ask("POST", "/abort_request", {"abort_all": True})
        in_threads(6, leave)
        began = time.time()
        wait_until("the end of all work", lambda: not any(state(srv)[k] for k in ("n_running", "n_waiting", "calls")), 3)
        counts["resets"] += 360
        check(time.time() - began < 3, "work ends with its client")


@test
def slow_senders():
    """Byte by byte is as good as at once; half a request hinders nobody."""
    with Abused(*LIMITS) as srv:
        halves = [connect(srv.port) for _ in range(30)]
        for i, s in enumerate(halves):
            s.sendall(request("POST", "/generate", b'{"text": "one"}')[:5 + 4 * i])
        texts = set()

        def send(rng):
            body = json.dumps({"text": "one two three", "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}).encode()
            data = request("POST", "/generate", body) if rng.random() < 0.5 else request("POST", "/generate", None, "Content-Type: application/json", "Transfer-Encoding: chunked") + chunked(rng, body)
            with connect(srv.port) as s:
                for i in range(len(data)):
                    s.sendall(data[i:i + 1])
                    if rng.random() < 0.3: time.sleep(0.003)
                answer = read_answer(Reader(s))
                judge(answer)
                texts.add(strict_json(answer[2])["text"])
        in_threads(12, send)
        check(len(texts) == 1, texts)
        [s.close() for s in halves]


@test
def slow_readers():
    """Who reads slowly gets all of it, who does not read is dropped; others are served meanwhile."""
    with Abused(*LIMITS) as srv:
        small = {"text": "one two", "sampling_params": {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}, "stream": True}
        huge = dict(small, return_logprob=True, top_logprobs_num=20)
        before = state(srv)["dropped"]
        deaf = [connect(srv.port, receive_bytes=4096) for _ in range(4)]
        for s in deaf:
            s.sendall(request("POST", "/generate", json.dumps(huge).encode()))
        answers = []

        def read(rng):
            with connect(srv.port, receive_bytes=4096) as s:
                s.sendall(request("POST", "/generate", json.dumps(small).encode()))
                r = Reader(s)
                while b"\r\n0\r\n\r\n" not in r.had:
                    r.had += s.recv(rng.choice((1, 100, 3000, 9000)))
                    if rng.random() < 0.05: time.sleep(0.002)
                answer = read_answer(r)
                judge(answer)
                answers.append(json.loads(sse(answer[2])[-2])["text"])
        in_threads(4, read)
        check(len(answers) == 4 and len(set(answers)) == 1, answers)
        wait_until("those who do not read to be dropped", lambda: state(srv)["dropped"] - before == 4, 20)
        [s.close() for s in deaf]


@test
def many_connections():
    """More than there is room for: an idle one gives way, and where none is idle the answer says so."""
    with Abused(*LIMITS) as srv:
        idle = [connect(srv.port) for _ in range(100)]
        check(srv.ask("GET", "/health")[0] == 200, "an idle connection gives way")
        [s.close() for s in idle]
        wait_until("the end of all connections", lambda: state(srv)["connections"] == 1, 5)
        busy = [connect(srv.port) for _ in range(64)]
        for s in busy:
            s.sendall(b"GET / HTTP/1.1\r\n")
        time.sleep(0.2)
        with connect(srv.port) as s:
            answer = read_answer(Reader(s))
            judge(answer)
            check(answer[0] == 503, answer)
        [s.close() for s in busy]


if __name__ == "__main__":
    status = main()
    if not sys.argv[1:] or status:
        print("seed %d: %s" % (SEED, ", ".join("%s: %d" % (k, n) for k, n in sorted(counts.items(), key=str))), file=sys.stderr)
    sys.exit(status)
