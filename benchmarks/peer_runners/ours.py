"""draftwood, through its public API."""

from __future__ import annotations

from typing import Any

from peer_runners import DTYPES, Cell, Generate, Output

MODES = {
    "plain": DTYPES,
    "speculation": DTYPES,
    "tree (mcsd)": DTYPES,
    "plain, compiled": DTYPES,
    "speculation, compiled": DTYPES,
}
TREE = [3, 2, 1, 1]


def prepare(cell: Cell) -> None:
    """Checkpoints are read as they are."""


def load(cell: Cell) -> Generate:
    import draftwood

    method: dict[str, Any] = {"name": "autoregressive"}
    if cell.mode.startswith("speculation"):
        method = {"name": "speculative", "gamma": cell.gamma}
    elif cell.mode.startswith("tree"):
        method = {"name": "mcsd", "tree": TREE}
    options: dict[str, Any] = {"dtype": cell.dtype}
    if cell.dtype == "int8":
        options = {"dtype": "bfloat16", "quantize": "int8"}
    if cell.mode.endswith("compiled"):
        options["compile"] = True
    draft = None if method["name"] == "autoregressive" else cell.draft
    engine = draftwood.load(cell.target, draft, **options)

    def generate(prompt: list[int], count: int) -> Output:
        result = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=count, ignore_eos=True)
        return Output(result.tokens)

    return generate
