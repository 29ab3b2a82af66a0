#!/usr/bin/env python3
"""Gemma 4 through the program: logits and hidden states of the fixtures in every form of file, greedy tokens, quantising at load, chats over HTTP.

Standard library only. Usage: tests/golden4.py [NAME...]   last line: N passed, N failed
"""
import atexit, concurrent.futures, itertools, shutil, struct, tempfile

from serving import *

GOLDEN = os.path.join(ROOT, "tests", "golden")
TMP = tempfile.mkdtemp(prefix="cygnet-golden4-")
atexit.register(shutil.rmtree, TMP, True)
# fixture, form of the file, its golden values
FORMS = [(f, m, "golden.safetensors") for f in ("gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny", "gemma4-12b-tiny") for m in ("", "model-bf16.gguf")]
FORMS = [x for x in FORMS if x[:2] != ("gemma4-12b-tiny", "model-bf16.gguf")]
QUANTISED = [(f, "model-q8_0.gguf", "golden-q8_0.safetensors") for f in ("gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny")]
FOLDERS = ["gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny", "gemma4-12b-tiny"]


def run(*args, stdin=b"", status=0):
    p = subprocess.run([CYGNET, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, env=ENV)
    check(p.returncode == status, "%s: exit %d: %s" % (args, p.returncode, p.stderr.decode()))
    return p.stdout.decode()


def at(folder, model=""):
    return os.path.join(GOLDEN, folder, model) if model else os.path.join(GOLDEN, folder)


def read_safetensors(path):
    """name -> (shape, numbers)"""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (t["shape"], struct.unpack("<%d%s" % ((b - a) // 4, {"F32": "f", "I32": "i"}[t["dtype"]]), data[8 + n + a : 8 + n + b]))
    return out


def logits(model, ids, *more):
    """The tensors that `cygnet logits` writes, and the file's bytes."""
    fd, out = tempfile.mkstemp(dir=TMP)
    os.close(fd)
    run("logits", "-m", model, "--ids", " ".join(map(str, ids)), "--out", out, *more)
    with open(out, "rb") as f:
        raw = f.read()
    mine = read_safetensors(out)
    os.unlink(out)
    check(list(mine["ids"][1]) == list(ids), "ids")
    return mine, raw


def prompts(golden):
    return [golden["case%d.ids" % i][1] for i in itertools.takewhile(lambda i: "case%d.ids" % i in golden, itertools.count())]


def distance(folder, model, golden, *more, names=("logits",), cases=None):
    """Greatest difference over the rms of the golden values, and relative L2, over all cases."""
    golden = read_safetensors(at(folder, golden))
    worst, off, total, n = 0, 0, 0, 0
    for i, ids in enumerate(prompts(golden)):
        if cases and i not in cases:
            continue
        mine, _ = logits(at(folder, model), ids, *more)
        for name in names:
            if "case%d.%s" % (i, name) not in golden and name == "hidden" and i == 5:
                continue  # the longest case's are not kept
            shape, ref = golden["case%d.%s" % (i, name)]
            check(mine[name][0] == shape, "%s: shape %s, expected %s" % (name, mine[name][0], shape))
            d = [a - b for a, b in zip(mine[name][1], ref)]
            check(all(x == x for x in d), "NaN")
            rms = (sum(x * x for x in ref) / len(ref)) ** 0.5
            worst = max(worst, max(map(abs, d)) / rms)
            off, total, n = off + sum(x * x for x in d) / rms**2, total + len(ref), n + 1
    check(n >= (len(cases) if cases else 3) * len(names), "%d cases" % n)
    return worst, (off / total) ** 0.5


def within(what, found, worst, l2):
    print("  %-58s greatest %.2g  L2 %.2g" % (what, *found))
    check(found[0] <= worst and found[1] <= l2, "%s: %.3g (%.3g), bounds %g (%g)" % (what, *found, worst, l2))


def has(level):
    p = subprocess.run([CYGNET, "complete", "-m", TINY, "--ids", "2", "-n", "1", "--isa", level], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    if p.returncode:
        print("  %s: not on this machine" % level)
    return p.returncode == 0


def mixture(folder):
    return "-moe-" in folder


# ---- golden values ---------------------------------------------------------------------------------------------------------------


@test
def logits_and_hidden_states_on_the_reference_level():
    for folder, model, golden in FORMS + QUANTISED:
        names = ("logits",) if "q8_0" in model else ("logits", "hidden")
        found = distance(folder, model, golden, "--isa", "ref", "--kv-type", "f32", *(["--hidden"] if "hidden" in names else []), names=names)
        within("ref %s/%s" % (folder, model), found, 2e-4, 5e-5)


@test
def logits_on_avx2():
    for folder, model, golden in FORMS + QUANTISED if has("avx2") else []:
        found = distance(folder, model, golden, "--isa", "avx2", "--kv-type", "f32", cases=(2, 3, 4) if "q8_0" not in model else None)
        bounds = (2e-4, 5e-5) if "q8_0" not in model else (3, 0.3) if mixture(folder) else (0.6, 0.08)
        within("avx2 %s/%s" % (folder, model), found, *bounds)


@test
def logits_on_avx512():
    for folder, model, golden in FORMS + QUANTISED if has("avx512") else []:
        bounds = (3, 0.3) if mixture(folder) else (0.6, 0.08) if "q8_0" in model else (0.3, 0.03)
        within("avx512 %s/%s" % (folder, model), distance(folder, model, golden, "--isa", "avx512", "--kv-type", "f32"), *bounds)


@test
def keys_of_16_bits():
    for folder, model, golden in FORMS:
        for level in ("ref", "avx2") if has("avx2") else ("ref",):
            found = distance(folder, model, golden, "--isa", level, cases=(3, 4, 5))
            within("%s %s/%s, keys bf16" % (level, folder, model), found, *((2, 0.12) if mixture(folder) else (0.16, 0.022)))


@test
def greedy_tokens():
    n = 0
    for folder, model, golden in FORMS:
        golden = read_safetensors(at(folder, golden))
        for i, ids in enumerate(prompts(golden)):
            for level in ("ref", "auto") if i in (1, 4) else ("ref",):
                if level == "auto" and has_avx512:
                    continue
                said = json.loads(run("complete", "-m", at(folder, model), "--ids", ",".join(map(str, ids)), "-n", "16", "--ignore-eos", "--json", "--isa", level, "--kv-type", "f32"))
                check(said["ids"] == list(golden["case%d.greedy" % i][1]), "%s/%s, case %d, %s: %s" % (folder, model, i, level, said["ids"]))
                check(said["finish_reason"] == "length" and said["usage"]["prompt_tokens"] == len(ids), said)
                n += 16
    check(n > 500, n)


@test
def the_same_model_in_every_form():
    """To the bit: folder, its .safetensors file, GGUF; any number of threads, any chunk; whatever says how the configuration is written."""
    for folder in FOLDERS:
        ids = prompts(read_safetensors(at(folder, "golden.safetensors")))[4]
        resaved = shutil.copytree(at(folder), os.path.join(TMP, folder), ignore=shutil.ignore_patterns("*.gguf", "golden*", "config*"), copy_function=shutil.copyfile)
        shutil.copyfile(at(folder, "config.resaved.json"), os.path.join(resaved, "config.json"))
        forms = [at(folder), resaved, at(folder, "model.safetensors")] + [at(folder, m) for m in ("model-bf16.gguf",) if os.path.exists(at(folder, m))]
        roads = [(), ("--threads", "1"), ("--chunk", "3"), ("--page-size", "1", "--chunk", "7"), ("--no-graph",), ("--draft", "-1")]
        want = logits(forms[0], ids)[1]
        for form in forms:
            for road in roads if form != resaved else roads[:1]:
                check(logits(form, ids, *road)[1] == want, "%s %s: other logits" % (form, road))


@test
def quantised_at_load():
    """The bits of a file that was quantised beforehand, from safetensors and GGUF; but the per-layer table of e stays as it is."""
    for folder in FOLDERS[:3]:
        golden = read_safetensors(at(folder, "golden.safetensors"))
        for level in ("ref", "avx2") if has("avx2") else ("ref",):
            for ids in prompts(golden)[2:5]:
                want = logits(at(folder, "model-q8_0.gguf"), ids, "--isa", level)
                for model in ("", "model-bf16.gguf"):
                    found = logits(at(folder, model), ids, "--isa", level, "--quant", "q8_0")
                    if folder != "gemma4-e-tiny":
                        check(found[1] == want[1], "%s/%s %s: not the bits of the Q8_0 file" % (folder, model, level))
                        continue
                    a, b = found[0]["logits"][1], want[0]["logits"][1]
                    rms = (sum(x * x for x in b) / len(b)) ** 0.5
                    check(0 < max(abs(x - y) for x, y in zip(a, b)) / rms < 0.5, "%s/%s %s: far from the Q8_0 file" % (folder, model, level))
    for folder in FOLDERS:
        check(json.loads(run("complete", "-m", at(folder), "--ids", "2,5,9", "-n", "4", "--ignore-eos", "--json", "--quant", "q4_0"))["usage"]["completion_tokens"] == 4, folder)


# ---- other commands ----------------------------------------------------------------------------------------------------------------


@test
def inspect():
    for folder, model, _ in FORMS + QUANTISED:
        said = run("inspect", at(folder, model))
        for words in ["gemma4", "keys and values", "together"] + (["of layer 3", "per-layer input"] if "-e-" in folder else ["experts"] if mixture(folder) else []):
            check(words in said, "%s/%s: no %r in: %s" % (folder, model, words, said))


TEXTS = ["hello world", "", " ", "  x", " x", "x ", "\t\t\t\t\t\tx", "\r\n\r\n x", "<eos>", "<bos>a", "</s>", "Café déjà vu — 123 😊", "a<|turn>b", "e\u0301\u0308", "👩‍👩‍👧‍👦🇩🇪", "\x00\x01"]


@test
def tokenize():
    """Back and forth without loss; the same ids from tokenizer.json and GGUF; control tokens only where asked for; one BOS (cases D2, D4, D6, D7)."""
    lines = "".join(json.dumps({"text": t, "special": s, "bos": b}) + "\n" for t in TEXTS for s in (False, True) for b in (False, True)).encode()
    for folder in FOLDERS:
        found = [run("tokenize", "-m", m, stdin=lines) for m in (at(folder), at(folder, "model-bf16.gguf")) if os.path.exists(m)]
        check(len(set(found)) == 1, "%s: tokenizer.json and GGUF differ" % folder)
        for asked, line in zip(lines.decode().splitlines(), found[0].splitlines()):
            asked, said = json.loads(asked), json.loads(line)
            ids = said["ids"]
            check(said["decoded"] in (asked["text"], "<bos>" + asked["text"]), "%s: %r became %r" % (folder, asked, said))
            n_bos = sum(i == 2 for i in ids)
            check(n_bos == (1 if asked["bos"] or asked["special"] and asked["text"].startswith("<bos>") else 0), "%s: %r has %d BOS" % (folder, asked, n_bos))
            check(asked["special"] or 1 not in ids, "%s: plain text became an end" % folder)
        check(len(found[0].splitlines()) == len(TEXTS) * 4, "lines")


@test
def render_and_parse():
    ask = [{"role": "user", "content": "What is 2 + 2?"}]
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
    cases = [{"messages": ask}, {"messages": ask, "options": {"enable_thinking": True}}, {"messages": ask, "tools": tools},
             {"messages": [{"role": "system", "content": "Be brief."}] + ask + [{"role": "assistant", "content": "4"}] + ask}]
    lines = "".join(json.dumps(c) + "\n" for c in cases).encode()
    for folder in FOLDERS:
        found = [run("render", "-m", m, stdin=lines) for m in (at(folder), at(folder, "model-bf16.gguf")) if os.path.exists(m)]
        check(len(set(found)) == 1, "%s: folder and GGUF differ" % folder)
        said = [json.loads(l) for l in found[0].splitlines()]
        check(all(s["ids"][0] == 2 and s["ids"].count(2) == 1 for s in said), "%s: BOS" % folder)
        check("<|think|>" not in said[0]["text"] and "<|think|>" in said[1]["text"] and "add" in said[2]["text"], said)
        with open(os.path.join(GOLDEN, "text", "parse_gemma4.jsonl"), encoding="utf-8") as f:
            cases = [c for c in map(json.loads, f) if "literal" not in c and "name" in c]
        parsed = run("parse", "-m", at(folder), stdin="".join(json.dumps(c) + "\n" for c in cases).encode()).splitlines()
        check(len(parsed) == len(cases) > 20, "%d answers to %d lines" % (len(parsed), len(cases)))
        for c, line in zip(cases, parsed):
            said = json.loads(line)
            for k in ("content", "reasoning_content"):
                check((said.get(k) or "") == (c.get(k) or ""), "%s: %s: %r, expected %r" % (c["name"], k, said.get(k), c.get(k)))
            check(said["finish_reason"] == c["finish_reason"], "%s: %s" % (c["name"], said))


# ---- over HTTP ----------------------------------------------------------------------------------------------------------------------


def users(fn, items):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(fn, items))


def chat(srv, body, stream):
    """content, reasoning, finish_reason, usage"""
    status, _, data = srv.ask("POST", "/v1/chat/completions", {**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})})
    check(status == 200, "%d: %s" % (status, data[:300]))
    if not stream:
        d = json.loads(data)
        m = d["choices"][0]["message"]
        return m["content"], m.get("reasoning_content") or "", d["choices"][0]["finish_reason"], d["usage"]
    content = reasoning = ""
    finish = usage = None
    lines = sse(data)
    check(lines[-1] == "[DONE]", "no end")
    for d in map(json.loads, lines[:-1]):
        usage = d.get("usage") or usage
        for c in d["choices"]:
            content += c["delta"].get("content") or ""
            reasoning += c["delta"].get("reasoning_content") or ""
            finish = c.get("finish_reason") or finish
    return content, reasoning, finish, usage


@test
def chats_are_what_complete_says():
    """8 at the same time, streamed and not, greedy and with seeds: text and ids of a fresh process that knows only that one prompt."""
    sampled = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0}
    for folder in FOLDERS[:2]:
        with Server("--threads", "2", "--max-running-requests", "8", "--page-size", "4", model=at(folder)) as srv:
            def one(i):
                body = {"messages": [{"role": "user", "content": "hello " * (i % 5) + "number %d" % (i % 7)}], "max_tokens": 20 + i % 9, "ignore_eos": True}
                body.update({"temperature": 0} if i % 3 else {**sampled, "seed": i % 4})
                if i % 4 == 3:
                    body["messages"].insert(0, {"role": "system", "content": "Be brief. " * 3})
                prompt = json.loads(srv.ask("POST", "/apply-template", {"messages": body["messages"]})[2])["tokens"]
                how = ("--temp", "0") if i % 3 else ("--temp", "1", "--seed", str(i % 4), "--top-p", "1", "--top-k", "0", "--min-p", "0")
                want = json.loads(run("complete", "-m", at(folder), "--ids", ",".join(map(str, prompt)), "-n", str(body["max_tokens"]), "--ignore-eos", "--json", *how, "--threads", "1", "--draft", "-1", "--no-graph"))
                for stream in (False, True):
                    content, reasoning, finish, usage = chat(srv, body, stream)
                    check(reasoning + content == want["text"], "%s, user %d, stream %s: %r, complete says %r" % (folder, i, stream, content, want["text"]))
                    check(finish == "length" and usage["prompt_tokens"] == len(prompt) and usage["completion_tokens"] == body["max_tokens"], (finish, usage))
                sampling = {"max_new_tokens": body["max_tokens"], "ignore_eos": True, **({"temperature": 0} if i % 3 else {**sampled, "sampling_seed": i % 4})}
                status, _, data = srv.ask("POST", "/generate", {"input_ids": prompt, "sampling_params": sampling})
                check(status == 200 and json.loads(data)["output_ids"] == want["ids"], "%s, user %d: %s, complete says %s" % (folder, i, data[:500], want["ids"]))
            users(one, range(24))
            check(srv.term() == 0, "the server ended badly")


@test
def thinking_changes_the_prompt_as_the_template_says():
    """Case E7: off by default; every way to turn it on writes the same prompt, every way to turn it off the plain one; nothing else changes."""
    ask = [{"role": "user", "content": "hello"}]
    for folder in FOLDERS:
        with Server("--threads", "1", model=at(folder)) as srv:
            def prompt(messages, **more):
                status, _, data = srv.ask("POST", "/apply-template", {"messages": messages, **more})
                check(status == 200, "%s: %d %s" % (more, status, data[:300]))
                return json.loads(data)["prompt"]
            def kwargs(on):
                return {"chat_template_kwargs": {"enable_thinking": on}}
            # the released larger models' template closes the thought for the model when thinking is off; the small models' does not
            system = [{"role": "system", "content": "Be brief."}]
            for messages in (ask, system + ask, ask + [{"role": "assistant", "content": "hi"}] + ask):
                plain, thinking = prompt(messages), prompt(messages, **kwargs(True))
                check(plain == prompt(messages, **kwargs(False)) == prompt(messages, reasoning_effort="none"), "off by default: %r" % plain)
                check(thinking == prompt(messages, reasoning_effort="high") == prompt(messages, reasoning_effort="low"), "%s: reasoning_effort" % folder)
                check("<|think|>" not in plain and thinking.count("<|think|>") == 1, thinking)
                taken = thinking.replace("<|think|>\n", "", 1)
                if messages[0]["role"] != "system":
                    check(taken.startswith("<bos><|turn>system\n<turn|>\n"), thinking)
                    taken = taken.replace("<|turn>system\n<turn|>\n", "", 1)
                check(plain in (taken, taken + "<|channel>thought\n<channel|>"), "%s: %r and %r" % (folder, plain, thinking))
            n = [chat(srv, {"messages": ask, "max_tokens": 2, "temperature": 0, **more}, False)[3]["prompt_tokens"] for more in ({}, kwargs(False), kwargs(True), {"reasoning_effort": "high"})]
            check(n[0] == n[1] < n[2] == n[3], n)


# ---- cases of tokens and conversations ---------------------------------------------------------------------------------------------


@test
def text_that_looks_like_an_end_goes_on():
    """Case D6: forced to write them, the model writes them; they are text, and the answer has them whole."""
    words = "</s> <eos> <turn|> <end_of_turn>"
    form = words.replace("|", r"\|")
    for folder in FOLDERS[:2]:
        said = json.loads(run("complete", "-m", at(folder), "--ids", "2,5,9", "-n", "200", "--json", "--regex", form))
        check(said["text"] == words and said["finish_reason"] == "stop", said)
        check(1 not in said["ids"][:-1], said)
        with Server("--threads", "1", model=at(folder)) as srv:
            for stream in (False, True):
                body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "temperature": 0, "regex": form}
                content, reasoning, finish, _ = chat(srv, body, stream)
                check((content, reasoning, finish) == (words, "", "stop"), (content, reasoning, finish))


@test
def one_bos():
    """Case D7: exactly one for text, however it begins; ids are taken as they are."""
    for folder in FOLDERS[:2]:
        with Server("--threads", "1", model=at(folder)) as srv:
            def n(prompt):
                status, _, data = srv.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
                check(status == 200, data[:300])
                return json.loads(data)["usage"]["prompt_tokens"]
            def ids(**how):
                return json.loads(srv.ask("POST", "/tokenize", how)[2])["tokens"]
            check(ids(prompt="a")[0] == 2 and ids(prompt="a").count(2) == 1, ids(prompt="a"))
            check(n("a") == len(ids(prompt="a")) == 2, n("a"))
            check(n("<bos>a") == 2 or ids(prompt="<bos>a").count(2) == 1, "%d: %s" % (n("<bos>a"), ids(prompt="<bos>a")))
            check(n([2, 65]) == 2 and n([65]) == 1 and n([[2, 65], [65]]) == 3, "ids as they are")


@test
def all_orders_of_roles():
    """Case E1: every sequence of up to three messages is rendered or refused with the place, over HTTP; never 500, and nobody is the worse for it."""
    call = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    kinds = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": None, "tool_calls": call},
             {"role": "tool", "tool_call_id": "c1", "content": "T"}, {"role": "developer", "content": "D"}, {"role": "assistant"}]
    for folder in FOLDERS[1:2]:
        with Server("--threads", "1", model=at(folder)) as srv:
            c = http.client.HTTPConnection("127.0.0.1", srv.port, timeout=30)
            found = {200: 0, 400: 0}
            for n in (0, 1, 2, 3):
                for order in itertools.product(kinds, repeat=n):
                    c.request("POST", "/apply-template", json.dumps({"messages": order}), {"content-type": "application/json"})
                    r = c.getresponse()
                    data = r.read()
                    check(r.status in found, "%s: %d %s" % (order, r.status, data[:300]))
                    found[r.status] += 1
                    said = json.loads(data)
                    check("messages" in said["error"]["message"] if r.status == 400 else said["tokens"][0] == 2, "%s: %s" % (order, said))
                    check(not any(m.get("content", 0) == 0 for m in order) or r.status == 400, "%s: an assistant without anything" % (order,))
            print("  %d sequences rendered, %d refused" % (found[200], found[400]))
            check(found[200] > 100 and found[400] > 100, found)
            content = chat(srv, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "temperature": 0}, False)
            check(content[3]["completion_tokens"] > 0, content)


# ---- memory --------------------------------------------------------------------------------------------------------------------------


def resident(pid):
    """Anonymous bytes, bytes of files"""
    with open("/proc/%d/status" % pid) as f:
        status = f.read()
    return [int(re.search(k + r":\s+(\d+) kB", status).group(1)) * 1024 for k in ("RssAnon", "RssFile")]


def printed_plan(p):
    """Bytes of "together 2.7 GiB, taken now", and the port."""
    log = planned = ""
    while True:
        line = p.stdout.readline()
        check(line, "the server did not start: " + log)
        log += line
        m = re.search(r"together ([0-9.]+) ([KMG])iB, taken now", line)
        planned = float(m.group(1)) * {"K": 2**10, "M": 2**20, "G": 2**30}[m.group(2)] if m else planned
        m = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if m:
            return planned, int(m.group(1))


@test
def memory_is_what_the_plan_says():
    """All of it from the start, and not more under load. What a process has beside the plan (tokenizer, libraries, threads, answers) is 1 to 2 MiB here."""
    if not os.path.exists("/proc/self/status"):
        return print("  no /proc")
    for folder in FOLDERS[:2]:
        p = subprocess.Popen([CYGNET, "serve", "-m", at(folder), "--port", "0", "--threads", "2", "--ctx", "1024", "--swa-full-tokens-ratio", "1", "--max-running-requests", "64",
                              "--kv-type", "f32"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV)
        try:
            planned, port = printed_plan(p)
            before = resident(p.pid)
            def user(i):
                body = {"messages": [{"role": "user", "content": "%d " % i * 60}], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": i % 2 == 0}
                status, _, data = ask(port, "POST", "/v1/chat/completions", body)
                check(status == 200, data[:300])
            users(user, range(32))
            after = resident(p.pid)
            print("  %s: planned %.1f MiB; anonymous %.1f MiB at start, %.1f MiB after 32 users (files %.1f and %.1f MiB)" % (folder, *[x / 2**20 for x in (planned, before[0], after[0], before[1], after[1])]))
            check(after[0] - before[0] < 2 << 20, "grew by %d bytes" % (after[0] - before[0]))
            check(planned > 50 << 20 and planned * 0.97 < before[0] and after[0] < planned * 1.03 + (2 << 20), "planned %d, found %d, then %d" % (planned, before[0], after[0]))
        finally:
            p.kill()
            p.wait()


if __name__ == "__main__":
    has_avx512 = has("avx512")
    sys.exit(main())
