"""Whether a prompt is one that the embedded pair can continue: it has read its small synthetic corpus and no more.

`surprise` measures any model; `hint` says for the embedded one, and for what was grown from it, what it is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from draftwood.errors import DraftwoodError
from draftwood.models.base import Batch, Segment
from draftwood.models.checkpoints.checkpoint import read_config

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.engine.request import Prompt
    from draftwood.models.base import CausalModel

# Nats per token. Prompts of held-out documents of the corpus: below 2.1 in every domain but Python source ("library":
# 3.0 on average, 5.1 at most); English, SQL and Python from elsewhere: 3.8 to 8.9, nine in ten above 4.5.
FOREIGN_SURPRISE = 4.4
MIN_TOKENS, MAX_TOKENS = 3, 256  # tokens that are looked at
HINT = (
    "the embedded models know a small made-up corpus only, and this prompt does not look like it: expect gibberish. "
    "Try 'Story: In Corfe there lived a sailor', or name a model with --target"
)


@torch.inference_mode()
def surprise(model: CausalModel, tokens: Sequence[int]) -> float:
    """Mean -log p(token | those before it) in nats of all tokens [n >= 2] but the first: the log of the perplexity."""
    count = len(tokens)
    cache = model.new_cache()
    batch = Batch.of(model, tokens, range(count), [Segment.causal(cache.lend(count), 0, count)])
    logits = model.forward(batch, cache)  # [n, V]
    chosen = torch.log_softmax(logits[:-1].float(), -1).gather(1, batch.tokens[1:count, None])
    return -float(chosen.mean())


def hint(engine: Engine, prompt: Prompt) -> str | None:
    """A sentence on the purpose of the embedded pair where a prompt is foreign to it; None for all other models."""
    if not is_embedded(engine.names.get("target")):
        return None
    try:
        tokens = engine.tokens(prompt)[-MAX_TOKENS:]
    except DraftwoodError:  # for the request to say
        return None
    if len(tokens) < MIN_TOKENS or surprise(engine.target, tokens) < FOREIGN_SURPRISE:
        return None
    return HINT


def is_embedded(target: object) -> bool:
    """Whether a target, by its name, is the embedded one or was grown from it."""
    if target == "embedded":
        return True
    directory = Path(str(target))
    origin = read_config(directory).get("grown_from") if (directory / "config.json").is_file() else None
    while isinstance(origin, dict):
        if str(origin.get("source")).startswith("embedded:"):
            return True
        origin = origin.get("grown_from")
    return False
