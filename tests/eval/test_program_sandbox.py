"""Programs that mean harm. Where a machine has no namespaces to hold them in, they must be refused instead."""

import os
import time
from pathlib import Path

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.sandbox import programs
from draftwood.eval.sandbox.programs import Limits, Verdict, run_program
from draftwood.eval.tasks import parse

SHORT = Limits(seconds=4.0)


@pytest.fixture(scope="module")
def walls() -> bool:
    try:
        return run_program("").passed
    except ConfigurationError:
        return False


def judged(program: str, walls: bool, limits: Limits = SHORT) -> Verdict | None:
    """The verdict; without walls None, and the program has been refused."""
    if walls:
        return run_program(program, limits)
    with pytest.raises(ConfigurationError, match=r"is not run|namespaces"):
        run_program(program, limits)
    return None


@pytest.mark.parametrize(
    "program",
    [
        "import collections, datetime, functools, hashlib, heapq, itertools, json, math, random, re, string, typing",
        "open('note', 'w').write('kept'); assert open('/tmp/note').read() == 'kept'",
        "def check(f):\n    assert f(2) == 4\ncheck(lambda x: x * x)",
    ],
    ids=["imports", "own folder", "asserts"],
)
def test_honest_programs_pass(program: str, walls: bool) -> None:
    verdict = judged(program, walls)
    assert verdict is None or verdict == Verdict(True, "passed")


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.write(3, b'x' * 32); os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "not python",
    ],
    ids=["assertion", "exit", "_exit", "forged word", "crash", "syntax"],
)
def test_a_pass_means_that_the_end_was_reached(program: str, walls: bool) -> None:
    verdict = judged(program, walls)
    assert verdict is None or not verdict.passed


# Each tries something and ends well only if it was kept from it.
KEPT_FROM = {
    "internet": "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError as e:\n"
    "    assert e.errno == 101, e\nelse:\n    raise SystemExit",
    "own machine": "import socket\ns = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.listen()\ntry:\n"
    "    socket.create_connection(('127.0.0.1', s.getsockname()[1]), 1)\nexcept OSError:\n    pass\n"
    "else:\n    raise SystemExit",
    "interfaces": "import socket\nassert [name for _, name in socket.if_nameindex()] == ['lo']",
    "secrets": "import os\nassert not os.path.exists('/etc/passwd') and not os.path.exists('/proc/1')",
    "home": "import os\nassert not os.path.exists(os.path.expanduser('~root/.ssh')) and os.listdir('/tmp') == []",
    "environment": "import os\nassert set(os.environ) <= {'HOME', 'LC_CTYPE'}",
    "root folder": "try:\n    open('/evil', 'w')\nexcept OSError:\n    pass\nelse:\n    raise SystemExit",
    "libraries": "import os\ntry:\n    open(os.path.join(os.path.dirname(os.__file__), 'evil'), 'w')\n"
    "except OSError:\n    pass\nelse:\n    raise SystemExit",
    "rights": "import os\nassert os.getuid() != 0\ntry:\n    os.setuid(0)\nexcept OSError:\n    pass\n"
    "else:\n    raise SystemExit",
    "mounts": "import ctypes\nc = ctypes.CDLL(None)\n"
    "assert c.mount(b'none', b'/usr/lib', b'none', 4096 | 32, None) != 0\nassert c.umount2(b'/tmp', 2) != 0",
    "own namespaces": "import ctypes\nc = ctypes.CDLL(None)\nc.unshare(0x10000000 | 0x20000)\n"
    "assert c.mount(b'none', b'/usr/lib', b'none', 4096 | 32, None) != 0",
    "disk": "f, m = open('big', 'wb', 0), 1 << 20\ntry:\n"
    "    for _ in range(64):\n        assert f.write(b'0' * m) == m\n"
    "except (OSError, AssertionError):\n    pass\nelse:\n    raise SystemExit",
    "memory": "try:\n    bytearray(8 << 30)\nexcept MemoryError:\n    pass\nelse:\n    raise SystemExit",
    "processes": "import os\nchildren = 0\ntry:\n    while children < 200:\n        if os.fork() == 0:\n"
    "            import time\n            time.sleep(60)\n        children += 1\nexcept OSError:\n    pass\n"
    "assert children < 200",
    "other processes": "import os\nassert os.getpid() == 1\ntry:\n    os.kill(%d, 9)\nexcept OSError:\n    pass\n"
    "else:\n    raise SystemExit",
}


@pytest.mark.parametrize("what", KEPT_FROM)
def test_hostile_programs_are_kept_from(what: str, walls: bool) -> None:
    program = KEPT_FROM[what]
    verdict = judged(program % os.getpid() if "%d" in program else program, walls)
    assert verdict is None or verdict.passed, verdict


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(1000)",
        "import os\nif os.fork() == 0:\n    os.setsid()\nwhile True:\n    pass",
        "import signal, time\nfor s in range(1, 32):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        "    except OSError:\n        pass\ntime.sleep(1000)",
    ],
    ids=["busy", "asleep", "away", "deaf"],
)
def test_time_is_up_for_all_its_processes(program: str, walls: bool) -> None:
    began = time.monotonic()
    verdict = judged(program, walls, Limits(seconds=0.7))
    assert verdict is None or not verdict.passed
    assert time.monotonic() - began < 15


def test_where_walls_cannot_be_had_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jail = tmp_path / "jail.py"
    jail.write_text("import os\nos.write(2, b'Operation not permitted')\nos._exit(97)\n")
    monkeypatch.setattr(programs, "JAIL", jail)
    with pytest.raises(ConfigurationError, match=r"is not run: .*Operation not permitted.* leave the task out"):
        run_program("raise SystemExit")
    for name in ("humaneval", "code"):
        with pytest.raises(ConfigurationError, match="is not run"):
            parse(name).instances(1)
    monkeypatch.setattr(programs.sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match="Linux namespaces only"):
        run_program("")
