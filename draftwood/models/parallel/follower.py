"""A follower: a process with a part of a decoder, which repeats the forwards that the driving process announces.

`python -m draftwood.models.parallel.follower` is started by launch.py, with its settings as a line of JSON on standard
input. That stays open as long as the driver lives: a follower ends with it, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

from draftwood.models.cache import Cache
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.heads.skip import Skipped, SkippedDecoder
from draftwood.models.parallel.group import END_ORDER, HEAD_ORDER, ProcessGroup, dist
from draftwood.models.parallel.wire import ForwardOrder


def follow(decoder: Decoder, group: ProcessGroup) -> None:
    """Execute the driver's orders until it sends the last one. Raises RuntimeError where the driver is gone."""
    caches: dict[int, Cache] = {}

    @cache
    def model(attention: tuple[int, ...], mlp: tuple[int, ...]) -> Decoder:
        return SkippedDecoder(decoder, Skipped(attention, mlp)) if attention or mlp else decoder

    with torch.inference_mode():
        while True:
            kind, numbers, states = group.receive_order(decoder.config.hidden_size, decoder.dtype)
            if kind == END_ORDER:
                return
            if kind == HEAD_ORDER:
                group.gather(decoder.head(states), decoder.vocab_size)
                continue
            order = ForwardOrder.read(numbers, states)
            for number in order.gone:
                caches.pop(number, None)
            if order.cache not in caches:
                caches[order.cache] = decoder.new_cache()
            caches[order.cache].replay(order.changes)
            model(*order.skipped).forward(order.batch, caches[order.cache])


def loaded(group: ProcessGroup, store: Any, source: Path, **how: Any) -> Decoder:
    """Load this process's part of a decoder, and put an empty text, or the error, into the store for the others."""
    error_text = f"stopped while it loaded {source}"
    try:
        decoder = checkpoint.load(source, **how, device=group.device, backend="pytorch", parallel=group)
        error_text = ""
    except Exception as error:
        error_text = str(error) or type(error).__name__
        raise
    finally:
        store.set(ready(group.rank), error_text)
    return decoder


def ready(rank: int) -> str:
    """The key of the store under which process `rank` reports that it has loaded its part."""
    return f"loaded/{rank}"


def _end_with_driver() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, whose lock an interpreter needs at its end
        pass
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_driver, daemon=True).start()
    torch.set_num_threads(settings["threads"])
    size, patience = settings["size"], settings["patience"]
    store = dist.FileStore(settings["store"], size)
    group = ProcessGroup(settings["rank"], size, torch.device(settings["device"]), patience)
    try:
        how = {name: settings[name] for name in ("dtype", "quantize", "kv_dtype", "max_model_len")}
        decoder = loaded(group, store, Path(settings["source"]), **how)
    except Exception:
        sys.exit(1)  # the driver says why
    group.connect(store)
    try:
        follow(decoder, group)
    except RuntimeError:
        sys.exit(1)  # the driver is gone, or says what happened


if __name__ == "__main__":
    main()
