#!/usr/bin/env python3
"""Programs that people have: PyPI's openai (also async) and anthropic, curl, and the request shapes of SGLang's bench_serving.

Usage: tests/clients.py [NAME...]; the two packages are looked for in this Python, tests that need one are left out with a sentence when it is missing.
Last line: N passed, N failed
"""
import asyncio, json, os, socket, subprocess, sys, threading, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import *
from vocabulary import with_words

try:
    import openai
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None


def needs(package, name):
    def wrap(fn):
        if package is None:
            print("left out: %s needs the Python package %s" % (fn.__name__, name))
        else:
            tests.append(fn)
        return fn
    return wrap


def client(srv, **kw):
    return openai.OpenAI(base_url=srv.url + "/v1", api_key="none", max_retries=0, **kw)


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]


SEES, HEARS = with_words("media-gemma3"), with_words("media-gemma4-e2b")


def file_base64(folder, name):
    import base64
    with open(os.path.join(folder, name), "rb") as f:
        return base64.b64encode(f.read()).decode()


@needs(openai, "openai")
def openai_pictures_and_sound():
    data = file_base64(SEES, "a.rgb.png")
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data, "detail": "high"}}
    with Server("--ctx", "1024", model=SEES) as srv:
        c = client(srv)
        a = c.chat.completions.create(model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}], max_completion_tokens=4, temperature=0)
        check(a.usage.prompt_tokens >= 9 and getattr(a.usage.prompt_tokens_details, "image_tokens") == 9, a.usage)
        r = c.responses.create(model="m", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + data, "detail": "auto"}]}], max_output_tokens=4,
                               temperature=0)
        check(r.usage.input_tokens >= 9 and isinstance(r.output_text, str), r)
        try:
            c.chat.completions.create(model="m", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])
            check(False, "a damaged picture")
        except openai.BadRequestError as e:
            check(e.code == "invalid_image" and "messages[0].content[0]" in e.message, e)
    with Server("--ctx", "1024", model=HEARS) as srv:
        c = client(srv)
        path = os.path.join(HEARS, "a.pcm16.wav")
        sound = {"type": "input_audio", "input_audio": {"data": file_base64(HEARS, "a.pcm16.wav"), "format": "wav"}}
        a = c.chat.completions.create(model="m", messages=[{"role": "user", "content": [sound]}], max_completion_tokens=4)
        check(a.usage.prompt_tokens_details.audio_tokens > 0, a.usage)
        with open(path, "rb") as f:
            check(isinstance(c.audio.transcriptions.create(model="m", file=f).text, str), "transcription")
        with open(path, "rb") as f:
            v = c.audio.transcriptions.create(model="m", file=f, response_format="verbose_json", language="en", timestamp_granularities=["segment"])
            check(v.duration > 0 and len(v.segments) == 1, v)
        with open(path, "rb") as f:
            kinds = [e.type for e in c.audio.transcriptions.create(model="m", file=f, stream=True)]
            check(kinds[-1] == "transcript.text.done", kinds)


@needs(anthropic, "anthropic")
def anthropic_pictures():
    source = {"type": "base64", "media_type": "image/png", "data": file_base64(SEES, "a.rgb.png")}
    with Server("--ctx", "1024", model=SEES) as srv:
        c = anthropic.Anthropic(base_url=srv.url, api_key="none", max_retries=0)
        messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]}]
        m = c.messages.create(model="m", max_tokens=4, messages=messages)
        check(m.usage.input_tokens + m.usage.cache_read_input_tokens >= 9, m.usage)
        check(c.messages.count_tokens(model="m", messages=messages).input_tokens >= 9, "count")


@needs(openai, "openai")
def openai_chat_and_completions():
    with Server() as srv:
        c = client(srv)
        name = c.models.list().data[0].id
        check(c.models.retrieve(name).id == name, name)
        a = c.chat.completions.create(model=name, messages=CHAT, max_completion_tokens=6, temperature=0, logprobs=True, top_logprobs=3, seed=1)
        m = a.choices[0]
        check(m.message.role == "assistant" and isinstance(m.message.content, str) and m.finish_reason in ("stop", "length"), a)
        check(a.usage.completion_tokens <= 6 and a.usage.prompt_tokens_details.cached_tokens >= 0, a.usage)
        check(all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in m.logprobs.content), m.logprobs)
        again = c.chat.completions.create(model=name, messages=CHAT, max_completion_tokens=6, temperature=0)
        check(again.choices[0].message.content == m.message.content, "same question, same answer")
        check(again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 1, again.usage)
        text, usage = "", None
        for chunk in c.chat.completions.create(model=name, messages=CHAT, max_completion_tokens=6, temperature=0, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        check(text == m.message.content and usage.total_tokens == a.usage.total_tokens, (text, usage))
        b = c.completions.create(model=name, prompt=["one two", "three"], max_tokens=4, temperature=0, n=1, logprobs=2, extra_body={"ignore_eos": True})
        check(len(b.choices) == 2 and b.usage.completion_tokens == 8 and len(b.choices[0].logprobs.tokens) == 4, b)
        e = c.completions.create(model=name, prompt="one two", max_tokens=1, echo=True, logprobs=1, temperature=0)
        lp = e.choices[0].logprobs
        check(lp.token_logprobs[0] is None and len(lp.tokens) == e.usage.prompt_tokens + e.usage.completion_tokens, lp)
        several = c.chat.completions.create(model=name, messages=CHAT, max_tokens=5, n=3, temperature=1, seed=7, extra_body={"ignore_eos": True})
        check(sorted(x.index for x in several.choices) == [0, 1, 2] and len({x.message.content for x in several.choices}) > 1, several)


@needs(openai, "openai")
def openai_errors():
    with Server("--api-key", "sesame") as srv:
        try:
            client(srv).models.list()
            check(False, "no error without the key")
        except openai.AuthenticationError:
            pass
        c = openai.OpenAI(base_url=srv.url + "/v1", api_key="sesame", max_retries=0)
        name = c.models.list().data[0].id
        for bad in (dict(temperature=-1), dict(max_tokens=0), dict(top_p=1.5), dict(n=0), dict(logit_bias={"99999999": 1})):
            try:
                c.chat.completions.create(model=name, messages=CHAT, **bad)
                check(False, "no error for %s" % bad)
            except openai.BadRequestError as e:
                check(e.param == list(bad)[0] and e.code, (bad, e.body))
        try:
            c.completions.create(model=name, prompt=[5] * 100000)
            check(False, "no error for a long prompt")
        except openai.BadRequestError as e:
            check(e.code == "context_length_exceeded", e.body)
        try:
            c.models.retrieve("no-such-model")
            check(False, "no error for an unknown model")
        except openai.NotFoundError:
            pass


@needs(openai, "openai")
def openai_async_many():
    async def run(url):
        c = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

        async def one(i):
            text = ""
            stream = await c.chat.completions.create(model="any", messages=[{"role": "user", "content": "Number %d" % (i % 4)}], max_tokens=12, temperature=0,
                                                     stream=True, extra_body={"ignore_eos": True})
            async for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            return i % 4, text
        got = await asyncio.gather(*(one(i) for i in range(24)))
        return {k: {t for n, t in got if n == k} for k in range(4)}
    with Server() as srv:
        by = asyncio.run(run(srv.url))
        check(all(len(v) == 1 for v in by.values()), by)


@needs(openai, "openai")
def openai_responses():
    with Server() as srv:
        c = client(srv)
        r = c.responses.create(model="any", instructions="Be brief.", input="Name a colour.", max_output_tokens=6, temperature=0)
        check(r.object == "response" and r.output[0].type == "message" and isinstance(r.output_text, str), r)
        text = ""
        with c.responses.stream(model="any", instructions="Be brief.", input="Name a colour.", max_output_tokens=6, temperature=0) as s:
            for ev in s:
                if ev.type == "response.output_text.delta":
                    text += ev.delta
        check(text == r.output_text, (text, r.output_text))


@needs(openai, "openai")
def openai_stream_given_up():
    """The client leaves in the middle: the work stops, and nobody else's."""
    with Server() as srv:
        c = client(srv)
        other = []
        t = threading.Thread(target=lambda: other.append(c.completions.create(model="any", prompt="one two three", max_tokens=60, temperature=0, extra_body={"ignore_eos": True})))
        s = c.completions.create(model="any", prompt="some words", max_tokens=400, stream=True, extra_body={"ignore_eos": True})
        next(iter(s))
        t.start()
        s.close()
        wait_until("one running request less", lambda: json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]["n_running"] <= 1, 5)
        t.join()
        check(other[0].usage.completion_tokens == 60, other)
        wait_until("nothing running", lambda: json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]["n_running"] == 0, 2)


@needs(anthropic, "anthropic")
def anthropic_messages():
    with Server("--api-key", "sesame") as srv:
        c = anthropic.Anthropic(base_url=srv.url, api_key="sesame", max_retries=0)
        ask_it = dict(model="any", max_tokens=6, system="Be brief.", messages=[{"role": "user", "content": "Name a colour."}])
        m = c.messages.create(**ask_it, extra_body={"temperature": 0})
        check(m.type == "message" and m.content[0].type == "text" and m.stop_reason in ("end_turn", "max_tokens"), m)
        check(m.usage.output_tokens <= 6 and m.usage.input_tokens >= 0, m.usage)
        with c.messages.stream(**ask_it, extra_body={"temperature": 0}) as s:
            text = "".join(s.text_stream)
            final = s.get_final_message()
        check(text == m.content[0].text and final.stop_reason == m.stop_reason, (text, m))
        check(c.messages.count_tokens(model="any", messages=ask_it["messages"]).input_tokens > 0, "count")
        try:
            c.messages.create(model="any", max_tokens=0, messages=ask_it["messages"])
            check(False, "no error for max_tokens 0")
        except anthropic.BadRequestError as e:
            check("max_tokens" in str(e), e)


@test
def curl():
    with Server() as srv:
        def run(*args):
            return subprocess.run(["curl", "-sS", "-m", "30", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p = run(srv.url + "/v1/completions", "-H", "content-type: application/json", "-d", '{"prompt": "one two", "max_tokens": 3, "ignore_eos": true}')
        check(json.loads(p.stdout)["usage"]["completion_tokens"] == 3, p)
        p = run("-N", srv.url + "/v1/chat/completions", "-H", "content-type: application/json", "-d", json.dumps({"messages": CHAT, "max_tokens": 3, "stream": True}))
        check(sse(p.stdout)[-1] == "[DONE]", p)
        big = json.dumps({"messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 1})
        p = run("-H", "Expect: 100-continue", "-H", "content-type: application/json", "--data-binary", big, srv.url + "/v1/chat/completions")
        check(b"chat.completion" in p.stdout, p)
        p = run("-H", "Transfer-Encoding: chunked", "-H", "content-type: application/json", "--data-binary", big, srv.url + "/v1/chat/completions")
        check(b"chat.completion" in p.stdout, p)
        p = run("-d", "{}", srv.url + "/v1/chat/completions")
        check(json.loads(p.stdout)["error"]["message"], p)
        p = run("-o", "/dev/null", "-w", "%{http_code}", srv.url + "/health")
        check(p.stdout == b"200", p)


@test
def bench_serving_native():
    """What sglang.bench_serving sends to a backend of the same name, and what it reads from the answer."""
    with Server() as srv:
        for prompt in ("one two three", [5, 6, 7, 8]):
            body = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": {"temperature": 0.0, "max_new_tokens": 9, "ignore_eos": True},
                    "stream": True, "lora_path": None, "return_logprob": False, "logprob_start_len": -1}
            status, _, data = srv.ask("POST", "/generate", body)
            lines = sse(data)
            check(status == 200 and lines[-1] == "[DONE]", data)
            seen = 0
            for line in lines[:-1]:
                o = json.loads(line)
                n = o["meta_info"]["completion_tokens"]
                check(n >= seen and isinstance(o["text"], str), o)
                seen = n
            check(seen == 9 and o["meta_info"]["finish_reason"] == {"type": "length", "length": 9}, o)
            whole = json.loads(srv.ask("POST", "/generate", dict(body, stream=False))[2])
            check(whole["text"] == o["text"] and whole["meta_info"]["cached_tokens"] > 0, (whole, o))
        for target in ("/get_server_info", "/server_info", "/get_model_info", "/v1/models"):
            check(srv.ask("GET", target)[0] == 200, target)
        check(srv.ask("POST", "/flush_cache")[0] == 200, "flush")


@test
def bench_serving_openai():
    with Server() as srv:
        body = {"model": "any", "prompt": "one two three", "temperature": 0.0, "best_of": 1, "max_tokens": 9, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}}
        status, _, data = srv.ask("POST", "/v1/completions", body)
        o = [json.loads(l) for l in sse(data)[:-1]]
        check(status == 200 and o[-1]["usage"]["completion_tokens"] == 9, data)
        body = {"model": "any", "messages": [{"role": "user", "content": [{"type": "text", "text": "one two"}]}], "temperature": 0.0, "max_completion_tokens": 9,
                "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        status, _, data = srv.ask("POST", "/v1/chat/completions", body)
        o = [json.loads(l) for l in sse(data)[:-1]]
        check(status == 200 and o[-1]["usage"]["completion_tokens"] == 9, data)


@needs(openai, "openai")
def openai_helpers():
    """The raw response, the streaming helper, choices that stream side by side, a client that gives up, tasks that are cancelled."""
    with Server() as srv:
        c = client(srv)
        ask_it = dict(model="any", messages=CHAT, max_tokens=60, temperature=0, stop=["a"], logprobs=True, top_logprobs=2)
        raw = c.chat.completions.with_raw_response.create(**ask_it)
        whole = raw.parse()
        check(raw.headers["x-request-id"], dict(raw.headers))
        with getattr(c.chat.completions, "stream", c.beta.chat.completions.stream)(**ask_it, stream_options={"include_usage": True}) as s:
            for _ in s:
                pass
            final = s.get_final_completion()
        a, b = final.choices[0], whole.choices[0]
        check((a.message.content, a.finish_reason, final.usage.completion_tokens) == (b.message.content, b.finish_reason, whole.usage.completion_tokens), (a, b))
        check([(t.token, t.logprob, t.bytes) for t in a.logprobs.content] == [(t.token, t.logprob, t.bytes) for t in b.logprobs.content], (a, b))
        several = dict(model="any", messages=CHAT, max_tokens=6, n=4, temperature=1, seed=7, extra_body={"ignore_eos": True})
        texts = [x.message.content for x in sorted(c.chat.completions.create(**several).choices, key=lambda x: x.index)]
        streamed = [""] * 4
        for chunk in c.chat.completions.create(stream=True, **several):
            for x in chunk.choices:
                streamed[x.index] += x.delta.content or ""
        check(streamed == texts, (streamed, texts))

        async def cancelled():
            a = openai.AsyncOpenAI(base_url=srv.url + "/v1", api_key="none", max_retries=0)

            async def one(stream):
                r = await a.chat.completions.create(model="any", messages=CHAT, max_tokens=900, stream=stream, extra_body={"ignore_eos": True})
                if stream:
                    async for _ in r:
                        pass
            tasks = [asyncio.create_task(one(i % 2 == 0)) for i in range(8)]
            await asyncio.sleep(0.2)
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await a.close()
        asyncio.run(cancelled())
        wait_until("nothing running", lambda: running(srv) == (0, 0), 2)
        try:
            client(srv, timeout=0.05).chat.completions.create(model="any", messages=CHAT, max_tokens=900, extra_body={"ignore_eos": True})
        except openai.APITimeoutError:
            pass
        wait_until("nothing running", lambda: running(srv) == (0, 0), 2)


@test
def lm_eval_scores():
    """The requests of lm_eval's local-completions, and its reading of them: equal to what the native route says of the same tokens."""
    with Server() as srv:
        def post(target, body):
            status, _, data = srv.ask("POST", target, body)
            check(status == 200, data)
            return json.loads(data)
        pairs = [(post("/tokenize", {"prompt": a})["tokens"], post("/tokenize", {"prompt": a + b})["tokens"]) for a, b in (("one two", " three"), ("x", " y"), ("\u00e9", " \U0001f600 z"))]
        body = {"model": "any", "prompt": [w for _, w in pairs], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        for choice, (context, ids) in zip(sorted(post("/v1/completions", body)["choices"], key=lambda x: x["index"]), pairs):
            lp = choice["logprobs"]
            check({len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {len(ids) + 1}, lp)
            score = lp["token_logprobs"][len(context):-1]
            greedy = all(t == max(top.values()) for t, top in zip(score, lp["top_logprobs"][len(context):-1]))
            native = post("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": len(context)})
            native = native[0] if isinstance(native, list) else native
            check(max(abs(a - b[0]) for a, b in zip(score, native["meta_info"]["input_token_logprobs"])) < 1e-5, (score, native))
            best = post("/generate", {"input_ids": context, "sampling_params": {"temperature": 0, "max_new_tokens": len(ids) - len(context), "ignore_eos": True}})
            best = best[0] if isinstance(best, list) else best
            check(greedy == (best["output_ids"] == ids[len(context):]), (greedy, best))
            alone = post("/v1/completions", dict(body, prompt=ids, max_tokens=0))["choices"][0]["logprobs"]
            check(alone["token_logprobs"] == lp["token_logprobs"][:-1], (alone, lp))


@test
def first_token_is_the_stop():
    with Server() as srv:
        newline = json.loads(srv.ask("POST", "/tokenize", {"prompt": "\n", "add_special_tokens": False})[2])["tokens"]
        check(len(newline) == 1, newline)
        for stream in (False, True):
            body = {"prompt": "one", "max_tokens": 5, "logit_bias": {str(newline[0]): 100}, "stop": "\n", "logprobs": 5, "stream": stream}
            status, _, data = srv.ask("POST", "/v1/completions", body)
            got = [json.loads(l) for l in sse(data)[:-1]] if stream else [json.loads(data)]
            check(status == 200 and "".join(x["choices"][0]["text"] for x in got) == "" and got[-1]["choices"][0]["finish_reason"] == "stop", data)
            for x in got:
                lp = x["choices"][0]["logprobs"]
                check(not lp or len({len(v) for v in lp.values()}) == 1, lp)


def running(srv):
    state = json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]
    return state["n_running"], state["n_waiting"]


@test
def leaves_in_each_phase():
    """The sample model: who leaves the queue, a prompt of 16k tokens or its answer, is gone within a second; alone and beside such a prompt."""
    if not os.path.exists(SAMPLE):
        print("left out: leaves_in_each_phase needs the sample model")
        return
    with Server("--ctx", "17000", "--max-running-requests", "3", model=SAMPLE) as srv:
        made = [0]

        def send(n, stream, more=10000):
            made[0] += 1
            ids = [2] + [1000 + (made[0] * 7919 + i * 31) % 100000 for i in range(n)]
            body = json.dumps({"input_ids": ids, "stream": stream, "sampling_params": {"max_new_tokens": more, "ignore_eos": True}}).encode()
            s = socket.create_connection(("127.0.0.1", srv.port))
            s.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return s
        longest = 0
        for phase, beside in (("queue", 0), ("prompt", 0), ("answer", 0), ("answer", 1)):
            took = 9
            for attempt in range(3):  # the machine may be busy with something else
                stream = attempt % 2 == 0
                others = [send(16000, True)] if beside else []
                if phase == "queue":
                    others += [send(3, True) for _ in range(3)]
                n = len(others)
                wait_until("the others", lambda: running(srv) == (n, 0), 30)
                one = send(16000 if phase == "prompt" else 3, stream, 500)
                wait_until("one more", lambda: running(srv) == ((n, 1) if phase == "queue" else (n + 1, 0)), 30)
                time.sleep(0.3)
                start = time.time()
                one.close()
                wait_until("it is gone", lambda: running(srv) == (n, 0), 30)
                took = min(took, time.time() - start)
                for s in others:
                    s.close()
                wait_until("all are gone", lambda: running(srv) == (0, 0), 30)
                if took < 1:
                    break
            longest = max(longest, took)
            check(took < 1, "%s, beside %d: gone after %.2f s" % (phase, beside, took))
        used = json.loads(srv.ask("GET", "/server_info")[2])["internal_states"][0]
        check(used["full_used_tokens"] + used["swa_used_tokens"] == 0, used)
        print("  gone after %.2f s at most" % longest)


@test
def the_same_180_times():
    """180 equal prompts, 128 at a time, one greedy answer."""
    with Server("--max-running-requests", "128") as srv:
        texts, left = [], list(range(180))

        def one():
            while left:
                try:
                    left.pop()
                except IndexError:
                    return
                o = json.loads(srv.ask("POST", "/generate", {"text": "The quick brown fox", "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}})[2])
                texts.append(o["text"])
        threads = [threading.Thread(target=one) for _ in range(128)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        check(len(texts) == 180 and len(set(texts)) == 1, set(texts))


if __name__ == "__main__":
    sys.exit(main())
