#!/usr/bin/env python3
"""What users get: the library's symbols, make install and uninstall, the examples built against installed files, the Debian packages installed and purged
in a folder of their own, and the same bytes from a second build.

Standard library only. What a part needs beside that (dpkg-dev, pkg-config, systemd, bash) is named when it is missing, and the part left out.
Usage: tests/package.py [NAME...]   last line: N passed, N failed
"""
import ctypes, glob, importlib.util, shutil, tempfile

from serving import *

sys.dont_write_bytecode = True  # one of the tests imports an example
TMP = tempfile.mkdtemp(prefix="cygnet-package-")
BUILD = os.path.dirname(CYGNET)
HEADER = os.path.join(ROOT, "include", "cygnet.h")
with open(HEADER, encoding="utf-8") as f:
    HEADER_TEXT = f.read()
VERSION = re.search(r'#define CYGNET_VERSION "([0-9.]+)"', HEADER_TEXT).group(1)
MAJOR, MINOR = VERSION.split(".")[:2]
SOFILE = "libcygnet.so." + VERSION
ENV = {k: v for k, v in ENV.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SOURCE_DATE_EPOCH", "DESTDIR", "PREFIX", "LIBDIR", "BUILD", "MODE")}
root = os.getuid() == 0


def needs(*programs):
    def mark(fn):
        missing = [p for p in programs if not shutil.which(p)]
        if missing:
            print("%s: left out, %s not here" % (fn.__name__, ", ".join(missing)))
            return fn
        return test(fn)
    return mark


def run(*args, status=0, env=None, cwd=ROOT, timeout=300, stdin=None):
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**ENV, **(env or {})}, cwd=cwd, timeout=timeout, input=stdin)
    p.out, p.err = p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")
    check(p.returncode == status, "%s: exit %d, expected %d: %s%s" % (" ".join(args[:6]), p.returncode, status, p.out[-800:], p.err[-1200:]))
    return p


def make(*args, **kw):
    return run("make", "-s", "BUILD=" + BUILD, *args, **kw)


def folder(name):
    path = os.path.join(TMP, name)
    os.makedirs(path)
    return path


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def files_below(path):
    return sorted(os.path.relpath(os.path.join(d, f), path) for d, _, names in os.walk(path) for f in names)


_made = {}


def once(fn):
    def get():
        if fn.__name__ not in _made:
            _made[fn.__name__] = fn()
        return _made[fn.__name__]
    return get


@once
def installed():
    """A prefix that programs can be built against."""
    prefix = os.path.join(folder("prefix"), "usr")
    make("install", "PREFIX=" + prefix)
    return prefix


@once
def packages():
    out = folder("packages")
    make("deb", "PACKAGES=" + out)
    found = {os.path.basename(p).split("_")[0]: p for p in glob.glob(out + "/*.deb")}
    check(set(found) == {"cygnet", "libcygnet%s" % MAJOR, "libcygnet-dev"}, found)
    return found


@once
def unpacked():
    out = folder("unpacked")
    for p in packages().values():
        run("dpkg-deb", "-x", p, out)
    return out


# ---- symbols and versions ----------------------------------------------------------------------------------------------------


def public_functions(text):
    """By C's own punctuation, not by lines as tools/symbols.sh does it."""
    code = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    names = [re.search(r"(\w+)\s*\(", statement).group(1) for statement in re.findall(r"\bCYGNET_API\b([^;]*);", re.sub(r"#define.*", "", code))]
    check(len(names) == len(set(names)) > 25, names)
    return sorted(names)


@needs("nm", "readelf")
def the_library_offers_what_the_header_says():
    names = public_functions(HEADER_TEXT)
    with open(HEADER, "rb") as f:
        check(run("tools/symbols.sh", "list", stdin=f.read()).out.split() == names, "tools/symbols.sh reads other names out of cygnet.h")
    node = "CYGNET_%s.%s" % (MAJOR, MINOR)
    shared = [l.split()[-1] for l in run("nm", "-D", "--defined-only", os.path.join(BUILD, SOFILE)).out.splitlines()]
    want = sorted([node] + ["%s@@%s" % (n, node) for n in names])
    check(sorted(shared) == want, "libcygnet.so: %s" % sorted(set(shared) ^ set(want)))
    static = [l.split()[-1] for l in run("nm", "-g", "--defined-only", os.path.join(BUILD, "libcygnet.a")).out.splitlines() if len(l.split()) == 3]
    check(sorted(static) == names, "libcygnet.a: %s" % sorted(set(static) ^ set(names)))
    dynamic = run("readelf", "-d", os.path.join(BUILD, SOFILE)).out
    check("soname: [libcygnet.so.%s]" % MAJOR in dynamic and "RPATH" not in dynamic and "RUNPATH" not in dynamic, dynamic)
    for link in ("libcygnet.so", "libcygnet.so." + MAJOR):
        check(os.readlink(os.path.join(BUILD, link)) == SOFILE, link)


@needs("nm")
def private_names_stay_inside():
    """The version script is what decides: a function that is visible by mistake stays in, one that the header lost goes."""
    source = write(os.path.join(TMP, "names.c"), "void cygnet_open(void) {}\nvoid cygnet_close(void) {}\nvoid kv_reserve(void) {}\nvoid cygnet_secret(void) {}\n")

    def offered(header):
        script = write(os.path.join(TMP, "names.map"), run("tools/symbols.sh", "map", stdin=header.encode()).out)
        run("cc", "-shared", "-fPIC", "-Wl,--version-script=" + script, source, "-o", os.path.join(TMP, "names.so"))
        return sorted(l.split()[-1].split("@")[0] for l in run("nm", "-D", "--defined-only", os.path.join(TMP, "names.so")).out.splitlines() if " T " in l)

    check(offered(HEADER_TEXT) == ["cygnet_close", "cygnet_open"], offered(HEADER_TEXT))
    less = re.sub(r"CYGNET_API [^;]*cygnet_close\([^;]*;", "", HEADER_TEXT)
    check(offered(less) == ["cygnet_open"], offered(less))
    wrapped = run("tools/symbols.sh", "map", stdin=b'#define CYGNET_VERSION "1.2.3"\nCYGNET_API void\ncygnet_x(void);\n', status=1)
    check("line 2" in wrapped.err and "CYGNET_API" in wrapped.err, wrapped.err)
    check("CYGNET_VERSION" in run("tools/symbols.sh", "map", stdin=b"CYGNET_API void cygnet_x(void);\n", status=1).err, "a header without a version")


@test
def one_version_everywhere():
    lib = ctypes.CDLL(os.path.join(BUILD, SOFILE))
    lib.cygnet_version.restype = ctypes.c_char_p
    check(lib.cygnet_version().decode() == VERSION, lib.cygnet_version())
    check(run(CYGNET, "--version").out == "cygnet %s\n" % VERSION, "cygnet --version")
    entry = read(os.path.join(ROOT, "packaging", "debian", "changelog")).splitlines()[0]
    check(entry.startswith("cygnet (%s) " % VERSION), "changelog: " + entry)
    check("\nVersion: %s\n" % VERSION in read(os.path.join(installed(), "lib", "pkgconfig", "cygnet.pc")), "cygnet.pc")


# ---- install -----------------------------------------------------------------------------------------------------------------


@test
def install_and_uninstall():
    dest = folder("dest")
    theirs = write(os.path.join(dest, "opt/q/share/doc/cygnet/examples/mine.conf"), "mine\n")
    write(os.path.join(dest, "opt/q/lib/other.so"), "")
    before = files_below(dest)
    where = ["DESTDIR=" + dest, "PREFIX=/opt/q"]
    make("install", *where)
    now = {f[len("opt/q/"):] for f in files_below(dest)}
    for f in ("bin/cygnet", "include/cygnet.h", "lib/libcygnet.a", "lib/" + SOFILE, "lib/libcygnet.so", "lib/libcygnet.so." + MAJOR, "lib/pkgconfig/cygnet.pc",
              "lib/systemd/system/cygnet.service", "lib/sysusers.d/cygnet.conf", "lib/tmpfiles.d/cygnet.conf", "share/bash-completion/completions/cygnet",
              "share/doc/cygnet/LICENSE", "share/doc/cygnet/docs/map.md", "share/doc/cygnet/examples/serve.json", "share/doc/cygnet/examples/complete.c"):
        check(f in now, "%s was not installed" % f)
    manual = glob.glob(os.path.join(ROOT, "man", "*.1"))
    check(all("share/man/man1/" + os.path.basename(m) in now for m in manual), "manual pages")
    for f in now:
        path = os.path.join(dest, "opt/q", f)
        mode = os.lstat(path).st_mode & 0o777
        check(os.path.islink(path) or mode == (0o755 if f == "bin/cygnet" else 0o644) or path == theirs, "%s: mode %o" % (f, mode))
    for f in ("lib/pkgconfig/cygnet.pc", "lib/systemd/system/cygnet.service"):
        text = read(os.path.join(dest, "opt/q", f))
        check("@" not in re.sub(r"@system-service", "", text) and dest not in text and "/opt/q" in text, text)
    check("ExecStart=/opt/q/bin/cygnet serve" in text, text)
    make("install", *where)  # again, over itself
    make("uninstall", *where)
    check(files_below(dest) == before, set(files_below(dest)) ^ set(before))
    check(not os.path.exists(os.path.join(dest, "opt/q/share/doc/cygnet/docs")), "an empty folder of ours stayed")
    os.remove(theirs)
    make("uninstall", *where)  # nothing to do is no error
    check(not os.path.exists(os.path.join(dest, "opt/q/share/doc/cygnet")), "an empty folder of ours stayed")


# ---- the examples ------------------------------------------------------------------------------------------------------------

STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def pkg_config(*args):
    return run("pkg-config", *args, "cygnet", env={"PKG_CONFIG_PATH": os.path.join(installed(), "lib", "pkgconfig")}).out.split()


def same_answer(*command, env=None):
    """A greedy answer is the same by every road."""
    model = os.path.join(TINY, "model-mixed.gguf")
    want = subprocess.run([CYGNET, "complete", "-m", model, "-p", "the 4th", "-n", "8", "--temp", "0", "-q"], stdout=subprocess.PIPE, env=ENV, timeout=60).stdout
    p = run(*command, model, "the 4th", "8", env=env)
    check(len(want.strip()) > 3 and p.stdout.strip() == want.strip(), "%r, expected %r" % (p.stdout, want))
    check("[8 tokens, then: length]" in p.err, p.err)
    p = run(*command, os.path.join(TMP, "no-model.gguf"), "x", env=env, status=2)
    check("no-model.gguf" in p.err and p.err.startswith("complete"), p.err)


@needs("pkg-config")
def example_with_the_shared_library():
    program = os.path.join(TMP, "shared")
    run("cc", *STRICT, "examples/complete.c", *pkg_config("--cflags", "--libs"), "-o", program)
    check("libcygnet.so." + MAJOR in run("readelf", "-d", program).out, "not linked with the shared library")
    same_answer(program, env={"LD_LIBRARY_PATH": os.path.join(installed(), "lib")})


@needs("pkg-config")
def example_with_the_static_library():
    program = os.path.join(TMP, "static")
    run("cc", *STRICT, "examples/complete.c", *pkg_config("--cflags"), "-L" + os.path.join(installed(), "lib"), "-Wl,-Bstatic", "-lcygnet", "-Wl,-Bdynamic",
        *pkg_config("--libs", "--static"), "-o", program)
    check("libcygnet" not in run("readelf", "-d", program).out, "linked with the shared library")
    same_answer(program)


@test
def example_in_python():
    same_answer(sys.executable, os.path.join(installed(), "share/doc/cygnet/examples/complete.py"), env={"CYGNET_LIBRARY": os.path.join(installed(), "lib", SOFILE)})


@test
def structs_of_the_python_example():
    """Each field lies where the compiler puts it, and none is missing."""
    spec = importlib.util.spec_from_file_location("complete", os.path.join(ROOT, "examples", "complete.py"))
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    structs = {"error": example.Error, "options": example.Options, "sampling": example.Sampling, "request": example.Request, "token": example.Token, "event": example.Event}
    lines = []
    for name, c in structs.items():
        lines.append('  printf("%s %%zu\\n", sizeof(struct cygnet_%s));' % (name, name))
        lines += ['  printf("%s.%s %%zu %%zu\\n", offsetof(struct cygnet_%s, %s), sizeof(((struct cygnet_%s *)0)->%s));' % (name, f[0], name, f[0], name, f[0]) for f in c._fields_]
    source = write(os.path.join(TMP, "layout.c"), "#include <cygnet.h>\n#include <stdio.h>\nint main(void) {\n%s\n}\n" % "\n".join(lines))
    run("cc", "-I" + os.path.join(installed(), "include"), source, "-o", os.path.join(TMP, "layout"))
    n = 0
    for line in run(os.path.join(TMP, "layout")).out.splitlines():
        place, *numbers = line.split()
        c, _, field = place.partition(".")
        got = [getattr(structs[c], field).offset, getattr(structs[c], field).size] if field else [ctypes.sizeof(structs[c])]
        check(got == [int(x) for x in numbers], "struct cygnet_%s: Python has %s, C %s" % (place, got, numbers))
        n += 1
    check(n == len(lines) > 100, n)
    for name, c in structs.items():  # padding could hide a field that is missing
        body = re.search(r"struct cygnet_%s \{(.*?)\n\};" % name, re.sub(r"/\*.*?\*/", "", HEADER_TEXT, flags=re.S), re.S).group(1)
        in_header = [re.sub(r"\[.*", "", re.search(r"\(\*(\w+)\)", d).group(1) if "(*" in d else w.split()[-1].lstrip("*")) for d in body.split(";") if d.strip() for w in ([d] if "(*" in d else d.split(","))]
        check(in_header == [f[0] for f in c._fields_], "struct cygnet_%s: %s" % (name, set(in_header) ^ {f[0] for f in c._fields_}))


@needs("g++")
def the_header_is_fit_for_c_plus_plus():
    write(os.path.join(TMP, "plus.cc"), "#include <cygnet.h>\nint main() { return cygnet_version()[0] == 0; }\n")
    run("g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-I" + os.path.join(installed(), "include"), os.path.join(TMP, "plus.cc"), os.path.join(BUILD, SOFILE), "-o", os.path.join(TMP, "plus"))
    run(os.path.join(TMP, "plus"), env={"LD_LIBRARY_PATH": BUILD})


# ---- completion --------------------------------------------------------------------------------------------------------------


@needs("bash")
def completion_in_bash():
    def complete(*words):
        script = '. deploy/cygnet.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cygnet; printf "%s\\n" "${COMPREPLY[@]}"'
        return run("bash", "-c", script, "bash", CYGNET, *words).out.split()

    check({"serve", "chat", "complete", "pull"} <= set(complete("")), complete(""))
    check(complete("comp") == ["complete"] == complete("help", "comp"), complete("comp"))
    check(complete("serve", "--kv") == ["--kv-type", "--kv-cache-dtype"], complete("serve", "--kv"))
    for words in (("serve", "--kv-type", ""), ("serve", "-m", "x", "--kv-cache-dtype", "="), ("serve", "--kv-type", "=", "")):
        check(set(complete(*words)) >= {"auto", "bf16", "q8_0"}, (words, complete(*words)))
    check(complete("serve", "--kv-type", "b") == ["bf16"], complete("serve", "--kv-type", "b"))
    check(complete("serve", "--kv-type", "=", "q") == ["q8_0"], "after =")
    check("-m" in complete("serve", "-") and "--port" in complete("serve", "-") and "--port" not in complete("pull", "-"), complete("serve", "-"))
    check(complete("serve", "-m", "") == [] and complete("serve", "--port", "") == [], "values that nobody knows")
    for command in complete(""):
        if command.startswith("-") or command == "help":  # help's words are commands
            continue
        text = run(CYGNET, command, "--help").out
        options = set(re.findall(r"^(?:  -\w, |      )(--[a-z0-9-]+)", text, re.M))
        check(options <= set(complete(command, "-")) and options, "%s: %s" % (command, options - set(complete(command, "-"))))


# ---- Debian packages ---------------------------------------------------------------------------------------------------------

DEB = ("dpkg-deb", "dpkg-shlibdeps", "dpkg-gencontrol", "dpkg-parsechangelog", "dpkg-architecture")
TRIPLET = subprocess.run(["dpkg-architecture", "-qDEB_HOST_MULTIARCH"], stdout=subprocess.PIPE).stdout.decode().strip() if shutil.which("dpkg-architecture") else ""
LIB = "libcygnet" + MAJOR


def field(package, name):
    return run("dpkg-deb", "-f", packages()[package], name).out.strip()


@needs(*DEB)
def packages_say_what_they_are():
    for package in packages():
        check(field(package, "Version") == VERSION, package)
        listing = run("dpkg-deb", "-c", packages()[package]).out.splitlines()
        check(all(l.split()[1] == "root/root" for l in listing), "owners: " + package)
        check(all(l[:10] in ("drwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx") or l.endswith("/usr/bin/cygnet") for l in listing), "modes: " + package)
        for f in ("copyright", "changelog.gz"):
            check(any(l.endswith("./usr/share/doc/%s/%s" % (package, f)) for l in listing), "%s lacks %s" % (package, f))
        control = folder("control-" + package)
        run("dpkg-deb", "-e", packages()[package], control)
        sums = read(os.path.join(control, "md5sums"))
        run("md5sum", "--quiet", "-c", "-", cwd=unpacked(), stdin=sums.encode())
        files = [l.split(" ./", 1)[1] for l in listing if l[0] == "-" and " ./etc/" not in l]
        check(sorted(files) == sorted(l.split("  ", 1)[1] for l in sums.splitlines()), "md5sums: " + package)
    check(re.search(r"libc6 \(>=.*libcurl4.*libssl3|libc6.*libssl", field("cygnet", "Depends")) and "libcygnet" not in field("cygnet", "Depends"), field("cygnet", "Depends"))
    check("libc6" in field(LIB, "Depends") and "libevent" not in field(LIB, "Depends"), field(LIB, "Depends"))
    check(field("libcygnet-dev", "Depends") == "%s (= %s)" % (LIB, VERSION), field("libcygnet-dev", "Depends"))
    check(read(os.path.join(TMP, "control-cygnet", "conffiles")) == "/etc/cygnet/serve.json\n", "conffiles")
    shlibs = read(os.path.join(TMP, "control-" + LIB, "shlibs")).strip()
    check(shlibs == "libcygnet %s %s (>= %s.%s), %s (<< %s.%d~)" % (MAJOR, LIB, MAJOR, MINOR, LIB, MAJOR, int(MINOR) + 1), shlibs)
    check(run(os.path.join(unpacked(), "usr/bin/cygnet"), "--version").out == "cygnet %s\n" % VERSION, "the packaged program")
    manual = glob.glob(os.path.join(unpacked(), "usr/share/man/man1/*"))
    check(sorted(os.path.basename(m) for m in manual) == sorted(os.path.basename(m) + ".gz" for m in glob.glob(os.path.join(ROOT, "man", "*.1"))), manual)


@needs(*DEB, "lintian")
def lintian_finds_no_error():
    p = subprocess.run(["lintian", "--no-cfg", "--fail-on", "error", *(["--allow-root"] if root else []), *packages().values()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENV, timeout=300)
    check(p.returncode == 0, p.stdout.decode())


@needs(*DEB, "systemd-analyze")
def the_unit_is_valid_and_tight():
    text = read(os.path.join(unpacked(), "usr/lib/systemd/system/cygnet.service"))
    check("\nExecStart=/usr/bin/cygnet serve --config /etc/cygnet/serve.json\n" in text, text)
    unit = write(os.path.join(folder("unit"), "cygnet.service"), text.replace("=/usr/bin/cygnet", "=" + CYGNET))
    p = run("systemd-analyze", "verify", "--man=no", unit)
    check("cygnet.service" not in p.err, p.err)
    broken = write(os.path.join(TMP, "unit", "broken.service"), text.replace("=/usr/bin/cygnet", "=/nowhere/cygnet"))
    run("systemd-analyze", "verify", "--man=no", broken, status=1)  # or this test could not fail
    if "--offline" in run("systemd-analyze", "--help").out:
        p = run("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", unit)  # tenths: 2.0, of 10 where nothing is guarded


@needs(*DEB)
def the_unit_s_command_serves():
    """What the unit runs with the configuration that the package brings, but for the model and the port."""
    line = re.search(r"^ExecStart=(.*)$", read(os.path.join(unpacked(), "usr/lib/systemd/system/cygnet.service")), re.M).group(1)
    config = json.loads(read(os.path.join(unpacked(), "etc/cygnet/serve.json")))
    check(config["model"].startswith("/var/lib/cygnet/") and config["host"] == "127.0.0.1", config)
    config.update(model=TINY, port=free_port())
    path = write(os.path.join(TMP, "serve.json"), json.dumps(config))
    p = subprocess.Popen([w.replace("/usr/bin/", unpacked() + "/usr/bin/").replace("/etc/cygnet/serve.json", path) for w in line.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    try:
        def healthy():
            try:
                return ask(config["port"], "GET", "/health")[0] == 200
            except OSError:
                return False
        wait_until("the server", healthy)
        p.send_signal(signal.SIGTERM)
        check(p.wait(20) == 0, "exit %d after SIGTERM" % p.returncode)
    finally:
        p.kill()
        p.wait()


class Machine:
    """A folder that dpkg takes for a machine. Nothing runs inside: scripts run outside and are told where it is (DPKG_ROOT)."""

    def __init__(self, name, passwd=""):
        self.path = folder(name)
        for d in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log", "usr/bin", "etc/systemd/system"):
            os.makedirs(os.path.join(self.path, d))
        for f in ("var/lib/dpkg/status", "var/lib/dpkg/available"):
            write(os.path.join(self.path, f), "")
        write(os.path.join(self.path, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n" + passwd)
        write(os.path.join(self.path, "etc/group"), "root:x:0:\n" + re.sub(r"(?m)^(\w+):x:(\d+):.*", r"\1:x:\2:", passwd))
        write(os.path.join(self.path, "etc/shadow"), "root:*:19000:0:99999:7:::\n" + re.sub(r"(?m)^(\w+):.*", r"\1:*:19000:0:99999:7:::", passwd), 0o640)
        write(os.path.join(self.path, "etc/gshadow"), "root:*::\n", 0o640)
        self.before = set(self.everything())

    def dpkg(self, *args):
        # without root: in a user namespace of its own, where this user is root
        become = [] if root else ["unshare", "-r"]
        return run(*become, "dpkg", "--root=" + self.path, "--log=/dev/null", "--force-script-chrootless", "--force-depends", "--force-unsafe-io", *args, env={"PATH": ENV["PATH"] + ":/usr/sbin:/sbin"})

    def install(self):
        return self.dpkg("-i", *packages().values())

    def everything(self):
        """Paths but for dpkg's own notes, and what tools that edit passwd leave beside it."""
        found = [os.path.relpath(os.path.join(d, f), self.path) for d, folders, files in os.walk(self.path) for f in files + folders]
        return {f for f in found if not f.startswith("var/lib/dpkg") and not re.fullmatch(r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock|etc/sub[ug]id", f)}

    def user(self):
        m = re.search(r"^cygnet:.*$", read(os.path.join(self.path, "etc/passwd")), re.M)
        return m and m.group(0).split(":")

    def file(self, *parts):
        return os.path.join(self.path, *parts)


def can_install():
    missing = [p for p in ("systemd-sysusers", "systemd-tmpfiles", "deb-systemd-helper") if not shutil.which(p)]
    if not missing and not root and subprocess.run(["unshare", "-r", "true"], stderr=subprocess.DEVNULL).returncode:
        missing = ["root (or unshare -r)"]
    if missing:
        print("installing packages: left out, %s not here" % ", ".join(missing))
    return not missing


INSTALLS = all(shutil.which(p) for p in DEB) and can_install()


def installs(fn):
    return test(fn) if INSTALLS else fn


@installs
def install_remove_purge():
    m = Machine("machine")
    m.install()
    check(m.user() and m.user()[5:] == ["/var/lib/cygnet", "/usr/sbin/nologin"] and int(m.user()[2]) < 1000, m.user())
    home = m.file("var/lib/cygnet")
    if root:
        check(os.stat(home).st_uid == int(m.user()[2]) and os.stat(home).st_mode & 0o777 == 0o755, "the folder's owner")
    check(not os.path.lexists(m.file("etc/systemd/system/multi-user.target.wants/cygnet.service")), "it was enabled unasked")
    for f in ("usr/bin/cygnet", "usr/lib/systemd/system/cygnet.service", "usr/include/cygnet.h", "usr/lib/%s/libcygnet.so.%s" % (TRIPLET, MAJOR)):
        check(os.path.exists(m.file(f)), f)
    check(m.dpkg("--verify").out == "", "files differ from their md5sums")

    # what systemctl enable does, and what an administrator writes
    os.makedirs(m.file("etc/systemd/system/multi-user.target.wants"), exist_ok=True)
    os.symlink("/usr/lib/systemd/system/cygnet.service", m.file("etc/systemd/system/multi-user.target.wants/cygnet.service"))
    config = m.file("etc/cygnet/serve.json")
    write(config, '{"model": "/models/mine.gguf"}\n')
    m.install()  # an upgrade
    check("/models/mine.gguf" in read(config), "an upgrade took somebody's configuration away")
    os.makedirs(os.path.join(home, ".cache/cygnet/models"))
    m.dpkg("-r", "cygnet", "libcygnet-dev", LIB)
    check("/models/mine.gguf" in read(config) and m.user() and not os.path.exists(m.file("usr/bin/cygnet")), "removing is not purging")
    m.dpkg("-P", "cygnet", "libcygnet-dev", LIB)
    left = {f for f in m.everything() - m.before if not f.startswith(("etc/systemd", "var/lib/systemd")) and os.path.lexists(m.file(f))}
    check(not left and not m.user(), "purging left %s %s" % (sorted(left), m.user()))
    check(not any("cygnet" in f for f in m.everything()), [f for f in m.everything() if "cygnet" in f])
    check("cygnet" not in read(m.file("etc/group")) + read(m.file("etc/shadow")), "the group or its shadow stayed")


@installs
def purging_keeps_models():
    m = Machine("keeps")
    m.install()
    uid = int(m.user()[2])
    model = write(m.file("var/lib/cygnet/.cache/cygnet/models/org/name/model.gguf"), "hours to fetch")
    outside = write(m.file("var/outside"), "somebody's")
    os.symlink(outside, m.file("var/lib/cygnet/link"))
    os.makedirs(m.file("var/lib/cygnet/empty/folder"))
    if root:
        for f in (model, outside):
            os.chown(f, uid, uid)
        os.chown(m.file("var/lib/cygnet/link"), uid, uid, follow_symlinks=False)
    p = m.dpkg("-P", "cygnet")
    check(read(model) == "hours to fetch" and "/var/lib/cygnet is not empty" in p.out + p.err, p.out + p.err)
    check(not os.path.exists(m.file("var/lib/cygnet/empty")) and not os.path.exists(m.file("etc/cygnet")) and not m.user(), "purging left more than files")
    if root:
        check(os.stat(model).st_uid == 0 and os.lstat(m.file("var/lib/cygnet/link")).st_uid == 0, "a user that comes later could own it")
        check(os.stat(outside).st_uid == uid, "a link led the way out of the folder")
    m.install()
    m.dpkg("-P", "cygnet")
    check(read(model) == "hours to fetch", "the second time")


@installs
def a_person_named_cygnet_stays():
    m = Machine("person", passwd="cygnet:x:1234:1234:A Person:/home/cygnet:/bin/bash\n")
    m.install()
    check(m.user()[2] == "1234", m.user())
    m.dpkg("-P", "cygnet")
    check(m.user() and m.user()[2] == "1234" and "A Person" in m.user()[4], "somebody's account was deleted")


# ---- the same bytes ----------------------------------------------------------------------------------------------------------


@needs(*DEB)
def a_second_build_gives_the_same_bytes():
    """In another folder with another name for its build, another umask, time zone and time. Objects of most rooms are taken over, as compiling them all
    takes minutes: two rooms, the program's own files and what takes in a file (.incbin) are compiled anew, everything is linked and packed anew."""
    before = packages()
    make("all")  # current, or the comparison is of two sources
    other = os.path.join(TMP, "elsewhere", "a longer name".replace(" ", "-"))
    for part in ("Makefile", "README.md", "LICENSE", "src", "include", "packaging", "deploy", "docs", "examples", "tools", "man"):
        source = os.path.join(ROOT, part)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(other, part), ignore=shutil.ignore_patterns("*.o", "golden", "__pycache__"))
        elif os.path.exists(source):
            os.makedirs(other, exist_ok=True)
            shutil.copy2(source, other)
    anew = re.compile(r"src/(kv|base)/|src/[a-z_]+\.o$|src/server/page\.o$")
    objects = os.path.join(BUILD, "release")
    for f in files_below(objects):
        if f.startswith("src/") and f.endswith(".o") and not anew.search(f):
            os.makedirs(os.path.dirname(os.path.join(other, "out/release", f)), exist_ok=True)
            shutil.copy2(os.path.join(objects, f), os.path.join(other, "out/release", f))
    p = run("sh", "-c", "umask 077 && make -s BUILD=out all deb", cwd=other, env={"TZ": "Asia/Tokyo", "LC_ALL": "C"}, timeout=600)
    compiled = re.findall(r"cc +(src/\S+)", p.out)
    check({"src/kv/kv.c", "src/base/mem.c", "src/main.c", "src/server/page.c"} <= set(compiled) and len(compiled) < 80, compiled)

    def same(a, b):
        with open(a, "rb") as x, open(b, "rb") as y:
            check(x.read() == y.read(), "%s: other bytes than %s" % (b, a))

    for f in compiled:
        same(os.path.join(objects, f[:-2] + ".o"), os.path.join(other, "out/release", f[:-2] + ".o"))
    for f in ("cygnet", "libcygnet.a", SOFILE):
        same(os.path.join(BUILD, f), os.path.join(other, "out", f))
    for package, path in before.items():
        same(path, os.path.join(other, "out/deb", os.path.basename(path)))


if __name__ == "__main__":
    try:
        status = main()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    sys.exit(status)
