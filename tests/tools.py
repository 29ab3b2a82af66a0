#!/usr/bin/env python3
"""Tools and forms of answers by random weights, which cannot get anything right by themselves: whatever is asked for must come out all the same.

Every answer is held against its schema by PyPI's jsonschema, and asked for with PyPI's openai; without these packages nothing is tested, with a sentence.
Usage: tests/tools.py [NAME...]     Last line: N passed, N failed
"""
import atexit, concurrent.futures, http.client, json, os, re, shutil, subprocess, sys, tempfile, typing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import *

try:
    import jsonschema, openai, pydantic
except ImportError as e:
    print("left out: tests/tools.py needs the Python packages openai and jsonschema (%s)" % e)
    print("0 passed, 0 failed")
    sys.exit(0)

try:
    import anthropic
except ImportError:
    anthropic = None

GOLDEN = os.path.join(ROOT, "tests", "golden")
TMP = tempfile.mkdtemp(prefix="cygnet-tools-")
atexit.register(shutil.rmtree, TMP, True)


def long_context(name):
    """The tiny model with room for ten tools in its prompt: its vocabulary has a token for each byte and little else."""
    folder = shutil.copytree(os.path.join(GOLDEN, name), os.path.join(TMP, name), ignore=shutil.ignore_patterns("*.gguf", "golden*"), copy_function=shutil.copyfile)
    path = os.path.join(folder, "config.json")
    os.chmod(folder, 0o755)
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config.get("text_config", config)["max_position_embeddings"] = 8192
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


MODELS = [long_context(n) for n in ("gemma4-e-tiny", "gemma3-text-tiny")]
SEEDS = range(10)
ASK = [{"role": "user", "content": "Please do it."}]

# Everything in them has an end that random weights reach before the context does.
NAME = {"type": "string", "maxLength": 12}
SCHEMAS = [
    {"type": "object", "properties": {"city": NAME}, "required": ["city"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -20, "maximum": 1000}, "b": {"type": "boolean"}, "c": {"type": "null"}},
     "required": ["a", "b", "c"], "additionalProperties": False},
    {"type": "object", "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "day": {"type": "string", "pattern": "^(mon|tue|wed)$"}}, "required": ["unit"],
     "additionalProperties": False},
    {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3}}, "required": ["tags"],
     "additionalProperties": False},
    {"type": "object", "properties": {"from": {"$ref": "#/$defs/place"}, "to": {"$ref": "#/$defs/place"}}, "required": ["from", "to"], "additionalProperties": False,
     "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"type": "integer", "minimum": 0, "maximum": 99}},
                         "required": ["x", "y"], "additionalProperties": False}}},
    {"type": "object", "properties": {"value": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string", "maxLength": 4}, {"type": "null"}]}},
     "required": ["value"], "additionalProperties": False},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"date": {"type": "string", "format": "date"}, "const": {"const": {"k": [1, "x"]}}}, "required": ["date", "const"],
     "additionalProperties": False},
    {"type": "object", "properties": {"pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, 2, 3]}], "items": False, "minItems": 2}},
     "required": ["pair"], "additionalProperties": False},
    {"type": "object", "properties": {"deep": {"type": "object", "properties": {"er": {"type": "object", "properties": {"est": {"type": "string", "minLength": 2,
     "maxLength": 3}}, "required": ["est"], "additionalProperties": False}}, "required": ["er"], "additionalProperties": False}}, "required": ["deep"],
     "additionalProperties": False},
]
TOOLS = [{"type": "function", "function": {"name": "tool_%d" % i, "description": "Number %d." % i, "parameters": s}} for i, s in enumerate(SCHEMAS)]
FORMS = SCHEMAS[:6] + [{"enum": [1, "two", None]}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}] + SCHEMAS[8:]


def test(fn):
    """A test with a parameter runs once for each model, and gets a client of its server."""
    def run():
        for path in MODELS:
            with Server("--threads", "2", model=path) as srv:
                try:
                    fn(openai.OpenAI(base_url=srv.url + "/v1", api_key="none", max_retries=0, timeout=300))
                except Exception as e:
                    raise AssertionError("%s: %s: %s" % (os.path.basename(path), type(e).__name__, str(e)[:1500]))
    run.__name__ = fn.__name__
    tests.append(run if fn.__code__.co_argcount else fn)
    return fn


def side_by_side(fn, items):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(fn, items))


class Said:
    """An answer, streamed or not: content, reasoning, calls [(id, name, arguments)], finish."""

    def __init__(self, client, stream, **kw):
        self.content, self.reasoning, calls = "", "", []
        kw = {"model": "any", "messages": ASK, "temperature": 1, **kw}
        if not stream:
            choice = client.chat.completions.create(**kw).choices[0]
            self.content, self.finish = choice.message.content, choice.finish_reason
            self.reasoning = getattr(choice.message, "reasoning_content", None) or ""
            self.calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
            return
        for chunk in client.chat.completions.create(stream=True, **kw):
            for choice in chunk.choices:
                self.finish = choice.finish_reason
                self.content += choice.delta.content or ""
                self.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for c in choice.delta.tool_calls or []:
                    if c.index == len(calls):
                        calls.append([c.id, c.function.name, ""])
                    calls[c.index][2] += c.function.arguments or ""
        self.calls = [tuple(c) for c in calls]


def valid(text, schema, what):
    check("<|" not in what if isinstance(what, str) else True, what)
    try:
        value = json.loads(text)
    except ValueError as e:
        raise AssertionError("%s: %s: %r" % (what, e, text))
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)


def check_calls(said, names, what):
    check(said.calls, "%s: no calls: %r, %s" % (what, said.content, said.finish))
    check(said.finish == "tool_calls" and not said.content, "%s: %s, content %r" % (what, said.finish, said.content))
    check(len({c[0] for c in said.calls}) == len(said.calls) and all(re.fullmatch("call_[0-9a-f]{24}", c[0]) for c in said.calls), said.calls)
    for _, name, arguments in said.calls:
        check(name in names, name)
        valid(arguments, SCHEMAS[int(name.split("_")[1])], "%s: %s" % (what, name))


def ask_all(client, stream):
    def one(case):
        i, seed = case
        said = Said(client, stream, tools=[TOOLS[i]], tool_choice="required", parallel_tool_calls=False, seed=seed)
        check_calls(said, {"tool_%d" % i}, "schema %d, seed %d" % case)
        check(len(said.calls) == 1, said.calls)
    side_by_side(one, [(i, seed) for i in range(len(TOOLS)) for seed in SEEDS])


@test
def required(client):
    ask_all(client, False)


@test
def required_streamed(client):
    ask_all(client, True)


@test
def named(client):
    def one(case):
        i, seed = case
        said = Said(client, seed % 2, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "tool_%d" % i}}, seed=seed, parallel_tool_calls=False)
        check_calls(said, {"tool_%d" % i}, "named %d, seed %d" % case)
        check(len(said.calls) == 1, said.calls)
    side_by_side(one, [(i, seed) for i in range(len(TOOLS)) for seed in range(3)])


@test
def one_call(client):
    def one(seed):
        said = Said(client, seed % 2, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        check_calls(said, {t["function"]["name"] for t in TOOLS}, "seed %d" % seed)
        check(len(said.calls) == 1, said.calls)
    side_by_side(one, range(20))


@test
def none(client):
    def one(seed):
        said = Said(client, seed % 2, tools=TOOLS, tool_choice="none", seed=seed, max_tokens=40)
        check(not said.calls and said.finish in ("stop", "length"), (said.calls, said.finish))
    side_by_side(one, range(20))


def ask_forms(client, stream):
    def one(case):
        i, seed = case
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": FORMS[i]}}
        said = Said(client, stream, response_format=form, seed=seed)
        check(said.finish == "stop", "form %d, seed %d: %s: %r" % (i, seed, said.finish, said.content))
        valid(said.content, FORMS[i], "form %d, seed %d" % case)
    side_by_side(one, [(i, seed) for i in range(len(FORMS)) for seed in SEEDS])


@test
def schemas(client):
    ask_forms(client, False)


@test
def schemas_streamed(client):
    ask_forms(client, True)


@test
def regex(client):
    def one(case):
        pattern, seed = case
        said = Said(client, seed % 2, extra_body={"regex": pattern}, seed=seed)
        check(said.finish == "stop" and re.fullmatch(pattern, said.content), (pattern, said.content, said.finish))
    side_by_side(one, [(p, seed) for p in (r"[a-z]{3,8}", r"\d{4}-\d\d-\d\d", r"(yes|no)( please)?", r"#[0-9a-f]{6}", r"[αβγ]{1,4}") for seed in SEEDS])


@test
def ebnf(client):
    def one(seed):
        said = Said(client, seed % 2, extra_body={"ebnf": 'root ::= item ("," item)?\nitem ::= [a-c] [0-9] | "(" item ")"'}, seed=seed, max_tokens=200)
        check(said.finish == "length" or re.fullmatch(r"[()]*[a-c][0-9][()]*(,[()]*[a-c][0-9][()]*)?", said.content), (said.content, said.finish))
    side_by_side(one, range(10))


@test
def thoughts_before_the_form(client):
    """A model that thinks does so first, for as long as it may; the answer has its form all the same."""
    try:
        client.chat.completions.create(model="any", messages=ASK, max_tokens=1, extra_body={"enable_thinking": True})
    except openai.BadRequestError as e:
        check(e.param == "enable_thinking", e.body)
        return  # this one does not think
    def one(case):
        i, seed = case
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": FORMS[i]}}
        said = Said(client, seed % 2, response_format=form, seed=seed, extra_body={"enable_thinking": True, "thinking_budget": 12})
        check(said.finish == "stop", (said.finish, said.reasoning, said.content))
        valid(said.content, FORMS[i], "form %d, seed %d" % case)
    side_by_side(one, [(i, seed) for i in range(len(FORMS)) for seed in range(3)])


@test
def what_cannot_be_enforced_is_refused(client):
    bad = {"type": "object", "properties": {"a": {"type": "integer", "no_such_keyword_but_contains": 1}}, "if": {}, "then": {"required": ["a"]}}
    for kw in (dict(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": bad}}),
               dict(tools=[{"type": "function", "function": {"name": "f", "parameters": bad}}], tool_choice="required"), dict(extra_body={"regex": "(?=a)b"}),
               dict(extra_body={"ebnf": "root ::= nowhere"})):
        try:
            client.chat.completions.create(model="any", messages=ASK, max_tokens=4, **kw)
            check(False, "no error for %s" % kw)
        except openai.BadRequestError as e:
            check(e.param == (list(kw.get("extra_body", kw))[0]), (kw, e.body))


@test
def other_apis(client):
    """The same through Responses and Anthropic's messages."""
    flat = [{"type": "function", **t["function"]} for t in TOOLS[:3]]
    form = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": FORMS[1]}}
    for stream in (False, True):
        r = client.responses.create(model="any", input="Go.", tools=flat, tool_choice="required", parallel_tool_calls=False, stream=stream)
        r = [e for e in r][-1].response if stream else r
        calls = [o for o in r.output if o.type == "function_call"]
        check(r.status == "completed" and len(calls) == 1, r)
        valid(calls[0].arguments, SCHEMAS[int(calls[0].name.split("_")[1])], "responses")
        r = client.responses.create(model="any", input="Go.", text=form, stream=stream)
        r = [e for e in r][-1].response if stream else r
        valid(r.output_text, FORMS[1], "responses")
    if not anthropic:
        print("left out: Anthropic's messages, without the Python package anthropic")
        return
    c = anthropic.Anthropic(base_url=str(client.base_url).removesuffix("/v1/"), api_key="none", max_retries=0)
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS[:3]]
    kw = dict(model="any", max_tokens=400, messages=ASK, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    whole = c.messages.create(**kw)
    with c.messages.stream(**kw) as events:
        streamed = events.get_final_message()
    for m in (whole, streamed):
        uses = [b for b in m.content if b.type == "tool_use"]
        check(m.stop_reason == "tool_use" and len(uses) == 1, m)
        jsonschema.validate(uses[0].input, SCHEMAS[int(uses[0].name.split("_")[1])])


@test
def a_round_with_a_tool(client):
    """The call goes back with its result, and the conversation goes on; without ids, too."""
    for ids in (True, False):
        first = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS[:2], tool_choice="required", parallel_tool_calls=False, seed=1)
        call = first.choices[0].message.tool_calls[0]
        back = {"type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}, **({"id": call.id} if ids else {})}
        result = {"role": "tool", "content": [{"type": "text", "text": "7"}], **({"tool_call_id": call.id} if ids else {})}
        said = Said(client, False, messages=ASK + [{"role": "assistant", "content": None, "tool_calls": [back]}, result], tools=TOOLS[:2], max_tokens=8)
        check(said.finish in ("stop", "length", "tool_calls"), said.finish)


@test
def openai_helpers(client):
    """Classes in, instances out; a stream put together by the package itself."""
    class Light(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        colour: typing.Literal["red", "green"]
        on: bool

    for seed in range(5):
        a = client.chat.completions.parse(model="any", messages=ASK, response_format=Light, temperature=1, seed=seed)
        check(isinstance(a.choices[0].message.parsed, Light), a)
        kw = dict(model="any", messages=ASK, tools=[openai.pydantic_function_tool(Light)], tool_choice="required", parallel_tool_calls=False, temperature=1, seed=seed)
        whole = client.chat.completions.parse(**kw).choices[0].message.tool_calls
        with client.chat.completions.stream(**kw) as events:
            for _ in events:
                pass
            streamed = events.get_final_completion().choices[0].message.tool_calls
        for calls in (whole, streamed):
            check(len(calls) == 1 and isinstance(calls[0].function.parsed_arguments, Light), calls)
        check(whole[0].function.arguments == streamed[0].function.arguments, (whole, streamed))


@test
def memory_stays_flat():
    """Schemas, tools, streams that are left: after a while nothing grows any more."""
    def resident_kib(pid):
        with open("/proc/%d/status" % pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
    with Server("--threads", "2", model=MODELS[0]) as srv:
        def one(i):
            body = {"messages": ASK, "max_tokens": 30, "temperature": 1, "seed": i, "stream": i % 4 == 0}
            if i % 2:
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORMS[i // 2 % len(FORMS)]}}
            else:
                body.update(tools=[TOOLS[i // 2 % len(TOOLS)]], tool_choice="required")
            if i % 8 == 0:  # looks at the beginning and leaves
                c = http.client.HTTPConnection("127.0.0.1", srv.port, timeout=60)
                c.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
                c.getresponse().read(50)
                c.close()
            else:
                status, _, data = srv.ask("POST", "/v1/chat/completions", body)
                check(status == 200, data)
        side_by_side(one, range(600))
        before = resident_kib(srv.p.pid)
        side_by_side(one, range(600, 1800))
        grown = resident_kib(srv.p.pid) - before
        check(grown < 1200, "%d KiB more after 1200 requests" % grown)


@test
def parse_command():
    """`cygnet parse` on the golden lines."""
    model = MODELS[0]
    check("gemma4" in model, "no Gemma 4 vocabulary")
    with open(os.path.join(GOLDEN, "text", "parse_gemma4.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(l) for l in f]
    lines = [l for l in lines if not l.get("literal")]
    out = subprocess.run([CYGNET, "parse", "-m", model], input="\n".join(json.dumps(l) for l in lines) + "\n", capture_output=True, text=True, env=ENV, timeout=60)
    check(out.returncode == 0, out.stderr)
    for l, got in zip(lines, out.stdout.splitlines(), strict=True):
        want = {k: l[k] for k in ("content", "reasoning_content", "tool_calls", "finish_reason")}
        check(json.loads(got) == want, (l["name"], got, want))
    bad = subprocess.run([CYGNET, "parse", "-m", model], input='{"chunks":5}\n{"chunks":["a"]}\nx\n', capture_output=True, text=True, env=ENV, timeout=60)
    got = [json.loads(l) for l in bad.stdout.splitlines()]
    check(bad.returncode == 2 and "chunks" in got[0]["error"] and got[1]["content"] == "a" and "error" in got[2], (bad.returncode, bad.stdout))


sys.exit(main())
