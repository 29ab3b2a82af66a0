#!/usr/bin/env python3
"""The documents against the program: links, names of options, fields, routes, metrics, targets and files; the generated pages; and every shell command, which
is run, or stands in NOT_RUN with the reason.

A document is run from its top to its end in a folder of its own. There `cygnet` is the program, and the names of models, pictures and sounds that the
documents use are small ones (STAND_INS); ports are free ones; a line that begins with `cygnet serve` goes on in the background until the next one.

Standard library only; needs the sample model. Usage: tests/docs.py [NAME...]   last line: N passed, N failed
"""
import glob, posixpath, shutil, struct, tempfile, threading

from serving import *
from vocabulary import with_words

TMP = tempfile.mkdtemp(prefix="cygnet-docs-")
GOLDEN = os.path.join(ROOT, "tests", "golden")
COMMANDS = ("serve", "chat", "complete", "logits", "tokenize", "render", "parse", "preprocess", "bench", "eval", "pull", "inspect")

# ---- documents -----------------------------------------------------------------------------------------------------------------------


def documents():
    names = ["README.md", "CONTRIBUTING.md"]
    for folder, _, files in os.walk(os.path.join(ROOT, "docs")):
        names += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files if f.endswith(".md")]
    return sorted(names)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def blocks(text):
    """(language, lines) of fenced blocks; language "" for none, and for those that are indented by four blanks behind an empty line."""
    found, lines, i = [], text.split("\n"), 0
    while i < len(lines):
        fence = re.match(r"```(\w*)\s*$", lines[i])
        if fence:
            end = next((k for k in range(i + 1, len(lines)) if lines[k].startswith("```")), len(lines))
            check(end < len(lines), "a fence is not closed: line %d" % (i + 1))
            found.append((fence.group(1), lines[i + 1:end]))
            i = end + 1
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()) and lines[i].strip():
            end = next((k for k in range(i, len(lines)) if lines[k].strip() and not lines[k].startswith("    ")), len(lines))
            found.append(("", [l[4:] for l in lines[i:end]]))
            i = end
        else:
            i += 1
    return found


def prose(text):
    """The text without its blocks."""
    out, fenced = [], False
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            out.append(line)
    return "\n".join(out)


def spans(text):
    return re.findall(r"`([^`\n]+)`", prose(text))


PROGRAMS = "cygnet build/cygnet ./demo.sh ./test.sh make curl sudo apt-get python3 pip venv/bin/pip venv/bin/python tools/\\S+ bench/\\S+ haproxy nginx systemctl journalctl install openssl numactl source git cat printf echo".split()
COMMAND = re.compile(r"(?:\w+=\S* )*(?:%s)(?: |$)" % "|".join(p.replace(".", r"\.") for p in PROGRAMS))


def is_complete(text):
    if text.endswith("\\"):
        return False
    if re.search(r"<<'?(\w+)'?", text):
        word = re.search(r"<<'?(\w+)'?", text).group(1)
        return text.split("\n")[-1] == word
    return subprocess.run(["bash", "-n", "-c", text], stderr=subprocess.DEVNULL).returncode == 0


def logical_lines(lines):
    """Lines put together as the shell would."""
    out, now = [], ""
    for line in lines:
        now = now + "\n" + line if now else line
        if not now.strip() or now.lstrip().startswith("#"):
            now = ""
        elif is_complete(now):
            out.append(now.strip())
            now = ""
    check(not now, "a command that does not end: " + now)
    return out


def shell_lines(name):
    """Every command of a document: all lines of blocks of the language sh; of those of no language the lines that begin with a program's name."""
    out = []
    for language, lines in blocks(read(name)):
        if language in ("sh", "bash"):
            out += logical_lines(lines)
        elif language == "":
            out += [l.strip() for l in lines if COMMAND.match(l.strip())]
    return out


# ---- links ----------------------------------------------------------------------------------------------------------------------------


def anchor(heading):
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(text):
    return {anchor(h) for h in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)}


def links(name):
    """(target document or file, anchor) of every link within the tree."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(name))):
        if re.match(r"\w+:", target):
            continue
        path, _, part = target.partition("#")
        yield (posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name), part


@test
def links_lead_somewhere():
    n = 0
    for name in documents():
        for path, part in links(name):
            check(os.path.exists(os.path.join(ROOT, path)), "%s: there is no %s" % (name, path))
            check(not part or part in anchors(read(path)), "%s: %s has no heading #%s, but %s" % (name, path, part, sorted(anchors(read(path))) if path.endswith(".md") else ""))
            n += 1
    check(n > 100, n)


@test
def everything_is_two_clicks_away():
    near = {p for p, _ in links("README.md")}
    far = near | {p for name in near if name.endswith(".md") for p, _ in links(name)} | {"README.md"}
    check(set(documents()) <= far, sorted(set(documents()) - far))


# ---- generated pages ---------------------------------------------------------------------------------------------------------------------


def cygnet(*args):
    p = subprocess.run([CYGNET, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, timeout=60)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


@test
def reference_is_what_the_program_says():
    status, page, err = cygnet("help", "--markdown")
    check(status == 0 and not err, err)
    check(page == read("docs/reference.md"), "docs/reference.md is older than the program: make man")
    for command in COMMANDS:
        check("### cygnet %s\n" % command in page, command)


def man_pages():
    return {"cygnet.1": ("help", "--man"), **{"cygnet-%s.1" % c: ("help", "--man", c) for c in COMMANDS}}


@test
def man_pages_are_what_the_program_says():
    for file, args in man_pages().items():
        status, page, err = cygnet(*args)
        check(status == 0 and page == read("man/" + file), "man/%s is older than the program: make man" % file)
    check(set(os.listdir(os.path.join(ROOT, "man"))) == set(man_pages()), sorted(os.listdir(os.path.join(ROOT, "man"))))


@test
def man_pages_are_well_formed():
    checked = 0
    for tool in (["mandoc", "-T", "lint", "-W", "all"], ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]):
        if not shutil.which(tool[0]):
            print("left out: man pages by %s, which is not here" % tool[0])
            continue
        for file in man_pages():
            p = subprocess.run([*tool, os.path.join(ROOT, "man", file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, LC_ALL="C.UTF-8"))
            said = (p.stderr if tool[0] == "man" else p.stdout + p.stderr).decode()
            check(p.returncode == 0 and not said.strip(), (tool[0], file, said[:500]))
            checked += 1
    # what no tool says: each option and each example is there, as it is typed
    for command in COMMANDS:
        page, text = cygnet(command, "--help")[1], re.sub(r"\\f[BIR]", "", read("man/cygnet-%s.1" % command)).replace("\\-", "-").replace("\\e", "\\")
        for option in re.findall(r"^  (?:-\w,|   ) (--[a-z0-9-]+)", page, re.M):
            check(option in text, (command, option))
        for example in examples(page):
            check(example in text, (command, example))


def examples(page):
    return re.findall(r"^  (\S.*)$", page.partition("\nExamples\n")[2].partition("\n\n")[0], re.M)


@test
def help_pages_teach():
    for command in COMMANDS:
        status, page, err = cygnet(command, "--help")
        check(status == 0 and page == cygnet("help", command)[1] and not err, command)
        check(page.startswith("cygnet %s " % command) and len(examples(page)) >= 1, page[:500])
        wide = [l for l in page.split("\n")[1:] if len(l) > 100 and l.strip() not in examples(page)]
        check(not wide and all(len(l) <= 110 for l in page.split("\n")), (command, wide))
        for line in examples(page):
            check("cygnet %s" % command in line, (command, line))
    overview = cygnet("--help")[1]
    check(all(re.search(r"^  %s +\w" % c, overview, re.M) for c in COMMANDS) and cygnet("help")[1] == overview, overview)
    for args in (("nothing",), ("serve", "chat"), ("--man", "--markdown"), ("serve", "--markdown"), ("--html",)):
        status, out, err = cygnet("help", *args)
        check(status == 2 and not out and err.startswith("cygnet: ") and "usage: cygnet help" in err, (args, status, out, err))


# ---- names -------------------------------------------------------------------------------------------------------------------------------


def options_of(command):
    page = cygnet(command, "--help")[1]
    rows = re.findall(r"^  (?:(-\w),|   ) (--[a-z0-9-]+(?:, --[a-z0-9-]+)*)(?: |$)", page, re.M)
    return {o for letter, names in rows for o in [letter, *names.split(", ")] if o}


OPTIONS = {}
OTHERS = {"--version", "--markdown", "--man", "--cpunodebind", "--membind", "--health-check-interval-secs"}  # not of a command, or another program's


def all_options():
    if not OPTIONS:
        OPTIONS.update({c: options_of(c) for c in COMMANDS})
    return OPTIONS


@test
def options_exist():
    """Those of command lines belong to their command, those of the text to any; so does each CYGNET_ variable."""
    every, n = set().union(*all_options().values()), 0
    others = set(OTHERS)
    for _, text in sources("bench", "tools", "packaging", "deploy", ends=(".py", ".sh", ".c", ".cfg", ".mk", ".service")):  # options of our tools, and of what they run
        others.update(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
    for name in documents():
        for line in shell_lines(name):
            for command, rest in re.findall(r"(?:^|(?<!-u)[\s/|(])cygnet (\w+)((?:[^|;&'\n]|'[^']*')*)", line.replace("\\\n", " ")):
                if command not in COMMANDS:
                    check(command == "help", (name, line))
                    continue
                for option in re.findall(r"(?:^|\s)(--[a-z][a-z0-9-]*|-[a-z])(?=[\s=]|$)", re.sub(r"'[^']*'", "''", rest)):
                    check(option in all_options()[command], "%s: cygnet %s has no option %s: %s" % (name, command, option, line))
                    n += 1
        for span in spans(read(name)):
            for option in re.findall(r"(?:^|[\s(])(--[a-z][a-z0-9-]+)", span):
                check(option in every or option in others, "%s: no command has the option %s" % (name, option))
                n += 1
        for variable in re.findall(r"\bCYGNET_[A-Z_]+\b", read(name)):
            option = "--" + variable[7:].lower().replace("_", "-")
            check(option in every or variable in known_variables(), "%s: nothing reads %s" % (name, variable))
    check(n > 200, n)


def sources(*folders, ends=(".c", ".h")):
    for top in folders:
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for f in files:
                if f.endswith(ends):
                    with open(os.path.join(folder, f), encoding="utf-8", errors="replace") as s:
                        yield os.path.join(folder, f), s.read()


def known_variables():
    """Of the sources, the tests and the build, beside options."""
    if not VARIABLES:
        for _, text in sources("src", "tests", "tools", "include", ends=(".c", ".h", ".py", ".sh")):
            VARIABLES.update(re.findall(r"\bCYGNET_[A-Z_]+\b", text))
        VARIABLES.update(re.findall(r"\bCYGNET_[A-Z_]+\b", read("Makefile")))
    return VARIABLES


VARIABLES = set()


@test
def files_and_targets_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.M)) | {t for l in re.findall(r"^\.PHONY: (.*)$", read("Makefile"), re.M) for t in l.split()}
    for include in re.findall(r"^-?include (\S+\.mk)$", read("Makefile"), re.M):
        targets |= set(re.findall(r"^([a-z][a-z-]*):", read(include), re.M))
    rooms = re.search(r"^ROOMS := (.*)$", read("Makefile"), re.M).group(1).split()
    n = 0
    for name in documents():
        for text in spans(read(name)) + shell_lines(name):
            line = re.match(r"(?:\w+=\S+ )*(?:sudo )?make (.*)", text)
            if line:
                words = re.sub(r"[A-Z]+=(?:\"[^\"]*\"|\S+)", "", line.group(1).partition("  ")[0].partition("#")[0]).split()  # what stands behind two blanks explains
                for word in [w for w in words if re.fullmatch(r"[a-z][a-z-]*", w)]:
                    check(word in targets, "%s: make has no target %s: %s" % (name, word, text))
                    n += 1
        for span in spans(read(name)):
            path = re.match(r"(?:\./)?((?:src|tests|tools|deploy|bench|fuzz|docs|include|examples|packaging|man)/[\w./*-]+)", span)
            if path and not re.search(r"\b(ROOM|NAME)\b|NAME\.", path.group(1)):
                check(glob.glob(os.path.join(ROOT, path.group(1))) or os.path.exists(os.path.join(ROOT, path.group(1) + ".c")), "%s: there is no %s" % (name, path.group(1)))
                n += 1
            room = re.match(r"((?:%s)/(?:ascend/)?\w+\.[ch])$" % "|".join(rooms), span)
            if room:
                check(any(os.path.exists(os.path.join(ROOT, top, room.group(1))) for top in ("src", "tests")), "%s: there is no src/%s" % (name, room.group(1)))
                n += 1
    check(n > 100, n)


@test
def routes_exist():
    """Paths of api.md are routes, and each route is in api.md or in one of its neighbours."""
    routes = set(re.findall(r"^\| [A-Z, ]+ \| `([^`]+)` \|", read("docs/reference.md").partition("## Routes")[2].partition("\n## ")[0], re.M))
    check(len(routes) > 20, routes)
    api = set()
    for span in spans(read("docs/api.md")):
        for path in re.findall(r"(?:^|\s)(/[a-z0-9_/-]*)", span):
            api.add(path)
    extra = {"/v1/models/", "/", "/v1"}
    for path in api - extra:
        check(path in routes, "api.md: there is no route " + path)
    told = api | {"/v1" + p for p in api}  # "also under /v1"
    check(routes - extra <= told, "not in api.md: %s" % sorted(routes - extra - told))


# ---- metrics -----------------------------------------------------------------------------------------------------------------------------


@test
def metrics_are_those_of_a_server():
    """Of a model that sees and hears, after a few requests: all names and types of the reference, and no others; and documents name no others."""
    table = dict(re.findall(r"^\| `([a-z]+:\w+)` \| (\w+) \|", read("docs/reference.md"), re.M))
    with Server("--ctx", "1024", "--max-running-requests", "2", "--threads", "1", model=with_words("media-gemma4-e2b")) as srv:
        srv.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
        srv.ask("POST", "/v1/completions", {})
        page = srv.ask("GET", "/metrics")[2].decode()
    served = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.M))
    check(served == table and len(table) > 60, sorted(set(served.items()) ^ set(table.items())))
    samples = {m for m in re.findall(r"^([a-z]+:\w+)", page, re.M)}
    for name in documents():
        for metric in re.findall(r"\b((?:sglang|cygnet):[a-z]\w+)", read(name)):
            check(metric in served or metric in samples, "%s: the server has no metric %s" % (name, metric))


# ---- fields of requests -----------------------------------------------------------------------------------------------------------------

# arrays of names of fields in src/server; others there hold values
FIELD_ARRAYS = {"unsupported", "unsupported_sampling", "conversations", "own_fields", "others", "stored", "refused", "fields", "item_fields", "chat_only"}
# where api.md tells of what a file reads
CONVERSATIONS = ["OpenAI: fields", "Pictures and sound", "Tools", "The form of an answer", "Thinking"]
SECTIONS = {"native.c": ["SGLang: `/generate`"], "responses.c": ["Responses"], "anthropic.c": ["Anthropic"], "transcribe.c": ["Transcriptions"], "control.c": ["Operations"],
            "ops.c": ["Operations"], "tokens.c": CONVERSATIONS, "translate.c": CONVERSATIONS + ["SGLang: `/generate`"]}
INNER = {"place"}  # names that the program gives itself


def words_of(text):
    out = set()
    for span in re.findall(r"`([^`]+)`", text):
        out |= set(re.findall(r"[A-Za-z_]\w*", span))
    return out


@test
def fields_of_the_sources_are_documented():
    api, n = read("docs/api.md"), 0
    for path, text in sources("src/server"):
        places = SECTIONS.get(os.path.basename(path), CONVERSATIONS)
        known = words_of("".join(section(api, title) for title in places) + (api.partition("\n## ")[0] if path.endswith("tokens.c") else ""))
        names = set(re.findall(r'\b(?:params_(?:int|i64|float|bool|array|object|string|missing|refuse|fail|ids)|translate_word)\(&?[\w.>\[\]-]+, "([a-z_]+)"', text))
        for array, body in re.findall(r"static const char \*const (\w+)\[[^\]]*\](?:\[\d\])? =\s*\{(.*?)\};", text, re.S):
            if array in FIELD_ARRAYS:
                names |= {f.rstrip("[]") for f in re.findall(r'"([a-z_\[\]]+)"', body)}
        if path.endswith("params.c"):
            names |= set(re.findall(r'\{"([a-z_]+)", -?\d', text))
        for name in names - INNER:
            check(name in known, "%s takes a field \"%s\" that docs/api.md does not name in its place" % (os.path.relpath(path, ROOT), name))
            n += 1
    check(n > 150, n)


def section(text, title):
    return text.partition("\n## %s\n" % title)[2].partition("\n## ")[0]


def first_cells(text, skip=()):
    """Names in the first column of tables with the heading Field."""
    names = []
    for table in re.findall(r"^\| Field \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        for row in table.strip().split("\n"):
            names += re.findall(r"`([a-z_]+)`", row.split("|")[1])
    return [n for n in names if n not in skip]


def refused_names(text):
    """Names in tables that stand behind a line "Refused ...", by the first cell of their row."""
    rows = re.findall(r"\bRefused[^|]*\n\n\| \| \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    check(rows, "a table of what is refused")
    return {row.split("|")[1].strip(): re.findall(r"`([a-z_]+)`", row.split("|")[2]) for r in rows for row in r.strip().split("\n")}


WRONG = ({"zz": 1}, "zz", 5.5, -7, [{"zz": 1}], [[]], True, "", 10**9)
TAKEN_UNSEEN = {  # documented as taken, whatever they are
    "/v1/chat/completions": {"user", "metadata", "store", "service_tier"}, "/v1/messages": {"cache_control", "user_profile_id", "workspace_id"}}


def complains(srv, route, body, name, inner=None):
    """Does any wrong value of the field give 400 with its name?"""
    for value in WRONG:
        asked = json.loads(json.dumps(body))
        (asked if inner is None else asked.setdefault(inner, {}))[name] = value
        status, _, answer = srv.ask("POST", route, asked)
        if status != 400:
            continue
        error = json.loads(answer)["error"]
        if error.get("param") == name or re.search(r"\b%s\b" % name, error["message"]):
            return True
    return False


@test
def documented_fields_are_those_of_the_server():
    """Every field in the tables of api.md is one that the server knows: a wrong value is 400 with its name. What is "refused by name" is."""
    text, n = read("docs/api.md"), 0
    talk, chat = [{"role": "user", "content": "x"}], "/v1/chat/completions"
    with Server("--ctx", "1024", "--max-running-requests", "2", "--threads", "1", "--log-requests=off", model=with_words("media-gemma4-e2b")) as srv:
        def known(routes, body, names, inner=None):
            nonlocal n
            for name in names:
                check(any(complains(srv, r, b, name, inner) for r, b in zip(routes, body)), "%s: the server knows no field %s" % (routes, name))
                n += 1

        def refuses(route, body, names, inner=None):
            nonlocal n
            for name in names:
                asked = json.loads(json.dumps(body))
                value = 5 if name != "best_of" else 100
                value = ["audio"] if name == "modalities" else "high" if name == "reasoning_effort" else {"effort": "high"} if name == "reasoning" else value
                (asked if inner is None else asked.setdefault(inner, {}))[name] = value
                status, _, answer = srv.ask("POST", route, asked)
                error = json.loads(answer)["error"]
                check(status == 400 and (error.get("param") == name or route == "/v1/messages" and name in error["message"]), (route, name, status, answer))
                n += 1

        openai = section(text, "OpenAI: fields")
        known([chat, "/v1/completions"], [{"messages": talk, "max_tokens": 1}, {"prompt": "x", "max_tokens": 1}],
              first_cells(openai, TAKEN_UNSEEN[chat] | {"chat_template_kwargs"}))
        refused = refused_names(openai)
        for row in ("OpenAI's", "SGLang's", "vLLM's, llama.cpp's"):
            refuses(chat, {"messages": talk, "max_tokens": 1}, [x for x in refused[row] if x != "echo"])
        refuses("/v1/completions", {"prompt": "x", "max_tokens": 1}, refused["on `/v1/completions`"])

        sglang = section(text, "SGLang: `/generate`")
        small = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
        known(["/generate"], [small], first_cells(sglang))
        line = re.search(r"^`sampling_params`: (.*(?:\n.+)*)", sglang, re.M).group(1)
        own = [x for x in re.findall(r"`([a-z_]+)`", line.partition("`max_tokens`, ")[0])]
        known(["/generate"], [small], own, inner="sampling_params")
        refuses("/generate", small, refused_names(sglang)["in the body"])
        refuses("/generate", small, refused_names(sglang)["in `sampling_params`"], inner="sampling_params")

        responses = section(text, "Responses")
        known(["/v1/responses"], [{"input": "x", "max_output_tokens": 1}], first_cells(responses))
        refuses("/v1/responses", {"input": "x", "max_output_tokens": 1}, refused_names(responses)["by name"])

        known(["/v1/messages"], [{"messages": talk, "max_tokens": 1}], first_cells(section(text, "Anthropic"), TAKEN_UNSEEN["/v1/messages"]))
        unknown = [complains(srv, chat, {"messages": talk, "max_tokens": 1}, "zebra"), complains(srv, "/generate", small, "zebra")]
        check(not any(unknown), "a field that nobody knows is let pass, so these checks can tell")
    check(n > 120, n)


@test
def error_codes_are_documented():
    known = words_of(section(read("docs/api.md"), "Errors") + read("docs/api.md"))
    found = set()
    for _, text in sources("src/server"):
        found |= set(re.findall(r'(?:api_error_set\([^,;]+, \d{3}|serve_reply_error\([^,;]+, \d{3}|fail_as\(p|->code = ), "([a-z_]+)"', text))
    check(len(found) >= 10 and found <= known, sorted(found - known))


# ---- commands -----------------------------------------------------------------------------------------------------------------------------

NOT_RUN = [  # (what a command matches, why)
    (r"^\./demo\.sh|^\./test\.sh|^make( -j.*)?$", "installs, builds or tests everything: minutes"),
    (r"^(sudo )?apt-get |^sudo |^systemctl |^journalctl ", "needs root, or the installed service"),
    (r"^install -D .* /etc/cygnet/", "needs root"),
    (r"--config /etc/cygnet/serve\.json", "a file of the installed service"),
    (r"^(build/)?cygnet pull ", "needs the network: tests/pull.py runs it against a hub of its own"),
    (r"^python3 -m venv|^venv/bin/pip|^pip install", "needs the network"),
    (r"^cygnet --version$|^make ", "checked by name alone: files_and_targets_exist"),
    (r"^haproxy |^nginx |^python3 -m sglang_router", "tests/scale.py runs them"),
    (r"numactl ", "needs numactl"),
    (r"^cat /sys/kernel/mm/", "a kernel may be built without"),
    (r"^openssl req ", "run by these tests for the certificate that others use"),
    (r"--backend ascend|^source /usr/local/Ascend|BACKEND=ascend", "needs an NPU, or its emulation: tests/npu.py"),
    (r"^(build/)?cygnet eval |^(\w+=\S+ )*tools/gates\.sh|^tools/parquet_to_jsonl\.py", "needs a data set: tests/evals.py runs every suite on small ones"),
    (r"^cygnet bench .*--depth 0,4096 --batch 1,4,16", "minutes"),
    (r"^cygnet bench --serve ", "tests/load.py drives servers of every kind"),
    (r"^cygnet bench --serve ", "needs a server: tests/load.py has several"),
]
FILES_NOT_RUN = {  # documents whose commands others try
    "docs/speed.md": "hours on a quiet machine", "docs/bench/README.md": "hours on a quiet machine", "docs/bench.md": "tests/load.py", "docs/packaging.md": "tests/package.py",
    "docs/ascend.md": "needs an NPU: tests/npu.py, tests/probe.py", "docs/eval.md": "tests/evals.py", "docs/pull.md": "tests/pull.py", "CONTRIBUTING.md": "its commands are names of targets and files, which are checked"}


def text_gguf(model):
    """The text part of a folder with a Gemma 3 model and its vocabulary as a GGUF file: what sees is then in a second file."""
    path = os.path.join(TMP, "text.gguf")
    if os.path.exists(path):
        return path
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)["text_config"]
    with open(os.path.join(model, "tokenizer.json")) as f:
        t = json.load(f)
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    words = {i: w for w, i in t["model"]["vocab"].items()}
    words.update({w["id"]: w["content"] for w in t["added_tokens"]})
    special = {w["id"] for w in t["added_tokens"]}
    text = lambda v: struct.pack("<Q", len(v.encode())) + v.encode()
    record = lambda key, kind, raw: text(key) + struct.pack("<I", kind) + raw
    u32, f32 = lambda key, v: record(key, 4, struct.pack("<I", v)), lambda key, v: record(key, 6, struct.pack("<f", v))
    array = lambda key, kind, items: record(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))
    ids = range(c["vocab_size"])
    records = [record("general.architecture", 8, text("gemma3")), u32("gemma3.block_count", c["num_hidden_layers"]), u32("gemma3.context_length", 131072),
               u32("gemma3.embedding_length", c["hidden_size"]), u32("gemma3.feed_forward_length", c["intermediate_size"]), u32("gemma3.attention.head_count", c["num_attention_heads"]),
               u32("gemma3.attention.head_count_kv", c["num_key_value_heads"]), u32("gemma3.attention.key_length", c["head_dim"]), u32("gemma3.attention.value_length", c["head_dim"]),
               f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6), u32("gemma3.attention.sliding_window", c["sliding_window"]), f32("gemma3.rope.freq_base", 1e6),
               record("tokenizer.ggml.model", 8, text("llama")), array("tokenizer.ggml.tokens", 8, [text(words[i]) for i in ids]),
               array("tokenizer.ggml.scores", 6, [struct.pack("<f", -float(i)) for i in ids]),
               array("tokenizer.ggml.token_type", 5, [struct.pack("<i", 3 if i in special else 6 if words[i].startswith("<0x") else 1) for i in ids]),
               u32("tokenizer.ggml.bos_token_id", 2), u32("tokenizer.ggml.eos_token_id", 1), u32("tokenizer.ggml.unknown_token_id", 3)]
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    table, body = [], b""
    for key, tensor in head.items():
        m = re.search(r"language_model\.(?:model\.)?(?:layers\.(\d+)\.)?(.*)\.weight$", key)
        if not m:
            continue
        numbers = data[slice(*tensor["data_offsets"])]
        shape, kind = tensor["shape"][::-1], 30  # BF16
        if len(shape) == 1:  # norms are F32, and have 1 added in such files
            kind, numbers = 0, b"".join(struct.pack("<f", 1 + struct.unpack("<f", b"\0\0" + numbers[i:i + 2])[0]) for i in range(0, len(numbers), 2))
        name = ("blk.%s." % m.group(1) if m.group(1) else "") + names[m.group(2)] + ".weight"
        table.append(text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape) + struct.pack("<IQ", kind, len(body)))
        body += numbers + b"\0" * (-len(numbers) % 32)
    whole = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(records)) + b"".join(records) + b"".join(table)
    with open(path, "wb") as f:
        f.write(whole + b"\0" * (-len(whole) % 32) + body)
    return path


def lay_out(folder):
    """What documents call by name."""
    def link(what, name):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(what, path)
    def write(name, text):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    link(CYGNET, "build/cygnet")
    link(CYGNET, "bin/cygnet")
    for name in ("deploy", "tools", "docs", "src", "Makefile"):
        link(os.path.join(ROOT, name), name)
    link(SAMPLE, "model.gguf")
    link(SAMPLE, "cache/cygnet/models/ggml-org/gemma-3-4b-it-GGUF/gemma-3-4b-it-Q4_K_M.gguf")
    link(text_gguf(with_words("media-gemma3")), "gemma-3-4b-it.gguf")
    link(os.path.join(GOLDEN, "media-gemma3", "mmproj.gguf"), "mmproj.gguf")
    link(with_words("media-gemma4-e2b"), "gemma-4-E2B-it")
    link(os.path.join(GOLDEN, "media-prep", "turned.exif6.jpg"), "photo.jpg")
    link(os.path.join(GOLDEN, "media-gemma4-e2b", "a.pcm16.wav"), "note.wav")
    write("prompt.txt", "The planets of the solar system are")
    write("text.txt", "The quick brown fox jumps over the lazy dog. " * 20)
    write("keys.txt", "a-key-for-these-tests\n")
    write("lines", "")
    subprocess.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 "
                   "-keyout key.pem -out cert.pem", shell=True, cwd=folder, stderr=subprocess.DEVNULL, check=True)


class Session:
    """One document being run."""

    def __init__(self, name):
        self.name, self.server, self.folder = name, None, tempfile.mkdtemp(dir=TMP)
        lay_out(self.folder)
        self.ports = {p: str(free_port()) for p in ("30000", "8080", "8081", "8082")}
        # the weakest source of options: what a line says itself counts
        self.env = dict(ENV, PATH=os.path.join(self.folder, "bin") + os.pathsep + ENV["PATH"], XDG_CACHE_HOME=os.path.join(self.folder, "cache"), CYGNET_PORT=self.ports["30000"],
                        CYGNET_THREADS="1", CYGNET_MAX_RUNNING_REQUESTS="16", CYGNET_CTX="2048", CYGNET_N="8", CYGNET_GEN="4", CYGNET_REPEAT="1", CYGNET_MEM_FRACTION_STATIC="0.2",
                        no_proxy="*")

    def stop(self):
        if self.server:
            self.server.kill()
            self.server.wait()
        self.server = None

    def here(self, text):
        text = text.replace("MODEL", "model.gguf") if re.search(r"-m MODEL\b", text) else text
        return re.sub(r"\b(%s)\b" % "|".join(self.ports), lambda m: self.ports[m.group(1)], text)

    def serve(self, line):
        self.stop()
        self.server = subprocess.Popen(["bash", "-c", "exec " + self.here(line.rstrip(" &"))], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
        log, end = b"", time.time() + 60
        while b" answers at http" not in log and time.time() < end:
            piece = self.server.stdout.readline()
            log += piece
            check(piece, "%s: %s ended: %s" % (self.name, line, log.decode()))
        threading.Thread(target=self.server.stdout.read, daemon=True).start()

    def run(self, line):
        p = subprocess.run(["bash", "-euo", "pipefail", "-c", self.here(line)], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=120)
        said = p.stdout.decode("utf-8", "replace")
        check(p.returncode == 0, "%s: %s\nexit status %d: %s%s" % (self.name, line, p.returncode, said[-800:], p.stderr.decode("utf-8", "replace")[-800:]))
        check(not re.match(r'\s*\{"error"', said), "%s: %s\n%s" % (self.name, line, said[:800]))
        return said


def not_run(line):
    return next((i for i, (what, _) in enumerate(NOT_RUN) if re.search(what, line)), None)


@test
def commands_work():
    used, n = set(), 0
    check(os.path.exists(SAMPLE), "no sample model: ./demo.sh fetches it")
    for name in documents():
        lines = shell_lines(name)
        if name in FILES_NOT_RUN or not lines:
            continue
        session = Session(name)
        try:
            for line in lines:
                reason = not_run(line)
                if reason is not None:
                    used.add(reason)
                elif re.match(r"(build/)?cygnet serve ", line):
                    session.serve(line)
                    n += 1
                else:
                    session.run(line)
                    n += 1
        finally:
            session.stop()
    check(n >= 40, n)
    stale = [NOT_RUN[i] for i in range(len(NOT_RUN)) if i not in used and not any(re.search(NOT_RUN[i][0], l) for f in FILES_NOT_RUN if os.path.exists(os.path.join(ROOT, f)) for l in shell_lines(f))]
    check(not stale, "no command is like that any more: %s" % stale)


@test
def programs_work():
    """The Python of the documents, where the client that it needs is here; else that it is Python."""
    n = 0
    for name in documents():
        for language, lines in blocks(read(name)):
            if language != "python":
                continue
            n += 1
            compile("\n".join(lines), name, "exec")
            if subprocess.run([sys.executable, "-c", "import openai"], stderr=subprocess.DEVNULL).returncode:
                print("left out: the client program of %s, openai is not here" % name)
                continue
            session = Session(name)
            try:
                session.serve("cygnet serve -m model.gguf")
                p = subprocess.run([sys.executable, "-c", session.here("\n".join(lines))], env=session.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
                check(p.returncode == 0 and len(p.stdout) > 10, p.stderr.decode()[-2000:])
            finally:
                session.stop()
    check(n >= 1, n)


if __name__ == "__main__":
    try:
        status = main()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    sys.exit(status)
