"""llama.cpp's server, `llama-server`, on the weights that its engine has here; token ids go in and out as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from weakref import finalize

from benchmarks.engines import Batched, Cell, Unavailable
from benchmarks.engines.gguf_file import write
from benchmarks.engines.llama_cpp_engine import drafting
from benchmarks.kinds.http import started

PROGRAM = "llama-server"
MODES = ("plain", "speculation")


def command(cell: Cell, slots: int) -> list[str]:
    """The command that serves so many requests at once, each with the cell's context; its weights are converted."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise Unavailable(f"put llama.cpp's program {PROGRAM} on the PATH")
    if cell.peer != "llama.cpp" or cell.mode not in MODES:
        raise Unavailable(f"{cell.peer} is not asked for {cell.mode!r} here; llama.cpp is, for {' and '.join(MODES)}")
    speculates = cell.mode == "speculation"
    for role in ("target", "draft") if speculates else ("target",):
        write(Path(getattr(cell, role)), cell.converted(role, suffix=".gguf"), cell.dtype)
    options: dict[str, Any] = {
        "--model": cell.converted("target", suffix=".gguf"),
        **(drafting(cell) if speculates else {}),
        "--host": "127.0.0.1",
        "--port": 0,
        "--parallel": slots,
        "--ctx-size": slots * cell.context,
        "--threads": cell.threads,
        "--cache-ram": 0,
    }
    return [program, *(str(part) for item in options.items() for part in item), "--no-webui", "--no-cache-prompt"]


def batched(cell: Cell) -> Batched:
    """Its parallel decoding: all prompts are sent at once. The server ends with the function, or with this process."""
    running = ExitStack()
    address = running.enter_context(started(command(cell, cell.requests)))

    def ask(count: int, prompt: list[int]) -> int:
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        url, kind = "http://{}:{}/v1/completions".format(*address), {"content-type": "application/json"}
        with urlopen(Request(url, json.dumps(body).encode(), kind)) as answer:
            tokens: int = json.load(answer)["usage"]["completion_tokens"]
        return tokens

    def run(prompts: Sequence[list[int]], count: int) -> None:
        with ThreadPoolExecutor(len(prompts)) as pool:
            if min(pool.map(partial(ask, count), prompts)) < count:
                raise RuntimeError("a text has fewer tokens than were asked for")

    finalize(run, running.close)
    return run
