"""Energy as counters read it: NVML's of the GPU (extra `eval`), RAPL's of the CPU.

NVML's counter moves every 20 to 100 ms, so of short runs only sums over many mean something.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from draftwood.errors import ConfigurationError

NOT_AVAILABLE = "not available on this machine"
POWERCAP = Path("/sys/class/powercap")


class Counter(Protocol):
    """Counts joules since some moment; never goes back."""

    name: str

    def joules(self) -> float: ...


class Nvml:
    """The total energy of one NVIDIA GPU since its driver was loaded (Volta and newer)."""

    name = "gpu"

    def __init__(self, index: int, library: Any) -> None:
        self._library = library
        self._handle = library.nvmlDeviceGetHandleByIndex(index)
        self.joules()  # older GPUs have no counter

    def joules(self) -> float:
        return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000


class Rapl:
    """The energy of all CPU packages. The kernel's counters wrap around; reading them often enough undoes that."""

    name = "cpu"

    def __init__(self, root: Path) -> None:
        self._zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        if not self._zones:
            raise OSError("no RAPL")
        self._span = [int((zone / "max_energy_range_uj").read_text()) + 1 for zone in self._zones]
        self._last = self._read()
        self._sum = 0

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def joules(self) -> float:
        now = self._read()
        self._sum += sum((new - old) % span for new, old, span in zip(now, self._last, self._span, strict=True))
        self._last = now
        return self._sum / 1e6


def counters(device: torch.device) -> list[Counter]:
    """The energy counters of this machine: of the GPU that is computed on, and of the CPU."""
    available: list[Counter] = []
    if device.type == "cuda":
        with suppress(Exception):  # not installed, no driver, no counter, no right: each has an error of its own
            library = import_module("pynvml")
            library.nvmlInit()
            available.append(Nvml(_physical(device, library), library))
    with suppress(OSError, ValueError):  # not there, or for root only
        available.append(Rapl(POWERCAP))
    return available


def _physical(device: torch.device, library: Any) -> int:
    """NVML's index of a device that torch counts among the visible ones."""
    wanted = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    for index in range(library.nvmlDeviceGetCount()):
        uuid = library.nvmlDeviceGetUUID(library.nvmlDeviceGetHandleByIndex(index))
        if wanted and wanted in (uuid if isinstance(uuid, str) else uuid.decode()):
            return index
    raise ConfigurationError(f"NVML does not know device {device}")


@dataclass(slots=True)
class Meter:
    """Reads counters around runs. `idle` is the power in watts of the machine doing nothing, by counter."""

    counters: Sequence[Counter]
    idle: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)

    def rest(self, seconds: float) -> None:
        """Measure the idle power; models are loaded and nothing runs."""
        if not self.counters:
            return
        before, began = self._read(), time.perf_counter()
        time.sleep(seconds)
        after, took = self._read(), time.perf_counter() - began
        self.idle = {name: (after[name] - before[name]) / took for name in after.keys() & before.keys()}

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> dict[str, float]:
        """Joules since `start`, by counter."""
        after = self._read()
        return {name: after[name] - before for name, before in self._before.items() if name in after}

    def _read(self) -> dict[str, float]:
        joules = {}
        for counter in self.counters:
            with suppress(Exception):  # a reading that fails is missing; the run that it belongs to is not to blame
                joules[counter.name] = counter.joules()
        return joules
