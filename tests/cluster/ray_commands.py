"""Commands on Ray, in processes of their own, as tests start, watch and end them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path


class Process:
    """A command in a process of its own, with all that it starts."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "draftwood", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()))
        self._reader.start()

    def wait_for(self, pattern: str, seconds: float = 300) -> re.Match[str]:
        """Until something is on standard error."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if found := re.search(pattern, "".join(self.said)):
                return found
            time.sleep(0.05)
        raise AssertionError("".join(self.said))

    def below(self, title: str) -> list[int]:
        """Processes that it started, itself or by others, and that are called so."""
        return below(self.process.pid, title)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self._reader.join(30)
        assert self.process.stderr is not None
        self.process.stderr.close()


def below(process: int, title: str) -> list[int]:
    """Processes that a process started, itself or by others, and that are called so."""
    parents, titles = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue

    def mine(pid: int) -> bool:
        return pid == process or (pid in parents and mine(parents[pid]))

    return [pid for pid in parents if title in titles.get(pid, "") and mine(pid)]


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
