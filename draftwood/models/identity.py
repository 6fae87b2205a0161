"""Which model a model is: what was trained for one (exit layers, heads, decision models) does not fit another.

Knows a hash that does not change with dtype, device and packing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass

import torch

from draftwood.models.base import CausalModel

ROWS = 64  # of the table of embeddings


def fingerprints(models: Sequence[CausalModel]) -> str:
    """The fingerprint of all models that draft together; of one, its own."""
    return "+".join(map(fingerprint, models))


def fingerprint(model: CausalModel) -> str:
    """16 hexadecimal digits: of the configuration, the final norm and some embeddings, rounded to bfloat16.

    Models without weights of that kind are told apart by class, vocabulary and depth.
    """
    inner = getattr(model, "decoder", model)
    config = getattr(inner, "config", None)
    about = asdict(config) if is_dataclass(config) and not isinstance(config, type) else {}
    shape = [type(inner).__name__, inner.vocab_size, inner.n_layers, about]
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    for part in (getattr(inner, "norm", None), getattr(getattr(inner, "embed", None), "weight", None)):
        if isinstance(part, torch.Tensor):
            rounded = part.detach()[:ROWS] if part.dim() > 1 else part.detach()
            digest.update(rounded.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
