"""The memory limit of an engine's key/value caches, and the memory that a device still has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from draftwood.errors import OverBudget


class MemoryHolder(Protocol):
    """A cache that counts against a budget; `trim` gives back its memory that no request uses."""

    def trim(self) -> None: ...


@dataclass(slots=True, eq=False)
class MemoryBudget:
    """A limit for the bytes that several caches allocate together; None: no limit. Deleted caches do not count."""

    limit: int | None = None
    bytes_of: WeakKeyDictionary[MemoryHolder, int] = field(default_factory=WeakKeyDictionary)

    @property
    def used(self) -> int:
        """The bytes that all caches have allocated."""
        return sum(self.bytes_of.values())

    def allows(self, cache: MemoryHolder, count: int) -> bool:
        """True if a cache may grow to `count` bytes; the other caches give back idle memory where that is needed."""
        more = count - self.bytes_of.get(cache, 0)
        if self.limit is None or more <= 0 or self.used + more <= self.limit:
            return True
        for other in [other for other in self.bytes_of if other is not cache]:
            other.trim()
        return self.used + more <= self.limit

    def take(self, cache: MemoryHolder, count: int) -> None:
        """Record that a cache is about to have `count` bytes; raises OverBudget where the limit forbids it."""
        if not self.allows(cache, count):
            need = self.used - self.bytes_of.get(cache, 0) + count
            raise OverBudget(f"{need:,} bytes of keys and values are needed, but the budget is {self.limit:,}")
        self.bytes_of[cache] = count


def free_bytes(device: torch.device, proc: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """The bytes that can still be allocated on a device, or on this machine within its control group.

    Memory that holds cached files counts as free. Where a system does not tell, 4 GiB are assumed.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = _number_after(proc / "meminfo", "MemAvailable:") * 1024
    except OSError:
        return 4 << 30
    with suppress(OSError, ValueError):  # no group, or no limit
        used = int((group / "memory.current").read_text()) - _number_after(group / "memory.stat", "inactive_file")
        free = min(free, int((group / "memory.max").read_text()) - used)
    return max(0, free)


def _number_after(file: Path, name: str) -> int:
    return next(int(words[1]) for line in file.read_text().splitlines() if (words := line.split())[0] == name)
