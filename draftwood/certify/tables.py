"""Tabular models for small cases: tables with few choices, and what stands for parts that draft from the target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor

from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.heads.block_head import wanted_rows
from draftwood.models.heads.medusa import Heads
from draftwood.models.other_vocabulary import OtherVocabulary
from draftwood.models.tabular import TabularModel
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.models.text.vocabulary_map import VocabularyMap

PROMPT = [1, 0, 1, 0, 1, 0, 1]  # a repetition, so that lookup finds something; the end token has no meaning in a prompt
VOCAB = 5  # of windows
CERTAIN_TOKENS = (1, 2, 3, 4)  # what is certain there, place by place
EXTRA_WEIGHT = 0.3  # of a token that a draft has alone, of its likeliest token's
MASK = 1  # what stands for a token that is not known, in a block
DRAFT_DECAY = 0.4  # of a draft's chances there, from one token to the next


class StandInExit(TabularModel):
    """In the place of parts that a method makes or loads for its target: an unrelated model, read after one layer."""

    layers = 1

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model.law, model.vocab_size, n_layers=model.n_layers)


class SkippedTarget(StandInExit):
    """In the place of the target without some sublayers: an unrelated model that reads the target's cache."""

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model, target)
        self.full_model = target


class StandInHeads(Heads):
    """In the place of Medusa heads: head k answers as a table does behind so many tokens, whatever it reads."""

    def __init__(self, model: TabularModel, count: int) -> None:
        super().__init__(model.vocab_size, model.vocab_size, count, "")
        self.double().requires_grad_(False)
        rows = [model.law((*PROMPT, *(1,) * (1 + k))) for k in range(count)]  # a round's root follows the prompt
        self.tables = torch.tensor(rows, dtype=torch.float64).log()

    def train_forward(self, hidden: Tensor) -> Tensor:
        return self.tables[:, None].expand(-1, len(hidden), -1)


class StandInHead(TabularModel):
    """In the place of a head on the target's states: an unrelated model, which sees all tokens but the first."""

    reads = (1,)
    first = 1

    @property
    def carried(self) -> int:
        return self.n_layers - 1

    def __init__(self, model: TabularModel, prompt: Sequence[int]) -> None:
        super().__init__(lambda prefix: model.law((prompt[0], *prefix)), model.vocab_size, n_layers=model.n_layers)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        return super().forward(replace(batch, hidden=None), cache)


class StandInBlock(TabularModel):
    """In the place of a head that drafts blocks: place k answers as an unrelated model does behind k masks.

    Tokens of context are read from the target's states, which carry them.
    """

    reads, states, before, block = (1,), 1, 0, 4

    def __init__(self, model: TabularModel) -> None:
        self.count = self.block - 1
        super().__init__(model.law, self.count * model.vocab_size, n_layers=model.n_layers)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        assert batch.hidden is not None
        rows = wanted_rows(batch)
        hidden = batch.hidden.clone()
        hidden[rows, 0] = batch.tokens[rows].to(hidden.dtype)
        segments, first = [], 0
        for segment in batch.segments:
            paths = [path[: -self.block + 1] if first + i in rows else path for i, path in enumerate(segment.paths)]
            segments.append(replace(segment, paths=paths))
            first += len(segment)
        made = replace(batch, hidden=hidden, segments=segments)
        return super().forward(made, cache)

    def _log_law(self, prefix: tuple[int, ...]) -> Tensor:
        return torch.cat([super(StandInBlock, self)._log_law((*prefix, *(MASK,) * k)) for k in range(self.count)])


def in_other_tokens(model: TabularModel) -> OtherVocabulary:
    """A draft of the same law with a tokenizer of its own, which has a token more: the target lacks it."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        weights = model.law(prefix)
        return [*weights, EXTRA_WEIGHT * max(weights)]

    tokenizers = []
    for size in (model.vocab_size, model.vocab_size + 1):
        backend = Backend(BPE({"<end>": 0} | {chr(ord("a") + i): i for i in range(1, size)}, []))
        backend.decoder = Fuse()
        backend.add_special_tokens(["<end>"])
        tokenizers.append(Tokenizer(backend, f"{size} letters"))
    draft = TabularModel(law, model.vocab_size + 1, n_layers=model.n_layers)
    return OtherVocabulary(draft, VocabularyMap.of(*tokenizers))


def window_table(
    seed: int,
    number: int,
    possible: Sequence[int],
    prompt: Sequence[int],
    sure: Sequence[int] = CERTAIN_TOKENS,
    copied: bool = False,
) -> TabularModel:
    """A random model of which the n-th token behind the prompt has `possible[n]` values, a certain one if 1.

    What drafts (`number` above 0) find likely the target (0) does not, and it has a value more: many draws are rejected
    one after the other, and something remains each time. Certain tokens are `sure`, again and again; with `copied` they
    are possible in the other places too, so that copies of them are accepted here and rejected there.
    """

    def law(prefix: tuple[int, ...]) -> list[float]:
        place = len(prefix) - len(prompt)
        count = possible[place] if 0 <= place < len(possible) else 1
        certain = sure[place % len(sure)]
        weights = [0.0] * VOCAB
        if count == 1:
            weights[certain] = 1.0
            return weights
        order = random.Random(f"{seed}:{prefix}").sample(range(VOCAB), VOCAB)
        if copied:
            order.remove(certain)
            order.insert(place % count, certain)
        noise = random.Random(f"{seed}:{number}:{prefix}")
        for rank, token in enumerate(order[: count + (not number)]):
            weights[token] = noise.uniform(0.7, 1.3) * (DRAFT_DECAY**rank if number else 1 + rank)
        return weights

    return TabularModel(law, VOCAB, n_layers=2)


def forked_table(seed: int, certain: int, number: int) -> TabularModel:
    """A random model with two next tokens after every prefix, of which drafts (`number` above 0) know one alone.

    The first `certain` tokens behind PROMPT have one value.
    """

    def law(prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed}:{prefix}")
        weights = [0.0] * VOCAB
        for token in rng.sample(range(1, VOCAB), 1 if number or len(prefix) < len(PROMPT) + certain else 2):
            weights[token] = rng.uniform(0.7, 1.3)
        return weights

    return TabularModel(law, VOCAB, n_layers=2)


def tied_table(seed: int, vocab: int, count: int, number: int) -> TabularModel:
    """A random model that has `count` equally probable next tokens after every prefix."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        tokens = random.Random(f"{seed + number}:{prefix}").sample(range(vocab), count)
        return [float(token in tokens) for token in range(vocab)]

    return TabularModel(law, vocab, n_layers=2)
