"""Starts the processes of a split decoder, or connects to those that torchrun started, and ends them all.

Processes that are started here find each other through a file and use the loopback interface; those of torchrun use
what torchrun configured.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from draftwood.errors import ConfigurationError, DraftwoodError, ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.parallel import group as groups
from draftwood.models.parallel.follower import follow, loaded, ready
from draftwood.models.parallel.group import ProcessGroup, dist
from draftwood.models.partition import check

POLL_SECONDS = 0.02  # between checks of whether the other processes have loaded their parts, or ended
LOADING_TIMEOUT = 3600.0  # seconds that processes of torchrun may take to load
END_TIMEOUT = 5.0  # seconds after which a process that does not end is killed

_TORCHRUN_MODELS: list[Path] = []  # the model that the processes of torchrun compute: there can be one

log = logging.getLogger(__name__)


def launched() -> bool:
    """True if torchrun, or a launcher that sets the same variables, started this process and others."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys() and os.environ["WORLD_SIZE"] != "1"


def leads() -> bool:
    """True if this process takes requests: it is the first one of torchrun, or torchrun did not start it."""
    return not launched() or os.environ["RANK"] == "0"


def load(
    source: str | Path,
    size: int,
    dtype: str | torch.dtype,
    device: torch.device,
    quantize: str | None,
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
) -> Decoder:
    """Load a decoder that `size` processes compute. Returns in the driver; in followers of torchrun it never does."""
    if quantize == "int4":
        raise ConfigurationError("quantize int4 is for one process; leave it, or tensor_parallel, out")
    home = checkpoint.locate(source)
    check(checkpoint.described(home)[2], size, home)
    how: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "quantize": quantize}
    how |= {"kv_dtype": kv_dtype, "max_model_len": max_model_len}
    if launched():
        return _met(home, size, _device(device, int(os.environ.get("LOCAL_RANK", "0"))), how)
    devices = [_device(device, rank) for rank in range(size)]
    started = _Started(ProcessGroup(0, size, devices[0], groups.FORWARD_TIMEOUT))
    try:
        decoder = started.load(home.resolve(), devices, how)
    except BaseException:
        started.close()
        raise
    weakref.finalize(decoder, started.close)
    log.info("%s is split among %d processes: %s", home, size, [os.getpid(), *(each.pid for each in started.processes)])
    return decoder


def _device(device: torch.device, rank: int) -> torch.device:
    """The device of process `rank` on this machine: GPUs in order, from the one that `device` names."""
    if device.type != "cuda":
        return device
    index = (device.index or 0) + rank
    if index >= torch.cuda.device_count():
        raise ConfigurationError(
            f"tensor_parallel needs a GPU for each process, but cuda:{index} is not there; lower it, or use device cpu"
        )
    return torch.device("cuda", index)


def _met(home: Path, size: int, device: torch.device, how: dict[str, Any]) -> Decoder:
    """Load a decoder in the processes of torchrun; all but the first one follow it until it ends, and exit."""
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if world != size:
        raise ConfigurationError(f"torchrun started {world} processes, but tensor_parallel is {size}; give one number")
    if _TORCHRUN_MODELS:
        raise ConfigurationError("the processes of torchrun compute one model; start another run for the second one")
    _TORCHRUN_MODELS.append(home)
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=LOADING_TIMEOUT)))
    group = ProcessGroup(rank, size, device, groups.FORWARD_TIMEOUT)
    decoder = loaded(group, store, home, **how)
    for other in range(size):
        store.wait([ready(other)], timedelta(seconds=LOADING_TIMEOUT))
        if error := store.get(ready(other)).decode():
            raise ModelError(f"process {other} of tensor_parallel={size} could not load its part: {error}")
    group.connect(store, loopback=os.environ.get("GROUP_WORLD_SIZE") == "1")
    if group.drives:
        weakref.finalize(decoder, group.end)
        return decoder
    with suppress(RuntimeError):  # the driver is gone: torchrun sees why
        follow(decoder, group)
    sys.exit(0)


@dataclass(slots=True, eq=False)
class _Started:
    """The followers as child processes of the driver."""

    group: ProcessGroup
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    closing: bool = False

    def load(self, home: Path, devices: Sequence[torch.device], how: dict[str, Any]) -> Decoder:
        """Start the followers, load this process's part meanwhile, and connect to them."""
        size, place = len(devices), Path(tempfile.mkdtemp(prefix="draftwood-"))
        try:
            file = str(place / "store")
            store = dist.FileStore(file, size)
            self._share_threads(devices[0], size)
            settings = {"size": size, "store": file, "source": str(home), "patience": self.group.patience, **how}
            settings["threads"] = torch.get_num_threads()
            for rank in range(1, size):
                self._start({**settings, "rank": rank, "device": str(devices[rank])})
            decoder = loaded(self.group, store, home, **how)
            for rank in range(1, size):
                self._await(store, rank)
            self.group.connect(store)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        self.group.why = self._ended
        for rank, process in enumerate(self.processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()
        return decoder

    @staticmethod
    def _share_threads(device: torch.device, size: int) -> None:
        """On a CPU, limit the threads so that all processes together use no more than there are cores."""
        max_threads = max(1, (os.cpu_count() or 1) // size)
        if device.type == "cpu" and torch.get_num_threads() > max_threads:
            torch.set_num_threads(max_threads)

    def _start(self, settings: dict[str, Any]) -> None:
        home = str(Path(__file__).parents[3])  # where `draftwood` is imported from
        paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "draftwood.models.parallel.follower"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            process_group=0,  # a terminal's Ctrl-C is for the driver
        )
        self.processes.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: that is seen when it is awaited
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()

    def _await(self, store: Any, rank: int) -> None:
        """Wait until a process has loaded its part; raises its error, or an error where it ended."""
        while not store.check([ready(rank)]):
            if self.processes[rank - 1].poll() is not None and not store.check([ready(rank)]):
                raise DraftwoodError(f"{self._ended()} while it loaded its part of the model; is there enough memory?")
            time.sleep(POLL_SECONDS)
        if error := store.get(ready(rank)).decode():
            raise ModelError(f"process {rank} of tensor_parallel could not load its part: {error}")

    def _ended(self) -> str | None:
        """A sentence that says which process ended, or None; waits up to a second, because a crash is seen late."""
        until = time.monotonic() + 1
        while not self.closing and time.monotonic() < until:
            for rank, process in enumerate(self.processes, 1):
                if (code := process.poll()) is not None:
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    return f"process {rank} of tensor_parallel={self.group.size} {how}"
            time.sleep(POLL_SECONDS)
        return None

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait, in a thread, for a process to end, and mark the group as broken then."""
        process.wait()
        if not self.closing:
            self.group.fail(self._ended() or f"process {rank} of tensor_parallel={self.group.size} has ended")

    def close(self) -> None:
        """End the processes, by closing their input; those that do not end are killed."""
        self.closing = True
        for process in self.processes:
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
