"""Batched completion with one model, for measuring it: prefill, then a token at a time.

This is the plain reference loop of the model card, with neither a draft model
nor a scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.models.base import Batch
from draftwood.models.decoder import Decoder


def _choose(logits: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    """Return one token [n] for each row of logits [n, V]."""
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng)[:, 0]


@torch.no_grad()
def complete(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    eos: int,
    *,
    limit: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """Return the tokens written after each prompt, without the end token.

    A row stops at ``eos`` or after ``limit`` tokens. Prompts are padded at the
    right; a later token of the row overwrites the padding in its slot, and the
    mask hides what is not yet overwritten.
    """
    count, width = len(prompts), max(map(len, prompts))
    capacity = min(width + limit, decoder.context) + 1
    cache = decoder.new_cache(count, capacity)
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.full((count, width), eos)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    place = torch.arange(width)
    base = torch.arange(count) * capacity
    logits = decoder(
        Batch(
            tokens=tokens,
            positions=place.expand(count, width),
            slots=(base[:, None] + place).flatten(),
            rows=slice(0, count),
            span=width,
            mask=(place <= place[:, None]).expand(count, width, width),
            wanted=torch.arange(count) * width + lengths - 1,
        ),
        cache,
    )
    written: list[Tensor] = []
    running = torch.ones(count, dtype=torch.bool)
    for position in range(limit):
        chosen = _choose(logits, temperature, rng)
        chosen = torch.where(running, chosen, eos)
        written.append(chosen)
        running &= chosen != eos
        at = lengths + position
        running &= at < decoder.context
        if not running.any() or position == limit - 1:
            break
        at = at.clamp(max=decoder.context - 1)
        span = int(at.max()) + 1
        logits = decoder(
            Batch(
                tokens=chosen[:, None],
                positions=at[:, None],
                slots=base + at,
                rows=slice(0, count),
                span=span,
                mask=(torch.arange(span) <= at[:, None])[:, None],
                wanted=None,
            ),
            cache,
        )
    columns = torch.stack(written, 1).tolist()
    return [row[: row.index(eos)] if eos in row else row for row in columns]
