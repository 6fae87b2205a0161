"""An engine whose generations can be watched, and training on examples that were recorded from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor, nn

from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.errors import ConfigurationError
from draftwood.methods import Lookup, Method

OnGeneration = Callable[[Generation, int], None]  # (a generation that begins, its number); may change its parts


class WatchedEngine(Engine):
    """An engine of the same models and tokenizer that calls `watch` with each generation before it begins."""

    def __init__(self, engine: Engine, watch: OnGeneration) -> None:
        super().__init__(engine.target, engine.drafts, engine.tokenizer, engine.end_tokens, engine.names)
        numbers = count()
        self.builder.prepare = lambda generation: watch(generation, next(numbers))


def drafts_one_by_one(method: Method) -> bool:
    """True if a method drafts with a model, for one hypothesis, to a depth that a controller decides."""
    options = type(method).model_fields
    return "depth" in options and "n_best" not in options and not isinstance(method, Lookup)


def split(groups: Tensor, held_out: float, generator: torch.Generator, what: str) -> list[Tensor]:
    """Split examples by their groups [n]: the places of a `held_out` share, of a second such share, and of the rest."""
    number = torch.unique(groups, return_inverse=True)[1]
    count = int(number.max()) + 1 if len(groups) else 0
    aside = int(count * held_out)
    if not 0 < held_out < 0.5 or aside < 1 or count - 2 * aside < 1:
        raise ConfigurationError(f"{what.format(count=count)} cannot be split with held_out {held_out}; record more")
    place = torch.randperm(count, generator=generator).argsort()[number]  # of each example's group in a random order
    parts = (place < aside, (aside <= place) & (place < 2 * aside), 2 * aside <= place)
    return [part.nonzero()[:, 0] for part in parts]


def fit(
    logits: Callable[[Tensor], Tensor],
    labels: Tensor,
    parameters: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    rest: Tensor,
    tune: Tensor,
    epochs: int,
    batch: int,
    order: torch.Generator,
) -> tuple[float, list[Tensor]]:
    """Train on the examples `rest` by cross-entropy; (loss on `tune`, parameters) of its best epoch.

    `logits` maps places of examples [n] to logits of acceptance [n], of which labels [N] are in [0, 1].
    """
    loss = nn.functional.binary_cross_entropy_with_logits
    best, kept = math.inf, [part.detach().clone() for part in parameters]
    for _ in range(epochs):
        for chosen in torch.split(rest[torch.randperm(len(rest), generator=order)], batch):
            optimizer.zero_grad()
            loss(logits(chosen), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            now = float(loss(logits(tune), labels[tune]))
        if now < best:
            best, kept = now, [part.detach().clone() for part in parameters]
    return best, kept
