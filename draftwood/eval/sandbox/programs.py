"""Runs Python that a model wrote, behind the walls of jail.py; where those cannot be had, it refuses.

Knows time and verdicts. Refuses to know tasks.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError

JAIL = Path(__file__).parent / "jail.py"

# The last thing that runs says so with a word that the program was not told: an early exit is no pass.
START = """
import json, os, sys
told = json.load(sys.stdin)
sys.stdin.close()
word, source = told.pop("word"), told.pop("program")
exec(compile(source, "program", "exec"), {"__name__": "__main__"})
os.write(3, word.encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one program. Seconds are of wall time, and of CPU time one more."""

    seconds: float = 10.0
    memory: int = 1 << 29  # bytes of address space, of each process
    disk: int = 16 << 20  # bytes in the writable folder
    processes: int = 8  # of the user, threads included


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program ran to its end without an exception; else why not, in a few words."""

    passed: bool
    reason: str


LIMITS = Limits()


def run_program(program: str, limits: Limits = LIMITS) -> Verdict:
    """Run a program to its end, with no network, no files but those of a temporary folder of its own, and in time.

    Raises ConfigurationError where this machine cannot hold it in; then it has not been run.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigurationError("programs that a model wrote run in Linux namespaces only; leave the task out here")
    word = secrets.token_hex(16)
    read, write = os.pipe()
    wanted = {
        "python": python(),
        "start": START,
        "word_to": write,
        "shown": shown(),
        "seconds": limits.seconds,
        "memory": limits.memory,
        "disk": limits.disk,
        "processes": limits.processes,
    }
    try:
        status, complaint = _jailed(wanted, json.dumps({"word": word, "program": program}).encode(), limits.seconds)
        os.set_blocking(read, False)
        os.close(write)
        write = -1
        said = b""
        with suppress(BlockingIOError):
            said = os.read(read, 64)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if complaint:
        raise ConfigurationError(
            f"code that a model wrote is not run: this machine cannot hold it in namespaces ({complaint}); "
            "leave the task out, or allow user namespaces"
        )
    if status is None:
        return Verdict(False, f"ran longer than {limits.seconds:g} s")
    if said != word.encode():
        return Verdict(False, f"ended early or with an exception (exit status {status})")
    return Verdict(True, "passed")


def _jailed(wanted: dict[str, Any], told: bytes, seconds: float) -> tuple[int | None, str]:
    """Exit status, None when it was ended by the clock, and what the jail complained of; the program says nothing."""
    with tempfile.TemporaryFile() as source:
        source.write(told)
        source.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(JAIL), json.dumps(wanted)],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
            pass_fds=(wanted["word_to"],),
        )
        try:
            _, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()  # with it the first process inside dies, and with that one all others
            process.communicate()
            return None, ""
        except BaseException:  # an interrupt: nothing goes on behind the user's back
            process.kill()
            process.communicate()
            raise
        return process.returncode, " ".join(complaint.decode("utf-8", "replace").split())


@cache
def python() -> str:
    """The interpreter itself, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@cache
def shown() -> list[str]:
    """Directories that this Python needs, apart from the system's libraries."""
    folders = [
        os.path.dirname(python()),
        *(os.path.join(base, "lib") for base in (sys.base_prefix, sys.base_exec_prefix)),
    ]
    found = dict.fromkeys(os.path.realpath(folder) for folder in folders)
    return [folder for folder in found if not any(folder.startswith(other + os.sep) for other in found)]
