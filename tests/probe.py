#!/usr/bin/env python3
"""What is run on the first day with a real NPU (tools/ascend_first_day.sh, tools/ascend_probe.c), run on the emulated one: every point in the profiles
that differ, faults of the field when they are switched on, a device that does not answer, and the report.

Standard library only. Usage: tests/probe.py [NAME...]   last line: N passed, N failed
"""
import tempfile

from serving import *

BUILD = os.path.dirname(CYGNET)
EMULATOR = os.environ.get("CYGNET_EMULATOR", os.path.join(BUILD, "release", "tests", "acl_emu"))
PROBE = os.path.join(BUILD, "ascend_probe")
FIGURES = {"device", "same-slot", "loose-ends", "gate-time", "nz-time", "phase-1-time", "floors", "after-fault", "first-in-capture", "replay-time"}


def probe(profile, *names, status=0, **env):
    """name → (verdict, what was found)."""
    p = subprocess.run([PROBE, *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300,
                       env=dict(ENV, ASCEND_HOME_PATH=os.path.join(EMULATOR, profile), **env))
    text = p.stdout.decode()
    check(p.returncode == status, (profile, names, env, p.returncode, text[-2000:]))
    found = re.findall(r"^(\S.*?)  +(\S+) \([\d.]+ s\)\n    expected  .+\n    found     (.+)$", text, re.M)
    check(re.search(r"^probe: ", text, re.M) or status == 2, text)
    return {name: (verdict, what) for verdict, name, what in found}


@test
def every_point():
    for profile in ("A2-8.1", "A2-8.5", "A2-9.1", "310P-8.5"):
        points = probe(profile)
        check(len(points) > 25, (profile, len(points)))
        for name, (verdict, what) in points.items():
            if profile == "310P-8.5" and verdict == "skipped":
                check("310P" in what or "this chip" in what, (name, what))
            else:
                check(verdict == ("figure" if name in FIGURES else "as expected"), (profile, name, verdict, what))


@test
def faults_of_the_field():
    """A fault that is switched on is told, by the points that are about it alone."""
    for defect, wrong in (("mask512", {"decode-mask": "keys 512 to 2047 are ignored"}), ("empty_garbage", {"length-0": "what was there before"}),
                          ("band_off", {"bsnd-band": "should see", "bsnd-512": "should see", "tnd-band": "should see"})):
        points = probe("A2-9.1", "decode", "bsnd", "tnd", "length", "no-mask", status=1, ACL_EMU_DEFECTS=defect)
        for name, (verdict, what) in points.items():
            check((verdict == "DIFFERS" and wrong[name] in what) if name in wrong else verdict == "as expected", (defect, name, verdict, what))
        check(set(wrong) <= set(points), (defect, points.keys()))


@test
def errors_and_hangs():
    """A point that fails or does not end costs its own line."""
    points = probe("A2-8.5", "casts", "argmax", "vocabulary", status=1, ACL_EMU_FAULT="op Cast:1:561003,run ArgMax:1:507015", ACL_EMU_QUIET="1")
    check(points["casts"][0] == "DIFFERS" and "561003" in points["casts"][1], points)
    check(points["argmax-ties"][0] == "DIFFERS" and "507015" in points["argmax-ties"][1], points)
    check(points["vocabulary"][0] == "as expected", points)
    points = probe("A2-8.5", "--seconds", "2", "replay-time", "casts", status=1, ACL_EMU_DELAY_US="500000", ACL_EMU_HANG_MS="60000")
    check(points["replay-time"][0] == "FAILED" and "no end after 2 s" in points["replay-time"][1], points)


@test
def no_device():
    found = subprocess.run([PROBE], stdout=subprocess.PIPE, env=dict(ENV, ASCEND_HOME_PATH="/nowhere", LD_LIBRARY_PATH="/nowhere"), timeout=60)
    check(found.returncode == 2 and b"libascendcl.so" in found.stdout, found)


@test
def report():
    """The script from end to end, as far as it is quick; nothing of this machine is in it."""
    with tempfile.TemporaryDirectory(prefix="cygnet-report-") as folder:
        file = os.path.join(folder, "report.txt")
        env = dict(ENV, ASCEND_HOME_PATH=os.path.join(EMULATOR, "A2-8.5"), PARTS="versions probe", REPORT=file, BUILD=BUILD, ACL_EMU_DEFECTS="mask512")
        p = subprocess.run([os.path.join(ROOT, "tools", "ascend_first_day.sh")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=600, env=env)
        check(p.returncode == 1, p.stdout.decode())
        text = open(file).read()
        top = text[:text.index("====")]
        check("Ascend910B" in top and re.search(r"points +probe: \d+ as expected, 1 differ, 0 failed", top), top)
        check(re.search(r"DIFFERS decode-mask: .*512 to 2047", top), top)
        check(all("\n==== " + title in text for title in ("building", "versions", "points that no document settles")), text)
        check(ROOT not in text and os.uname().nodename not in text.replace("this-machine", ""), "the report tells where it was made")


if __name__ == "__main__":
    sys.exit(main())
