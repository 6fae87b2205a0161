"""The process of one measurement: `python -m benchmarks.engines.cell JOB RESULT`, two JSON files.

A failure is written as a reason; that a crash is one too is for the parent to see.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.engines import Cell, Generate, peak_bytes, runner

WARM_UP_TOKENS = 16


def measure(generate: Generate, prompts: list[list[int]], tokens: int, warm_up: int) -> dict[str, Any]:
    """Seconds per new token of each prompt, the prompt's forward left out, and the tokens.

    Decoding alone is the time of `tokens` tokens less that of one, which has the prompt's forward and all that a call
    costs once. Engines that tell it themselves (in a process of their own) are believed.
    """
    for _ in range(warm_up):
        generate(prompts[0], min(WARM_UP_TOKENS, tokens))
    seconds, texts, peak = [], [], 0
    for prompt in prompts:
        began = perf_counter()
        out = generate(prompt, tokens)
        whole = perf_counter() - began
        if len(out.tokens) < tokens:
            raise RuntimeError(f"it gave {len(out.tokens)} of {tokens} tokens")
        per_token = out.seconds_per_token
        if per_token is None:
            began = perf_counter()
            generate(prompt, 1)
            per_token = (whole - (perf_counter() - began)) / (tokens - 1)
        seconds.append(per_token)
        texts.append(out.tokens[:tokens])
        peak = max(peak, out.peak_bytes or 0)
    return {"seconds_per_token": seconds, "tokens": texts, "peak_bytes": peak or peak_bytes()}


def reason(error: BaseException) -> str:
    """An exception in one sentence."""
    lines = str(error).strip().splitlines() or [""]
    text = next((line.strip() for line in lines if line.strip()), "")
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; pip install draftwood[bench]"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Do what the job says."""
    cell = Cell(**job["cell"])
    module = runner(cell.peer)
    if job["task"] == "prepare":
        module.prepare(cell)
        return {}
    began = perf_counter()
    generate = module.load(cell)
    loaded = perf_counter() - began
    began = perf_counter()
    generate(job["prompts"][0], min(WARM_UP_TOKENS, job["tokens"]))
    first = perf_counter() - began
    result = measure(generate, job["prompts"], job["tokens"], job["warm_up"] - 1)
    return result | {"load_seconds": loaded, "first_call_seconds": first}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        if job["task"] != "prepare":
            import torch

            torch.set_num_threads(job["threads"])
        result = run(job)
    except BaseException as error:
        result = {"error": reason(error)}
    Path(sys.argv[2]).write_text(json.dumps(result), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # the engines' own teardown is no part of what is measured


if __name__ == "__main__":
    main()
