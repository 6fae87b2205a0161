"""The walls around a program that a model wrote. Started as a script, alone: imports nothing of draftwood.

Linux namespaces give the program an empty network, a file system of its own (an empty one in memory, with Python and
the system's libraries in it, read-only, and one writable folder), and its own process table, all of whose processes
die with it. It runs without privileges and under limits of time, memory, processes and file sizes. Where any of this
cannot be had, nothing is run: exit status 97 and one line on standard error.

Arguments: one JSON document. The program comes on standard input; bytes that it writes to descriptor 3 come out.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

NO_WALLS = 97
NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    1 << 30,
)
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOBODY = 65534
LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32")
FOLDER = "/tmp"

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError where a system call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
    check(libc.mount(source.encode(), place.encode(), kind.encode(), flags, options.encode()), f"mount {place}")


def attributes_read_only(place: str) -> None:
    """Make a mount and all below it read-only, without devices and set-uid programs (Linux 5.12)."""
    wanted = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
    done = libc.syscall(MOUNT_SETATTR, -100, place.encode(), AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted))
    check(done, f"mount_setattr {place}")


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def separate() -> None:
    """Leave the namespaces of the machine; without root's rights by way of a user namespace."""
    apart = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS | NEW_NET
    user, group = os.getuid(), os.getgid()
    if user == 0:
        check(libc.unshare(apart), "unshare")
        return
    check(libc.unshare(apart | NEW_USER), "unshare")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")  # itself, not root: what is started has no rights
    write("/proc/self/gid_map", f"{group} {group} 1")


def build(wanted: dict[str, Any]) -> None:
    """Enter a root of its own: Python and libraries to read, one folder to write, nothing else."""
    mount("none", "/", "none", RECURSIVE | PRIVATE)
    root = FOLDER  # any directory will do: it is covered in this namespace only
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for shown in dict.fromkeys([*LIBRARIES, *wanted["shown"]]):
        if os.path.islink(shown):
            target = root + shown
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not os.path.lexists(target):
                os.symlink(os.readlink(shown), target)
        elif os.path.isdir(shown):
            os.makedirs(root + shown, exist_ok=True)
            mount(shown, root + shown, "none", BIND | RECURSIVE)
    attributes_read_only(root)
    mount("none", root, "none", REMOUNT | NO_SUID | NO_DEVICES, "size=1m,mode=755")  # for one more folder
    os.makedirs(root + FOLDER, exist_ok=True)
    mount("tmpfs", root + FOLDER, "tmpfs", NO_SUID | NO_DEVICES, f"size={wanted['disk']},nr_inodes=1000,mode=777")
    os.chdir(root)
    machine = os.uname().machine
    if machine not in PIVOT_ROOT:
        raise OSError(0, f"no pivot_root known for {machine}")
    check(libc.syscall(PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount")
    os.chdir("/")
    check(
        libc.mount(b"none", b"/", b"none", REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES, b"size=1m,mode=755"), "remount"
    )
    os.chdir(FOLDER)


def limit(wanted: dict[str, Any]) -> None:
    """What the program may use at most."""
    cpu = int(wanted["seconds"]) + 1
    bounds = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_AS: wanted["memory"],
        resource.RLIMIT_FSIZE: wanted["disk"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NPROC: wanted["processes"],
    }
    for what, most in bounds.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def drop_rights() -> None:
    """No privileges, and no way to gain any."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def refuse(error: OSError, complaints: int) -> NoReturn:
    os.write(complaints, f"{error.strerror or error}\n".encode())
    os._exit(NO_WALLS)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    complaints = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 10)  # the program has not got it
    try:
        separate()
    except OSError as error:
        refuse(error, complaints)
    child = os.fork()  # the first process of the new table: with it all others die
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.close(2)  # the program's own words go where its output goes
    os.dup2(1, 2)
    os.dup2(wanted["word_to"], 3)
    try:
        build(wanted)
        drop_rights()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # again: a change of user forgets it
        limit(wanted)
        os.execve(wanted["python"], [wanted["python"], "-I", "-S", "-B", "-c", wanted["start"]], {"HOME": FOLDER})
    except OSError as error:
        refuse(error, complaints)


if __name__ == "__main__":
    main()
