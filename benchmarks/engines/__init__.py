"""One module per engine that the kind `peers` compares, and what they have in common.

An engine's module has `MODES` (mode -> types that the engine has it in), `prepare(cell)`, which converts the weights
and is not timed, and `load(cell)`, which gives a function from a prompt and a number of tokens to an `Output`. Each
runs in a process of its own (cell.py), so the engines are imported inside the functions. Those that take many prompts
at once have `batched(cell)` too, which converts the weights and gives a function from prompts and a number of tokens
for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

FLOATS = ("float32", "bfloat16")
DTYPES = (*FLOATS, "int8")
WITH_INT4 = (*DTYPES, "int4")  # of engines with a good quantiser

PEERS = {
    "draftwood": "ours",
    "Hugging Face": "hugging_face",
    "llama.cpp": "llama_cpp_engine",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement, which has a process of its own."""

    peer: str
    mode: str
    dtype: str
    target: str  # checkpoint directories
    draft: str
    made: str  # directory for what is converted
    threads: int = 2
    gamma: int = 4
    context: int = 512
    speculative_binary: str | None = None  # llama.cpp's llama-speculative-simple

    @property
    def key(self) -> str:
        return f"{self.peer} / {self.mode} / {self.dtype}"

    def converted(self, role: str, *, suffix: str = "") -> Path:
        """The file or directory of a peer's form of the target or the draft."""
        return Path(self.made) / self.peer.lower().replace(" ", "-") / f"{role}-{self.dtype}{suffix}"


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens of one generation."""

    tokens: list[int]
    seconds_per_token: float | None = None  # of decoding alone, where only the engine itself can tell
    peak_bytes: int | None = None  # bytes, where it ran in a process of its own


Generate: TypeAlias = Callable[[list[int], int], Output]
Batched: TypeAlias = Callable[[Sequence[list[int]], int], None]  # decodes all prompts at once, greedily


def loading(kind: str) -> dict[str, Any]:
    """The options of `draftwood.load` for weights of a type."""
    return {"dtype": kind} if kind in FLOATS else {"dtype": "bfloat16", "quantize": kind}


def runner(peer: str) -> Any:
    """A peer's module."""
    return import_module(f"{__name__}.{PEERS[peer]}")


def peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process has held; 0 when it has just ended, or where the system does not tell."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return 0
