"""The process inside a sandbox of programs.py: a program, or its tests. Started with `python -c`; imports no draftwood.

The two run in sandboxes of their own, joined by one stream. The tests' side writes a call a line, [function, arguments,
named arguments], and the program's side a reply, ["value", value] or ["error", type, message], once more than there are
calls: the first says that the program ran to its end. Only plain values cross, so a program can answer but not judge.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO


def confine(limits: dict[str, Any]) -> None:
    """Mount the one writable folder, then set the limits and give up every privilege. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={limits['disk']},nr_inodes=1000,mode=777".encode()
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 2 | 4, options):  # no set-uid programs, no devices
        raise OSError(ctypes.get_errno(), "cannot mount /tmp")
    os.chdir("/tmp")
    for what, bound in {
        resource.RLIMIT_CPU: int(limits["seconds"]) + 1,
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["disk"],
        resource.RLIMIT_NPROC: limits["threads"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_CORE: 0,
    }.items():
        hard = resource.getrlimit(what)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (bound, bound))
    if os.getuid() == 0:  # else bwrap has made a user namespace, which knows the caller's user alone
        os.setgroups([])
        os.setresgid(*[limits["user"]] * 3)
        os.setresuid(*[limits["user"]] * 3)
    if libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()):  # version 3, this process: none
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")


def pack(value: Any) -> Any:
    """A plain value as JSON; subclasses become their base type. Raises TypeError for any other object."""
    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return ["int", hex(value)]
        case complex():
            return ["complex", [value.real, value.imag]]
        case bytes() | bytearray():
            return ["bytes", value.hex()]
        case dict():
            return ["dict", [[pack(key), pack(item)] for key, item in value.items()]]
        case list() | tuple() | set() | frozenset() | Iterator():
            kinds = {list: "list", tuple: "tuple", set: "set", frozenset: "set"}
            kind = next((name for base, name in kinds.items() if isinstance(value, base)), "iterator")
            return [kind, [pack(item) for item in value]]
    raise TypeError(f"an object of type {type(value).__name__} cannot leave its sandbox")


def unpack(value: Any) -> Any:
    """The value that `pack` wrote. Raises ValueError, TypeError or KeyError where it wrote no such thing."""
    if not isinstance(value, list):
        return value
    kind, parts = value
    simple: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "complex": lambda pair: complex(*pair),
        "bytes": bytes.fromhex,
        "dict": lambda pairs: {unpack(key): unpack(item) for key, item in pairs},
    }
    many: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "iterator": iter}
    return simple[kind](parts) if kind in simple else many[kind]([unpack(part) for part in parts])


def answer_calls(source: str, calls: TextIO, replies: TextIO) -> None:
    """Run a program to its end, then call its functions as asked."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "program", "exec"), space)
    print(json.dumps(["value", None]), file=replies, flush=True)
    for line in calls:
        name, arguments, named = json.loads(line)
        try:
            reply = ["value", pack(space[name](*unpack(arguments), **unpack(named)))]
        except Exception as error:
            reply = ["error", type(error).__name__, str(error)]
        print(json.dumps(reply), file=replies, flush=True)


def judge(source: str, functions: list[str], calls: TextIO, replies: TextIO) -> str:
    """Run tests of functions that live on the other side: "passed", or why not, in a few words."""
    ended, reason = False, "passed"

    def ask(call: str) -> Any:
        nonlocal ended
        line = ""
        with suppress(ConnectionError):
            print(call, end="", file=calls, flush=True)
            line = replies.readline()
        ended = ended or not line
        kind, *rest = json.loads(line)
        if kind == "value":
            return unpack(rest[0])
        error: Any = getattr(builtins, rest[0], None)
        known = isinstance(error, type) and issubclass(error, Exception)
        raise error(rest[1]) if known else RuntimeError(": ".join(rest))

    def remote(name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: ask(json.dumps([name, pack(arguments), pack(named)]) + "\n")

    try:
        ask("")
        exec(compile(source, "tests", "exec"), {"__name__": "tests", **{name: remote(name) for name in functions}})
    except BaseException:
        reason = "failed a test"
    return "ended early or with an exception" if ended else reason


def main() -> None:
    with open("/request", encoding="utf-8") as file:
        request = json.load(file)
    stream, verdict = os.dup(0), os.dup(1)
    confine(request["limits"])
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):  # what is printed goes nowhere; until here errors went to the caller
        os.dup2(nothing, standard)
    with open(stream, encoding="utf-8") as received, open(stream, "w", encoding="utf-8", closefd=False) as sent:
        if request["functions"] is None:
            os.close(verdict)
            answer_calls(request["source"], received, sent)
        else:
            os.write(verdict, judge(request["source"], request["functions"], sent, received).encode())
        signal.pause()  # to be ended by the caller


if __name__ == "__main__":
    main()
