"""llama.cpp's server, `llama-server`, on the weights that its engine has here; token ids go in and out as they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from draftwood.eval.experiments.engines import Cell, Unavailable
from draftwood.eval.experiments.engines.gguf_file import write
from draftwood.eval.experiments.engines.llama_cpp_engine import drafting

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
