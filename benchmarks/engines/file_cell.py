"""The process that measures one engine on one GGUF file: `python -m benchmarks.engines.file_cell JOB RESULT`, two JSON
files, as cell.py.

An engine's module has `start(threads)`, which imports the engine and returns its version, and a class `Model` (see
`Reader`). Nothing else is imported here, so that llama.cpp's binding may be in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from benchmarks.engines import peak_bytes

WARM_UP_TOKENS = 8
MAX_DRAFTED = 16  # tokens that an engine may read beyond the end of an answer
TREE = "tree of "  # before the number of nodes


class Reader(Protocol):
    """A model of one file."""

    def decode(self, prompt: list[int], count: int) -> list[int]:
        """That many greedy tokens after a prompt, which is read anew."""

    def forward(self, context: list[int], tokens: list[int]) -> Callable[[], object]:
        """Read a context; the function that is returned computes the logits of all `tokens` behind it."""

    def nats(self, text: list[int]) -> float:
        """The negative logarithm of the probability of a text, given its first token."""


def speed(model: Reader, job: dict[str, Any], base: int) -> dict[str, Any]:
    """Seconds of a token, a prompt and forwards, and the bytes that the process took above `base` before these.

    Decoding alone is the time of `tokens` tokens less that of one, which has the prompt's forward and all that a call
    costs once. Forwards of all numbers of rows take turns.
    """
    prompt, count = job["prompt"], job["tokens"]
    context = prompt[: job["context"]]
    model.decode(context, min(WARM_UP_TOKENS, count))
    whole, one = (seconds(lambda: model.decode(context, n)) for n in (count, 1))  # noqa: B023  (called at once)
    result = {"token": (whole - one) / (count - 1), "prompt": seconds(lambda: model.decode(prompt, 1))}
    peak = peak_bytes() - base
    behind = prompt[len(context) :]
    forwards = {str(rows): model.forward(context, behind[:rows]) for rows in job["rows"]}
    if (tree := getattr(model, "tree", None)) is not None:
        forwards |= {f"{TREE}{nodes}": tree(context, behind[:nodes]) for nodes in job.get("trees", ())}
    turns = [{rows: seconds(each) for rows, each in forwards.items()} for _ in range(1 + job["forwards"])][1:]
    rows = {name: median(turn[name] for turn in turns) for name in forwards}
    return {**result, "peak_bytes": peak, "rows": rows}


def behind(model: Reader, job: dict[str, Any]) -> list[float]:
    """Seconds of a token behind each of the job's contexts."""
    medians = []
    for context in job["contexts"]:
        forward = model.forward(job["prompt"][:context], job["prompt"][context : context + 1])
        medians.append(median([seconds(forward) for _ in range(1 + job["forwards"])][1:]))
    return medians


def answers(model: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds and tokens of whole requests, which end at a token of `end` or after `tokens` tokens."""
    model.answer(job["prompts"][0], WARM_UP_TOKENS, job["temperature"], job["end"])
    taken = []
    for prompt in job["prompts"]:
        began = perf_counter()
        tokens = model.answer(prompt, job["tokens"], job["temperature"], job["end"])
        taken.append({"seconds": perf_counter() - began, "tokens": tokens})
    return taken


def seconds(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    began = perf_counter()
    call()
    return perf_counter() - began


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Do the job's task: speed, contexts, nats (of texts), answers (to prompts), or first (one token, for whoever times
    the process)."""
    engine = import_module(f"benchmarks.engines.{job['engine']}")
    version = engine.start(job["threads"])
    base = peak_bytes()
    began = perf_counter()
    model: Reader = engine.Model(job)
    loaded = perf_counter() - began
    if job["task"] == "nats":
        return {"nats": [model.nats(text) for text in job["texts"]]}
    if job["task"] == "answers":
        return {"version": version, "answers": answers(model, job)}
    if job["task"] == "contexts":
        return {"seconds": behind(model, job)}
    if job["task"] == "first":
        return {"tokens": model.decode(job["prompt"], 1)}
    return {"load": loaded, "version": version, **speed(model, job, base)}


def longest(job: dict[str, Any]) -> int:
    """The most tokens that a job has in memory at once."""
    lengths = [len(job.get("prompt", ())) + int(job.get("tokens", 1)), *map(len, job.get("texts", ()))]
    lengths.append(max(map(len, job.get("prompts", ())), default=0) + job.get("tokens", 1) + MAX_DRAFTED)
    lengths.append(job.get("context", 0) + sum(job.get("rows", ())) * (1 + job.get("forwards", 0)))  # see file_llama
    return -(-max(lengths) // 64) * 64


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        result = run(job)
    except BaseException as error:
        result = {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
    Path(sys.argv[2]).write_text(json.dumps(result), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # the engines' own teardown is no part of what is measured


if __name__ == "__main__":
    main()
