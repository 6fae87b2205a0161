"""draftwood beside what users would otherwise run: the same weights, prompts, lengths, types and threads.

Every engine, mode and type runs in a process of its own, all of them once before any again, so that a slow minute of
the machine hits all. Each repeat has other held-out prompts. Milliseconds per new token, greedy, one request, without
the prompt's forward. What an engine cannot do here is a row with the reason.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from benchmarks.bench import Bench, rotated
from benchmarks.engines import DTYPES, PEERS, Cell, runner
from benchmarks.experiment import HERE, Kind, Rows, Strict
from benchmarks.intervals import median
from benchmarks.pairs import Pair
from draftwood.corpus import mixed
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.util.safe_parsing import parse_json, read_text

T = TypeVar("T")
OURS = "draftwood"
Samples = Sequence[Mapping[str, Any]]  # by repeat: key of a cell -> what its process gave


class Against(Strict):
    """Our mode against another engine's in the same type."""

    mode: str
    engine: str
    their_mode: str


class Peers(Kind):
    """Engines with their modes."""

    peers: dict[str, list[str]]
    compare: list[Against] = Field(default_factory=list)
    dtypes: tuple[str, ...] = DTYPES
    repeats: int = 5
    prompts: int = 2  # other ones in each repeat
    tokens: int = 128
    gamma: int = 4
    warm_up: int = 1
    limit: float = 1200  # seconds of one process

    def measure(self, bench: Bench) -> dict[str, Rows]:
        tokenizer = Tokenizer.load(bench.pair.target)
        documents = islice(mixed("held-out"), self.prompts * self.repeats)  # kinds of text in turn
        prompts = [tokenizer.encode(document.prompt) for document in documents]
        longest = max(map(len, prompts)) + self.tokens + self.gamma + 1
        # of caches with a fixed length: short, since all of it is read; with room for drafts past the end
        cells = self.cells(bench.pair, bench.run.threads, -(-longest // 64) * 64)
        failures: dict[str, str] = {}
        samples: list[dict[str, Any]] = []

        def attempt(key: str, make: Callable[[], T]) -> T | None:
            try:
                return make()
            except Failed as error:  # what failed is tried again by the next call
                failures[key] = str(error)
                return None

        for cell in bench.track(cells, "converting"):
            attempt(cell.key, partial(self.job, "prepare", cell))
        for repeat in range(self.repeats):
            some = prompts[repeat * self.prompts : (repeat + 1) * self.prompts]
            more = {"prompts": some, "tokens": self.tokens, "warm_up": self.warm_up}
            samples.append({})
            for cell in bench.track(rotated(cells, repeat), f"repeat {repeat + 1}"):
                if cell.key not in failures:
                    measured = partial(self.job, "measure", cell, **more)
                    found = attempt(cell.key, partial(bench.once, [repeat, cell.key], measured))
                    samples[-1] |= {cell.key: found} if found else {}
        ratios = [row for dtype in self.dtypes for pair in self.compare for row in against(pair, dtype, samples)]
        return {"rows": [row(cell, samples, failures) for cell in cells], "ratios": ratios}

    def cells(self, pair: Pair, threads: int, context: int) -> list[Cell]:
        """Every engine, mode and type, type by type."""
        places = str(pair.target), str(pair.draft), str(pair.made)
        program = shutil.which("llama-speculative-simple")
        found = []
        for dtype in self.dtypes:
            for peer, modes in self.peers.items():
                if peer not in PEERS:
                    raise ConfigurationError(f"there is no engine {peer!r}" + did_you_mean(peer, PEERS))
                known = runner(peer).MODES
                for mode in modes:
                    if mode not in known:
                        raise ConfigurationError(f"{peer} has no mode {mode!r}" + did_you_mean(mode, known))
                    if dtype in known[mode]:
                        found.append(Cell(peer, mode, dtype, *places, threads, self.gamma, context, program))
        return found

    def job(self, task: str, cell: Cell, **more: Any) -> dict[str, Any]:
        """One process; raises Failed."""
        result = run_job({"task": task, "cell": asdict(cell), **more}, sys.executable, cell.threads, self.limit)
        if "error" in result:
            raise Failed(result["error"])
        return result


class Failed(Exception):
    """Why a process gave no result."""


def run_job(
    job: Mapping[str, Any], python: str, threads: int, limit: float, module: str = "benchmarks.engines.cell"
) -> dict[str, Any]:
    """Run one process of a module that reads a job; whatever becomes of it, a result or {"error": reason}."""
    with tempfile.TemporaryDirectory() as place:
        question, answer = Path(place) / "job.json", Path(place) / "result.json"
        question.write_text(json.dumps({**job, "threads": threads}), "utf-8")
        home = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": home}
        try:
            command = [python, "-m", module, str(question), str(answer)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            return {"error": f"it was not done after {limit:.0f} s"}
        if answer.is_file():
            found: dict[str, Any] = parse_json(read_text(answer), finite=False)
            return found
        lines = done.stderr.strip().splitlines()
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return {"error": f"the process ended with {ended}" + (f": {lines[-1].strip()}" if lines else "")}


def seconds(samples: Samples, key: str) -> dict[tuple[int, int], float]:
    """Seconds per token by repeat and prompt."""
    return {
        (repeat, place): value
        for repeat, cells in enumerate(samples)
        if key in cells
        for place, value in enumerate(cells[key]["seconds_per_token"])
    }


def same(samples: Samples, key: str, reference: str) -> dict[str, float]:
    """Share of tokens before a text first leaves the reference's, and of texts that never do."""
    shares = []
    for cells in samples:
        if key in cells and reference in cells:
            for mine, theirs in zip(cells[reference]["tokens"], cells[key]["tokens"], strict=True):
                length = min(len(mine), len(theirs))
                first = next((i for i in range(length) if mine[i] != theirs[i]), length)
                shares.append(first / len(mine))
    if not shares:
        return {}
    whole = sum(share == 1 for share in shares) / len(shares)
    return {"same_beginning": math.fsum(shares) / len(shares), "same_text": whole}


def row(cell: Cell, samples: Samples, failures: Mapping[str, str]) -> dict[str, Any]:
    """One engine, mode and type: time, memory, start, agreement with our plain decoding."""
    line: dict[str, Any] = {"engine": cell.peer, "mode": cell.mode, "type": cell.dtype}
    if cell.key in failures:
        line["failure"] = failures[cell.key]
    taken = seconds(samples, cell.key)
    if not taken:
        return line
    found = [each[cell.key] for each in samples if cell.key in each]
    return {
        **line,
        "ms_per_token": median([1000 * value for value in taken.values()]),
        "peak_megabytes": max(each["peak_bytes"] for each in found) / 1e6,
        "load_seconds": median([each["load_seconds"] for each in found])["value"],
        "first_call_seconds": median([each["first_call_seconds"] for each in found])["value"],
        **same(samples, cell.key, f"{OURS} / plain / {cell.dtype}"),
    }


def against(pair: Against, dtype: str, samples: Samples) -> Rows:
    """The ratio of their time to ours, prompt by prompt of the same repeat; int8 against bfloat16 if need be."""
    mine = seconds(samples, f"{OURS} / {pair.mode} / {dtype}")
    for other in (dtype, "bfloat16"):
        key = f"{pair.engine} / {pair.their_mode} / {other}"
        theirs = seconds(samples, key)
        if shared := [theirs[at] / mine[at] for at in theirs if at in mine]:
            about = {**pair.model_dump(), "type": dtype, "their_type": other}
            text = same(samples, key, f"{OURS} / {pair.mode} / {dtype}")
            return [{**about, "ratio": median(shared), **text}]
    return []
