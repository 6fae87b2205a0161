"""Whether the native library is there, and the embedded target for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import load
from draftwood.engine.loading import EMBEDDED
from draftwood.models import int4
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.util import native_library

REASON = native_library.unavailable()
needs_native = pytest.mark.skipif(REASON is not None, reason=f"no native backend: {REASON}")
TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
}

KV_TYPES: dict[str, dict[str, Any]] = {  # in which keys and values are stored as they are not computed
    "int8 keys": {"dtype": "float32", "kv_dtype": "int8"},
    "bfloat16 with int8 keys": {"dtype": "bfloat16", "kv_dtype": "int8"},
    "bfloat16 with float32 keys": {"dtype": "bfloat16", "kv_dtype": "float32"},
}


@cache
def embedded(kind: str) -> Decoder:
    """The embedded target in one of TYPES or KV_TYPES, or in int4, quantised without calibration text."""
    if kind == "int4":
        made = int4.quantised(checkpoint.load(EMBEDDED / "target", packed=False), None)
        return checkpoint.load(EMBEDDED / "target", quantize="int4", backend="native", grouped=made)
    return checkpoint.load(EMBEDDED / "target", **(TYPES | KV_TYPES)[kind], backend="native")


def chain(model: Decoder, tokens: Sequence[int], first: int = 0, cache: Cache | None = None) -> tuple[Tensor, Batch]:
    """Logits of tokens at positions `first`, ... in the slots of their positions, and the batch that asked for them."""
    held = model.new_cache() if cache is None else cache
    extent = held._lent[0] if held._lent else held.lend(first + len(tokens))
    segment = Segment.causal(extent, first, len(tokens))
    batch = Batch.of(model, tokens, range(first, first + len(tokens)), [segment], leading=5)
    with torch.inference_mode():
        return model.forward(batch, held), batch


def check_tops(batch: Batch, logits: Tensor) -> None:
    """What a forward tells of its rows is true of them; what it tells of one is the same beside others."""
    assert batch.tops is not None
    assert list(batch.tops.best) == logits.argmax(-1).tolist()
    sums = torch.logsumexp(logits.double(), -1)
    assert torch.allclose(torch.tensor(list(batch.tops.log_sums)).double(), sums, rtol=1e-6, atol=2e-6)
    assert len(batch.tops.leading) == (len(logits) if batch.leading else 0)
    for row, (tokens, numbers) in zip(logits, batch.tops.leading, strict=bool(batch.leading)):
        some = min(batch.leading, len(row))
        assert tokens == row.sort(descending=True, stable=True).indices[:some].tolist()
        assert numbers == row[tokens].tolist()


def check_wanted_rows(model: Decoder, tokens: Sequence[int]) -> None:
    """Whatever rows are wanted have the bits that they have beside all others, and leave what later tokens read."""
    count, layers = len(tokens) - 1, model.n_layers
    whole = chain(model, tokens)[0]
    for wanted in ([count - 1], [1, 3, count - 1], [0], [], [4, 2], [2, 2]):
        cache = model.new_cache()
        segment = Segment.causal(cache.lend(len(tokens)), 0, count)
        batch = Batch.of(model, tokens[:count], range(count), [segment], wanted, states=(layers,))
        with torch.inference_mode():
            logits = model.forward(batch, cache)
        assert logits.shape[0] == len(wanted) and torch.equal(logits, whole[wanted])
        assert batch.kept[layers].shape[0] == len(wanted)
        assert (batch.tops is not None) == model.by_program
        if model.by_program:
            check_tops(batch, logits)
        assert torch.equal(chain(model, tokens[count:], count, cache)[0][0], whole[count])


def greedy_and_logits() -> tuple[str, list[int], dict[str, Any], dict[str, Any]]:
    """The kernels' name, a greedy text of the embedded target, and by type the logits of 9 tokens and of 3 of them."""
    engine = load(backend="native")
    text = engine.generate("def area(radius):", "autoregressive", {"temperature": 0}, max_new_tokens=16).tokens
    tokens = [7 * i * i % 1000 for i in range(9)]
    nine, three = (
        {kind: chain(embedded(kind), tokens[:count])[0].tolist() for kind in (*TYPES, *KV_TYPES)} for count in (9, 3)
    )
    return native_library.kernels()[0], text, nine, three


def python(program: str, *arguments: object, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program run by itself, with some variables in its environment."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    places = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, **variables, "PYTHONPATH": places}
    return subprocess.run(command, capture_output=True, text=True, check=check, env=environment)
