"""draftwood, through its public API."""

from __future__ import annotations

from typing import Any

from benchmarks.engines import DTYPES, WITH_INT4, Cell, Generate, Output, loading

MODES = {
    "plain": WITH_INT4,
    "speculation": WITH_INT4,
    "tree": WITH_INT4,
    "beam search": DTYPES,
    "speculative beam search": DTYPES,
    "plain, compiled": DTYPES,
    "speculation, compiled": DTYPES,
}
TREE = [3, 2, 1, 1]
BEAMS = 4


def prepare(cell: Cell) -> None:
    """Checkpoints are read as they are."""


def load(cell: Cell) -> Generate:
    from draftwood.engine.loading import load as load_engine

    method: dict[str, Any] = {"name": "autoregressive"}
    if cell.mode.startswith("speculation"):
        method = {"name": "speculative", "gamma": cell.gamma}
    elif cell.mode == "tree":
        method = {"name": "mcsd", "tree": TREE}
    elif cell.mode == "beam search":
        method = {"name": "beam-search", "width": BEAMS}
    elif cell.mode == "speculative beam search":
        method = {"name": "speculative-beam-search", "width": BEAMS, "draft_width": BEAMS, "gamma": 2}
    options = loading(cell.dtype)
    if cell.mode.endswith("compiled"):
        options["compile"] = True
    draft = None if cell.mode.startswith(("plain", "beam")) else cell.draft
    engine = load_engine(cell.target, draft, **options)

    def generate(prompt: list[int], count: int) -> Output:
        result = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=count, ignore_eos=True)
        return Output(result.tokens)

    return generate
