"""Resident memory after loads: nothing that nobody holds stays with the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood
from draftwood.util import resident

LOAD = """
import asyncio, json, random, sys
import draftwood
from draftwood.util.resident import resident

METHODS = ["autoregressive", {"name": "speculative", "gamma": 4}, {"name": "mcsd", "tree": [4, 3]},
           {"name": "dsbd", "width": 4}, {"name": "beam-search", "width": 8}]
engine, rng = draftwood.load(), random.Random(1)
vocab, context = engine.target.vocab_size, engine.target.context

async def one(served, i):
    length = rng.randrange(16, context // 2)
    prompt = rng.choices(range(5, vocab), k=length)
    await served.generate(prompt, method=METHODS[i % len(METHODS)], max_new_tokens=rng.randrange(8, 64), seed=i,
                          top_logprobs=5, ignore_eos=True)

async def main():
    series = [resident()]
    async with draftwood.AsyncEngine(engine) as served:
        for _ in range(int(sys.argv[1])):
            await asyncio.gather(*(one(served, i) for i in range(int(sys.argv[2]))))
            engine.reset_prefix_cache()
            series.append(resident())
    print(json.dumps(series))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(resident.resident() is None, reason="this system does not tell what is resident")
def test_memory_goes_back_when_a_load_has_ended() -> None:
    """The series is printed: `pytest -m slow -s tests/util/test_resident.py`."""
    env = os.environ | {"PYTHONPATH": str(Path(draftwood.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LOAD, "3", "64"], env=env, capture_output=True, text=True, check=True)
    before, first, *later = (int(each) for each in done.stdout.strip()[1:-1].split(","))
    print("resident megabytes:", [round(each / 1e6) for each in (before, first, *later)])
    assert max(later) <= 1.3 * first
    assert first <= 1.5 * before


def test_nothing_is_asked_of_a_library_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(resident, "_trimmer", lambda: calls.append)
    resident.give_back()
    assert calls == [0]
    monkeypatch.setattr(resident, "_trimmer", lambda: None)
    resident.give_back()

    def lacking(name: object) -> object:
        return object()

    monkeypatch.undo()
    resident._trimmer.cache_clear()
    monkeypatch.setattr("draftwood.util.resident.ctypes.CDLL", lacking)
    assert resident._trimmer() is None
    resident._trimmer.cache_clear()
