"""Between forwards one thread computes, in forwards all: threads that spin would take the cores of native forwards."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from draftwood import Engine, TabularModel
from draftwood.models.base import Batch
from draftwood.runtime import threads
from draftwood.runtime.scheduler import Scheduler

VOCAB = 40_000  # PyTorch shares out rows as long as this among its threads


class Large(TabularModel):
    """A vocabulary of real size, whose logits are given out without being computed; it sees how many threads it has."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda prefix: [1.0, 1.0], 2)
        self.vocab_size = VOCAB
        self.rows = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
        self.seen: set[int] = set()

    def forward(self, batch: Batch, cache: Any) -> torch.Tensor:
        self.seen.add(torch.get_num_threads())
        count = len(range(*batch.wanted.indices(len(batch)))) if isinstance(batch.wanted, slice) else len(batch.wanted)
        return self.rows[:count] if count <= 8 else self.rows.repeat(-(-count // 8), 1)[:count]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watch(TorchDispatchMode):
    """Notes with how many threads operations are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.setdefault(torch.get_num_threads(), set()).add(str(func))
        return func(*args, **(kwargs or {}))


METHODS: list[Any] = [
    "autoregressive",
    {"name": "speculative", "gamma": 2},
    {"name": "speculative", "gamma": 2, "verify": "coupled"},
    {"name": "mcsd", "tree": [2, 2], "depth": "fixed"},
    {"name": "dsbd", "draft_width": 2},
    "beam-search",
]
SETTINGS: list[Any] = [
    {"temperature": 0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 40, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}},
    {"min_p": 0.1},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_rows_of_logits_are_worked_on_by_one_thread_and_forwards_by_all(
    method: Any, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = Large(1), Large(2)
    engine = Engine(target, [draft])
    watch, step = Watch(), Scheduler.step

    def watched(self: Scheduler) -> None:  # a mode belongs to a thread
        with watch:
            step(self)

    monkeypatch.setattr(Scheduler, "step", watched)
    for sampling in SETTINGS if method != "beam-search" else SETTINGS[:2]:
        engine.generate([1, 2], method, sampling, max_new_tokens=4, top_logprobs=2)
    few = {"aten.detach.default", "aten.slice.Tensor", "aten.repeat.default", "aten.alias.default"}  # of the forward
    assert watch.seen.pop(2, set()) <= few | {"aten.zeros.default"}  # the cache's, before the first step
    assert watch.seen.keys() == {1} and any("log_softmax" in name for name in watch.seen[1])
    assert target.seen == {2}
    assert torch.get_num_threads() == 2


def test_no_thread_of_pytorchs_ever_begins() -> None:
    """In a process of its own, as a user starts it: the engine's worker is the only thread that is made."""
    code = (
        "import os, torch; torch.set_num_threads(1)\n"
        "from test_threads import METHODS, SETTINGS, Large\n"
        "from draftwood import Engine\n"
        "engine = Engine(Large(1), [Large(2)])\n"
        "torch.set_num_threads(2)\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = count()\n"
        "for method in METHODS[:-1]:\n"
        "    for sampling in SETTINGS:\n"
        "        engine.generate([1, 2], method, sampling, max_new_tokens=3)\n"
        "alone = count()\n"
        "torch.softmax(torch.randn(4, 1 << 16), -1)\n"
        "print(alone - before, count() - alone)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**plain, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"], "the second says that such an operation outside would make one"


def test_other_threads_and_nested_blocks_keep_their_number(two_threads: None) -> None:
    seen: list[int] = []
    with threads.alone():
        beside = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        beside.start()
        beside.join()
        seen.append(torch.get_num_threads())
        with threads.together():
            seen.append(torch.get_num_threads())
            with threads.alone():
                seen.append(torch.get_num_threads())
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
    seen.append(torch.get_num_threads())
    assert seen == [2, 1, 2, 1, 2, 1, 2]
    with pytest.raises(KeyError), threads.alone():
        raise KeyError
    assert torch.get_num_threads() == 2
    with threads.together():  # where nobody asked to be alone nothing changes
        assert torch.get_num_threads() == 2


def test_a_number_chosen_meanwhile_stays(two_threads: None) -> None:
    """A callback of a user's may set it."""
    with threads.alone():
        torch.set_num_threads(3)
    assert torch.get_num_threads() == 3
