#!/usr/bin/env python3
"""Pictures and sound through the whole program, on the command line and over HTTP, with tiny models of every family.

Standard library only. Usage: tests/media.py [NAME...]   last line: N passed, N failed
"""
import array, base64, json, os, shutil, struct, subprocess, sys, tempfile, threading, time, zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import *
from vocabulary import with_words

GOLDEN = os.path.join(ROOT, "tests", "golden")
PREP = os.path.join(GOLDEN, "media-prep")
TMP = tempfile.mkdtemp(prefix="cygnet-media-")
MODELS = ("media-gemma3", "media-gemma4-e2b", "media-gemma4-12b", "media-gemma4-31b", "media-gemma4-26b", "media-mllama", "media-mllama-long")
SMALL = ("--ctx", "1024", "--threads", "1", "--kv-type", "f32")
BOUND = 2e-4  # of the root mean square: golden/README.md


def folder(name):
    return os.path.join(GOLDEN, name)


def cases(name):
    whole = json.load(open(os.path.join(folder(name), "cases.json")))
    return whole["cases"]


def tensors(path):
    """name → (shape, numbers) of a safetensors file, for int32 and float32."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    out = {}
    for key, t in head.items():
        if key == "__metadata__" or t["dtype"] not in ("I32", "F32"):
            continue
        numbers = array.array("i" if t["dtype"] == "I32" else "f")
        numbers.frombytes(data[slice(*t["data_offsets"])])
        out[key] = (t["shape"], numbers)
    return out


def run(*args, timeout=120):
    p = subprocess.run([CYGNET, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=ENV)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def files_of(name, case):
    out = []
    for p in case["pictures"]:
        out += ["--image", os.path.join(folder(name), p)]
    for s in case["sounds"]:
        out += ["--audio", os.path.join(folder(name), s)]
    return out


def b64(path):
    with open(path, "rb") as f:
        return base64.b64encode(f.read()).decode()


def png(width, height, pixel, channels=3, chunks=b""):
    """A PNG; pixel(x, y) → bytes of one pixel."""
    raw = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(width)) for y in range(height))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunks + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def wav(seconds, rate=16000):
    n = int(seconds * rate)
    data = struct.pack("<%dh" % n, *[(i * 37 % 2000) - 1000 for i in range(n)])
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16) + b"data" + struct.pack("<I", len(data)) + data


# ---- the command line ----------------------------------------------------------------------------------------------------------------


@test
def logits_of_every_case():
    """Every fixture through `logits`, placeholders matched to files in order, at the readable reference and at what the machine has."""
    compared = 0
    for name in MODELS:
        golden = tensors(os.path.join(folder(name), "golden.safetensors"))
        for key, case in cases(name).items():
            out = os.path.join(TMP, "logits.safetensors")
            status, said, err = run("logits", "-m", folder(name), "--ids", ",".join(map(str, case["ids"])), *files_of(name, case), "--isa", "ref", *SMALL, "--out", out)
            check(status == 0, (name, key, status, err))
            found = tensors(out)
            if key + ".ids" in golden:
                check(list(found["ids"][1]) == list(golden[key + ".ids"][1]), (name, key, "ids"))
            if key + ".logits" not in golden:
                continue
            a, b = found["logits"][1], golden[key + ".logits"][1]
            check(len(a) == len(b), (name, key, len(a), len(b)))
            rms = (sum(x * x for x in b) / len(b)) ** 0.5
            worst = max(abs(x - y) for x, y in zip(a, b)) / rms
            check(worst <= BOUND, (name, key, worst))
            compared += 1
    check(compared >= 20, compared)


@test
def complete_says_what_it_should():
    for name, key in (("media-gemma3", "two"), ("media-gemma4-e2b", "both"), ("media-gemma4-12b", "both"), ("media-mllama", "separate")):
        case = cases(name)[key]
        status, out, err = run("complete", "-m", folder(name), "--ids", ",".join(map(str, case["ids"])), *files_of(name, case), "--isa", "ref", *SMALL, "-n", "8", "--ignore-eos", "--json")
        check(status == 0, err)
        o = json.loads(out)
        check(o["ids"] == case["greedy"], (name, o["ids"], case["greedy"]))
        check(o["usage"]["prompt_tokens"] >= len(case["ids"]), o["usage"])


@test
def files_and_placeholders_must_fit():
    gemma, e2b = with_words("media-gemma3"), with_words("media-gemma4-e2b")
    picture, sound = os.path.join(gemma, "a.rgb.png"), os.path.join(e2b, "a.pcm16.wav")
    for args, says in (((gemma, "--ids", "2,272"), "expected --image FILE for each placeholder"), ((gemma, "--ids", "2,5", "--image", picture), "--image: expected a placeholder"),
                       ((gemma, "--ids", "2,272", "--image", picture, "--image", picture), "--image: expected a placeholder in the prompt for each of the 2 files, found 1"),
                       ((gemma, "--ids", "2,5", "--audio", sound), "--audio: sound: this model takes none"), ((gemma, "--ids", "2,272", "--image", sound), "a.pcm16.wav: "),
                       ((gemma, "--ids", "2,272", "--image", "/no/such"), "/no/such"), ((e2b, "--ids", "2,280", "--image", picture, "--media-tokens", "71"), "a.rgb.png: "),
                       ((folder("media-gemma3"), "-p", "hello", "--image", picture, "-q"), "without a vocabulary"),
                       ((os.path.join(TINY, "model-mixed.gguf"), "-p", "hello", "--image", picture), "(--mmproj FILE)"),
                       ((gemma, "--ids", "2,272", "--image", picture, "--disable-media"), "--image: expected none with --disable-media")):
        status, out, err = run("complete", "-m", *args, *SMALL, "-n", "1")
        check(status == 2 and not out and err.startswith("cygnet: ") and err.count("\n") == 1 and says in err, (args, status, err))


@test
def texts_with_pictures_in_front_or_in_place():
    gemma = with_words("media-gemma3")
    picture = os.path.join(gemma, "a.rgb.png")
    def ids(*args):
        status, out, err = run("complete", "-m", gemma, "--image", picture, *args, *SMALL, "-n", "1", "--json")
        check(status == 0, err)
        return json.loads(out)["prompt_ids"]
    front = ids("-p", "ab")
    check(front[0] == 2 and front.count(272) == 1 and front.index(272) < len(front) - 3 and 270 in front and 271 in front, front)
    inside = ids("-p", "a<start_of_image>b", "--special")
    check(inside.count(272) == 1 and inside.index(272) > front.index(272), inside)
    check(ids("-p", "a<start_of_image>b").count(272) == 1, "spelled without --special: text, and the picture in front")


@test
def talking_about_pictures():
    gemma, e2b = with_words("media-gemma3"), with_words("media-gemma4-e2b")
    picture, sound = os.path.join(gemma, "a.rgb.png"), os.path.join(e2b, "a.pcm16.wav")
    def chat(model, lines, *args):
        p = subprocess.run([CYGNET, "chat", "-m", model, *SMALL, "--temp", "0", "-n", "3", "-q", *args], input="".join(l + "\n" for l in lines).encode(), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=120, env=ENV)
        return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode()
    with_first = chat(gemma, ["look", "again"], "--image", picture)
    by_command = chat(gemma, ["/image " + picture, "look", "again"])
    check(with_first[0] == 0 and with_first == by_command, (with_first, by_command))
    undone = chat(gemma, ["/image " + picture, "look", "/undo", "look", "/new", "/image " + picture, "look", "again"])
    check(undone[0] == 0 and undone[1].endswith(with_first[1]), (undone, with_first))
    heard = chat(e2b, ["/audio " + sound, "listen", "/image " + picture, "look"])
    check(heard[0] == 0 and not heard[2], heard)
    missing = chat(gemma, ["/image /no/such", "/audio " + sound, "hello"])
    check(missing[0] == 0 and missing[2].count("cygnet: ") == 2, missing)
    check(chat(gemma, [], "-p", "look", "--image", picture)[0] == 0 and chat(gemma, [], "-p", "look", "--audio", sound)[0] == 2, "-p")


# ---- over HTTP -------------------------------------------------------------------------------------------------------------------------


def generate(srv, ids, images=(), sounds=(), n=8, **more):
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": n, "temperature": 0, "ignore_eos": True}, **more}
    if images:
        body["image_data"] = list(images)
    if sounds:
        body["audio_data"] = list(sounds)
    status, _, data = srv.ask("POST", "/generate", body)
    return status, json.loads(data)


def ids_of(answer):
    check(answer[0] == 200, answer)
    return answer[1]["output_ids"]


def image(name, file):
    return b64(os.path.join(folder(name), file))


@test
def greedy_over_http_one_by_one_and_together():
    """B1, B2, B4, I8: every case alone, all at the same time, in small and large chunks, and again from the caches."""
    for name in ("media-gemma3", "media-gemma4-e2b", "media-gemma4-31b", "media-mllama"):
        all_cases = {k: c for k, c in cases(name).items() if not c["video"]}
        for chunk in ("16", "512") if name != "media-gemma4-31b" else ("64", "512"):
            with Server("--isa", "ref", "--chunk", chunk, *SMALL, model=folder(name)) as srv:
                def ask_for(c):
                    return generate(srv, c["ids"], [image(name, f) for f in c["pictures"]], [image(name, f) for f in c["sounds"]])
                for key, c in all_cases.items():
                    check(ids_of(ask_for(c)) == c["greedy"], (name, chunk, key))
                got = {}
                threads = [threading.Thread(target=lambda k=k, c=c: got.update({k: ask_for(c)})) for k, c in all_cases.items()]
                [t.start() for t in threads]
                [t.join() for t in threads]
                for key, c in all_cases.items():
                    check(ids_of(got[key]) == c["greedy"], (name, chunk, key, "together"))
                    meta = got[key][1]["meta_info"]
                    check(meta["cached_tokens"] > 0 or len(c["ids"]) < 4 or not c["pictures"], (name, key, meta))
                info = json.loads(srv.ask("GET", "/server_info")[2])
                check(info["internal_states"][0]["n_running"] == 0 and info["media"]["held_bytes"] == 0, info)


@test
def only_the_second_picture_changes():
    """B2, I9: [A,B], [B,A], [A,A]: each place sees its own picture; a file with other metadata is the same picture."""
    name = "media-gemma3"
    c = cases(name)["two"]
    a, b = (image(name, f) for f in c["pictures"])
    noise = lambda seed: base64.b64encode(png(40, 30, lambda x, y: bytes(((x * 7 + y * seed) % 256, (x * seed) % 256, (y * 11 + seed) % 256)))).decode()
    with Server("--isa", "ref", *SMALL, model=folder(name)) as srv:
        ways = {k: ids_of(generate(srv, c["ids"], v)) for k, v in (("ab", (a, b)), ("ba", (b, a)), ("aa", (a, a)), ("bb", (b, b)), ("ax", (a, noise(3))), ("xa", (noise(3), a)))}
        check(ways["ab"] == c["greedy"], ways)
        check(len({tuple(v) for v in ways.values()}) >= 4, ways)
        def counter(metric):
            return sum(float(l.split()[-1]) for l in srv.ask("GET", "/metrics")[2].decode().split("\n") if l.startswith("cygnet:" + metric + "{"))
        before = counter("media_encoded_total")
        check(before == 3, before)
        plain = png(40, 30, lambda x, y: bytes((x % 256, y % 256, 9)))
        kind, text = b"tEXt", b"Comment\0other"
        other = png(40, 30, lambda x, y: bytes((x % 256, y % 256, 9)), chunks=struct.pack(">I", len(text)) + kind + text + struct.pack(">I", zlib.crc32(kind + text)))
        check(plain != other, "files differ")
        for file, first in ((plain, 9), (other, 10)):  # another beginning, so that the prefix cache has nothing of it
            answer = generate(srv, [2, first, 270, 272, 271, 7], [base64.b64encode(file).decode()])
            check(answer[0] == 200, answer)
        check(answer[1]["meta_info"]["media_cached"] == 1 and counter("media_encoded_total") == before + 1, (answer, counter("media_encoded_total")))


@test
def chunks_do_not_matter():
    """B4: chunk 1, 3 and 2048 where a model allows it, 1, 2 and 20 tokens."""
    name = "media-mllama"
    c = cases(name)["mid"]
    want = None
    for chunk in ("1", "3", "2048"):
        with Server("--isa", "ref", "--chunk", chunk, *SMALL, model=folder(name)) as srv:
            for n in (1, 2, 20):
                found = ids_of(generate(srv, c["ids"], [image(name, f) for f in c["pictures"]], n=n))
                want = found if n == 20 and want is None else want
                check(len(found) == n and (want is None or found == want[:n]), (chunk, n, found, want))
    check(want[:8] == c["greedy"], want)


@test
def hidden_colours_do_not_matter():
    """I2: what is transparent is white."""
    def picture(hidden):
        return base64.b64encode(png(30, 20, lambda x, y: bytes((200, 30, 40, 255)) if x < 15 else bytes((hidden * x % 256, hidden * y % 256, hidden, 0)), channels=4)).decode()
    white = base64.b64encode(png(30, 20, lambda x, y: bytes((200, 30, 40)) if x < 15 else b"\xff\xff\xff")).decode()
    for name, ids in (("media-gemma3", [2, 9, 270, 272, 271, 7]), ("media-gemma4-e2b", [2, 9, 270, 280, 282, 7]), ("media-mllama", [100, 128, 9, 7])):
        with Server("--isa", "ref", *SMALL, model=folder(name)) as srv:
            answers = [ids_of(generate(srv, ids, [p], cache_salt=str(i))) for i, p in enumerate((picture(0), picture(77), white))]
            check(answers[0] == answers[1] == answers[2], (name, answers))


@test
def strange_sizes():
    """I7: any shape is answered or refused with a sentence, at every budget, and the server lives."""
    sizes = ((1, 1), (1, 300), (300, 1), (47, 47), (48, 48), (49, 49), (400, 80), (13, 900))
    for name, ids, budgets in (("media-gemma3", [2, 9, 270, 272, 271, 7], (None,)), ("media-mllama", [100, 128, 9, 7], (None,)), ("media-gemma4-e2b", [2, 9, 270, 280, 282, 7], (None, 70, 280))):
        with Server("--ctx", "4096", "--threads", "1", model=folder(name)) as srv:
            for w, h in sizes:
                for budget in budgets:
                    more = {"max_soft_tokens": budget} if budget else {}
                    start = time.time()
                    status, o = generate(srv, ids, [base64.b64encode(png(w, h, lambda x, y: bytes((x % 256, y % 256, 128)))).decode()], n=1, **more)
                    check(status in (200, 400) and time.time() - start < 30, (name, w, h, budget, status, o))
                    if status == 400:
                        check("image_data" in o["error"]["message"], o)
                    elif budget:
                        check(1 <= o["meta_info"]["image_tokens"] <= budget, (w, h, budget, o))
            check(srv.ask("GET", "/health")[0] == 200, "alive")


@test
def what_is_no_picture():
    """I3, I4, I6, I10: 400 or 413 with the place, soon, the same twice, and the next request is fine."""
    name = "media-gemma3"
    good = open(os.path.join(folder(name), "c.rgb.jpg"), "rb").read()
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    bomb += struct.pack(">I", zlib.crc32(bomb[12:29])) + struct.pack(">I", 50000) + b"IDAT" + zlib.compress(b"\0" * 50000)[:50000]
    p = png(20, 20, lambda x, y: b"abc")
    wrong_crc = p[:40] + bytes([p[40] ^ 1]) + p[41:]
    bad = {"half a JPEG": good[:len(good) // 2], "nothing": b"", "text": b"Dear picture,", "zeros": b"\0" * 100, "wrong CRC": wrong_crc, "half a PNG": p[:len(p) // 2], "bomb": bomb,
           "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "HEIC": b"\0\0\0\x18ftypheic" + b"\0" * 60, "head alone": good[:30]}
    with Server("--isa", "ref", *SMALL, model=with_words(name)) as srv:
        def chat(data, kind="image/png"):
            url = "data:%s;base64,%s" % (kind, base64.b64encode(data).decode())
            return srv.ask("POST", "/v1/chat/completions", {"max_tokens": 2, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                                            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "image_url", "image_url": {"url": url}}]}]})
        check(chat(good, "image/png")[0] == 200 and chat(p, "image/jpeg")[0] == 200 and chat(p, "application/octet-stream")[0] == 200, "the bytes decide")
        resident = lambda: json.loads(srv.ask("GET", "/server_info")[2])["memory_usage"]["resident_bytes"]
        before = resident()
        for what, data in bad.items():
            start = time.time()
            first, second = chat(data), chat(data)
            check(first[0] in (400, 413) and first[2] == second[2] and time.time() - start < 4, (what, first, second))
            o = json.loads(first[2])["error"]
            check(o["message"].startswith("messages[2].content[1]: ") and o["param"] == "messages", (what, o))
            check(chat(good)[0] == 200, (what, "the next one"))
        many = [{"type": "image_url", "image_url": {"url": "data:;base64," + base64.b64encode(p).decode()}}] * 500
        status, _, data = srv.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": many}]})
        check(status == 400 and b"at most 16 pictures" in data, (status, data))
        status, _, data = srv.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "A" * (30 << 20)}}]}]})
        check(status in (400, 413), (status, data[:200]))
        check(resident() - before < 100 << 20, (before, resident()))
        for url in ("file:///etc/passwd", "/etc/passwd", "../../x", "http://127.0.0.1/x", "http://169.254.169.254/"):
            status, _, data = srv.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})
            check(status == 400 and b"root:" not in data, (url, status, data))


@test
def a_system_line_beside_a_picture():
    """B3: {system yes, no} x {picture none, first, middle, last} x {schema yes, no}: all 200."""
    name = "media-mllama"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + image(name, "one.rgb.png")}}
    text = lambda s: {"type": "text", "text": s}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}
    with Server("--ctx", "2048", "--threads", "1", model=with_words(name)) as srv:
        for system in (False, True):
            for parts in ([text("hello")], [picture, text("hello")], [text("one"), picture, text("two")], [text("hello"), picture]):
                for form in (None, schema):
                    messages = [{"role": "system", "content": "Be brief."}] * system + [{"role": "user", "content": parts}]
                    body = {"messages": messages, "max_tokens": 60, "temperature": 0, **({"response_format": form} if form else {})}
                    status, _, data = srv.ask("POST", "/v1/chat/completions", body)
                    check(status == 200, (system, len(parts), form is not None, status, data))
                    o = json.loads(data)
                    if form and o["choices"][0]["finish_reason"] == "stop":
                        check(isinstance(json.loads(o["choices"][0]["message"]["content"])["a"], bool), o)
                    check(("image_tokens" in o["usage"]["prompt_tokens_details"]) == (picture in parts), o["usage"])


@test
def every_dialect_sees_the_same():
    name = "media-gemma3"
    data = image(name, "a.rgb.png")
    with Server("--isa", "ref", *SMALL, "--max-running-requests", "2", model=with_words(name)) as srv:
        chat = {"temperature": 0, "max_tokens": 6, "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": data}}]}]}
        status, _, body = srv.ask("POST", "/v1/chat/completions", chat)
        check(status == 200, body)
        want, usage = json.loads(body)["choices"][0]["message"]["content"], json.loads(body)["usage"]
        check(usage["prompt_tokens_details"]["image_tokens"] == 9, usage)
        status, _, body = srv.ask("POST", "/v1/responses", {"temperature": 0, "max_output_tokens": 6, "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64," + data}]}]})
        o = json.loads(body)
        check(status == 200 and "".join(p["text"] for i in o["output"] for p in i["content"]) == want and o["usage"]["input_tokens"] == usage["prompt_tokens"], (body, want))
        status, _, body = srv.ask("POST", "/v1/messages", {"temperature": 0, "max_tokens": 6, "messages": [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}]}]})
        o = json.loads(body)
        check(status == 200 and o["content"][0]["text"] == want, (body, want))
        status, _, body = srv.ask("POST", "/tokenize", {"messages": chat["messages"]})
        o = json.loads(body)
        check(o["count"] == usage["prompt_tokens"] == len(o["tokens"]) and o["tokens"].count(272) == 9, (o, usage))
        status, _, body = srv.ask("POST", "/v1/chat/completions", dict(chat, stream=True))
        check("".join(json.loads(d)["choices"][0]["delta"].get("content") or "" for d in sse(body)[:-1]) == want, (sse(body), want))
        check(srv.ask("POST", "/v1/completions", {"prompt": [2, 272]})[0] == 400, "a placeholder without a picture")
        models = json.loads(srv.ask("GET", "/v1/models")[2])["data"][0]
        check(models["input_modalities"] == ["text", "image"] and models["supports_vision"] and not models["supports_audio"], models)


def transcribe(srv, sound, **fields):
    body = b"".join(b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (k.encode(), v.encode()) for k, v in fields.items())
    body += b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + sound + b"\r\n--XX--\r\n"
    return srv.ask("POST", "/v1/audio/transcriptions", body, {"content-type": "multipart/form-data; boundary=XX"})


@test
def sound_of_any_length():
    """J1, J3: the limit is named, nothing is cut in silence, transcriptions take longer ones; models that do not hear say so."""
    name = "media-gemma4-e2b"
    with Server("--ctx", "4096", "--threads", "1", model=with_words(name)) as srv:
        limit = json.loads(srv.ask("GET", "/server_info")[2])["media"]["audio_seconds"]
        check(limit == 30, limit)
        def chat(seconds):
            part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(seconds)).decode(), "format": "wav"}}
            return srv.ask("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "hear"}, part]}]})
        for seconds, status in ((1, 200), (29.9, 200), (30, 200), (30.1, 400), (95, 400)):
            found, _, data = chat(seconds)
            check(found == status, (seconds, found, data))
            o = json.loads(data)
            if status == 200:
                check(abs(o["usage"]["prompt_tokens_details"]["audio_tokens"] - 25 * seconds) <= 2, (seconds, o["usage"]))
            else:
                check("messages[0].content[1]" in o["error"]["message"] and "30" in o["error"]["message"], o)
        status, _, data = transcribe(srv, wav(65), response_format="verbose_json")
        o = json.loads(data)
        check(status == 200 and abs(o["duration"] - 65) < 0.01 and len(o["segments"]) == 3 and o["text"] == " ".join(s["text"] for s in o["segments"] if s["text"]), (status, o))
        check(transcribe(srv, b"no sound")[0] == 400, "damaged")
    with Server(*SMALL, model=with_words("media-gemma3")) as srv:
        check(transcribe(srv, wav(1))[0] == 400, "this one does not hear")
    with Server(*SMALL, "--disable-media", model=with_words(name)) as srv:
        models = json.loads(srv.ask("GET", "/v1/models")[2])["data"][0]
        check(models["input_modalities"] == ["text"], models)
        part = {"type": "image_url", "image_url": {"url": image("media-gemma3", "a.rgb.png")}}
        check(srv.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})[0] == 400, "switched off")


@test
def sound_of_any_kind():
    """J2: the same sound in other codings is heard or refused with a sentence."""
    name = "media-gemma4-e2b"
    with Server("--ctx", "2048", "--threads", "1", model=with_words(name)) as srv:
        heard = 0
        for file in sorted(os.listdir(PREP)):
            if not file.endswith(".wav"):
                continue
            part = {"type": "input_audio", "input_audio": {"data": b64(os.path.join(PREP, file)), "format": "wav"}}
            status, _, data = srv.ask("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [part]}]})
            check(status == 200 or (status == 400 and b"messages[0].content[0]: " in data), (file, status, data))
            heard += status == 200
        check(heard >= 8, heard)


@test
def addresses_and_files():
    """--media-allow, --media-urls and --media-path through the whole program."""
    import http.server
    name = "media-gemma3"
    c = cases(name)["mid"]
    data = open(os.path.join(folder(name), "a.rgb.png"), "rb").read()
    asked = []

    class Web(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path[4:])
                self.end_headers()
                return
            self.send_response(200 if self.path == "/a.png" else 404)
            self.end_headers()
            self.wfile.write(data if self.path == "/a.png" else b"none")

        def log_message(self, *args):
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    at = "127.0.0.1:%d" % web.server_port
    with Server("--isa", "ref", *SMALL, "--media-allow", at, "--media-path", folder(name), "--media-timeout", "3", model=folder(name)) as srv:
        check(ids_of(generate(srv, c["ids"], ["http://%s/a.png" % at])) == c["greedy"], "fetched")
        check(ids_of(generate(srv, c["ids"], ["http://%s/to//a.png" % at])) == c["greedy"], "redirected")
        check(ids_of(generate(srv, c["ids"], ["file://" + os.path.join(folder(name), "a.rgb.png")])) == c["greedy"], "a file")
        for url, says in (("http://%s/none" % at, "404"), ("http://%s/to/http://localhost:%d/a.png" % (at, web.server_port), "some hosts only"), ("http://127.0.0.1/a.png", "some hosts only"),
                          ("file:///etc/passwd", "folder"), ("file://" + os.path.join(folder(name), "..", "..", "cli.py"), "folder"), ("file://" + folder(name), "folder")):
            status, o = generate(srv, c["ids"], [url])
            check(status == 400 and says in o["error"]["message"], (url, status, o))
        n = len(asked)
    with Server("--isa", "ref", *SMALL, "--media-urls", "--media-timeout", "3", model=folder(name)) as srv:
        for url in ("http://%s/a.png" % at, "http://127.0.0.1/a.png", "http://localhost/a.png", "http://[::1]/a.png", "http://169.254.169.254/x"):
            status, o = generate(srv, c["ids"], [url])
            check(status == 400, (url, status, o))
        check(len(asked) == n, "nobody came: %s" % asked[n:])
    with Server("--isa", "ref", *SMALL, model=folder(name)) as srv:
        check(generate(srv, c["ids"], ["http://%s/a.png" % at])[0] == 400 and len(asked) == n, "off")
    web.shutdown()


@test
def memory_stays_flat():
    """H6: hundreds of different pictures, answered, refused and left alone."""
    name = "media-gemma3"
    c = cases(name)["mid"]
    with Server("--ctx", "256", "--threads", "1", "--media-mem", "1MiB", model=folder(name)) as srv:
        def some(first, n):
            for i in range(first, first + n):
                picture = base64.b64encode(png(24, 24, lambda x, y: bytes(((x * i) % 256, (y * i) % 256, i % 256)))).decode()
                status, o = generate(srv, c["ids"], [picture], n=2)
                check(status == 200, o)
                check(generate(srv, c["ids"], [picture[:60]])[0] == 400, "cut")
                s = socket.create_connection(("127.0.0.1", srv.port))
                body = json.dumps({"input_ids": c["ids"], "image_data": picture, "stream": True, "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}).encode()
                s.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                s.close()
        info = lambda: json.loads(srv.ask("GET", "/server_info")[2])
        some(1, 100)
        before = info()["memory_usage"]["resident_bytes"]
        some(101, 200)
        wait_until("all have left", lambda: info()["internal_states"][0]["n_running"] == 0 and info()["media"]["held_bytes"] == 0)
        after = info()["memory_usage"]["resident_bytes"]
        check(after - before < 3 << 20, (before, after))


@test
def inspect_says_what_takes_pictures_and_sound():
    words = {"media-gemma3": ["SigLIP: 2 layers", "9 tokens each"], "media-gemma4-e2b": ["Gemma 4 ViT", "up to 70 tokens", "Gemma 4 conformer: 2 layers"],
             "media-gemma4-31b": ["Gemma 4 ViT"], "media-gemma4-12b": ["no encoder: blocks of 12 x 12 pixels", "no encoder: frames of 640 samples"],
             "media-mllama": ["7: 2 cross (to pictures), 5 full", "4 layers and 2 over all tiles", "up to 4 tiles of 28 x 28", ": 1 4\n"]}
    for name, says in words.items():
        status, out, err = run("inspect", folder(name))
        check(status == 0 and all(w in out for w in says + ["encoders "]), (name, out, err))
        status, out, err = run("inspect", folder(name), "--json")
        o = json.loads(out)
        check(o["vision"]["kind"] in says[0] + " mllama ViT" and o["memory"]["encoder_weight_bytes"] > 0 and o["memory"]["media_rows"] > 0, (name, o["vision"], o["memory"]))
        check({y["kind"] for y in o["layers"]} <= {"full", "cross" if "mllama" in name else "sliding"}, o["layers"])
        status, out, err = run("inspect", folder(name), "--json", "--disable-media")
        check(json.loads(out)["memory"]["encoder_weight_bytes"] == 0, out)
    for model in (folder("media-gemma3"), os.path.join(TINY, "model-mixed.gguf")):
        status, out, err = run("inspect", model, "--mmproj", os.path.join(folder("media-gemma3"), "mmproj.gguf"))
        check(status == 2 and not out and "mmproj" in err, (model, out, err))


@test
def projectors_that_do_not_fit():
    name = "media-gemma3"
    projector, text = os.path.join(folder(name), "mmproj.gguf"), os.path.join(TINY, "model-mixed.gguf")
    for model, file in ((folder(name), projector), (text, projector), (text, os.path.join(folder(name), "cases.json")), (text, "/no/such.gguf")):
        status, out, err = run("complete", "-m", model, "--mmproj", file, "-p", "a", *SMALL, "-n", "1")
        check(status == 2 and not out and err.splitlines()[-1].startswith("cygnet: ") and "Traceback" not in err, (model, file, status, err))


if __name__ == "__main__":
    try:
        status = main()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    sys.exit(status)
