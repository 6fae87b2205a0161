"""draftwood, through its public API."""

from __future__ import annotations

from typing import Any

from benchmarks.engines import WITH_INT4, Cell, Generate, Output, loading

MODES = {"plain": WITH_INT4, "speculation": WITH_INT4, "tree": WITH_INT4}
TREE = [3, 2, 1, 1]


def prepare(cell: Cell) -> None:
    """Checkpoints are read as they are."""


def load(cell: Cell) -> Generate:
    from draftwood.engine.loading import load as load_engine

    methods: dict[str, dict[str, Any]] = {
        "plain": {"name": "autoregressive"},
        "speculation": {"name": "speculative", "gamma": cell.gamma},
        "tree": {"name": "mcsd", "tree": TREE},
    }
    engine = load_engine(cell.target, None if cell.mode == "plain" else cell.draft, **loading(cell.dtype))

    def generate(prompt: list[int], count: int) -> Output:
        sampling = {"temperature": 0}
        result = engine.generate(prompt, methods[cell.mode], sampling, max_new_tokens=count, ignore_eos=True)
        return Output(result.tokens)

    return generate
