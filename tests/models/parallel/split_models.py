"""A decoder split among threads in place of processes, over the same collectives: what tests of parts are made with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.parallel.follower import follow
from draftwood.models.parallel.group import ProcessGroup

CPU = torch.device("cpu")


@dataclass
class Split:
    """The driver's decoder, and those of the followers."""

    driver: Decoder
    followers: list[Decoder] = field(default_factory=list)


@contextmanager
def split(
    home: Path,
    size: int = 2,
    patience: float = 20,
    work: Callable[[Decoder, ProcessGroup], None] = follow,
    **how: Any,
) -> Iterator[Split]:
    """The decoder of a checkpoint; `work` is what followers do once they have met."""
    store = dist.HashStore()
    followers: list[Decoder] = []
    ended = threading.Event()

    def run(rank: int) -> None:
        group = ProcessGroup(rank, size, CPU, patience)
        decoder = checkpoint.load(home, **how, backend="pytorch", parallel=group)
        followers.append(decoder)
        group.connect(store)
        with suppress(RuntimeError):  # the driver has gone
            work(decoder, group)
        ended.wait()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    group = ProcessGroup(0, size, CPU, patience)
    driver = checkpoint.load(home, **how, backend="pytorch", parallel=group)
    group.connect(store)
    try:
        yield Split(driver, followers)
    finally:
        group.end()
        ended.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
