"""What structured output costs of a round: the seconds of its masks over those of the round, at a vocabulary's size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer as FastBackend
from torch import Tensor

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from draftwood.core.forest import Forest
from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.engine.loading import EMBEDDED
from draftwood.eval.intervals import median
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.sampling.grammar import Allowed, Grammar
from draftwood.train.recording import WatchedEngine

T = TypeVar("T")


class Grammars(Kind):
    """Random decoders of these shapes (layers, width), so that texts are long; what forwards cost does not change."""

    methods: dict[str, dict[str, Any]]
    grammars: dict[str, dict[str, Any]]
    vocabulary: int = 32_000
    target: tuple[int, int] = (12, 768)
    draft: tuple[int, int] = (2, 256)
    tokens: int = 96
    repeats: int = 5

    def measure(self, bench: Bench) -> dict[str, Rows]:
        words = larger(self.vocabulary)
        shapes, dtype = (self.target, self.draft), bench.run.dtype
        target, draft = (random_decoder(words.size, *shape, dtype) for shape in shapes)
        clock = Clock()
        engine = WatchedEngine(Engine(target, [draft], words, frozenset({0})), clock.watch)
        rows: Rows = []
        for grammar, spec in self.grammars.items():
            for name, method in bench.track(self.methods.items(), grammar):
                found = [
                    bench.once([grammar, name, repeat], partial(self._one, engine, clock, method, spec, repeat))
                    for repeat in range(self.repeats + 1)
                ][1:]  # the first warms up
                columns = {key: median([one[key] for one in found]) for key in found[0]}
                rows.append({"grammar": grammar, "method": name, "vocabulary": words.size, **columns})
        return {"grammars": rows}

    def _one(
        self, engine: Engine, clock: Clock, method: dict[str, Any], spec: dict[str, Any], seed: int
    ) -> dict[str, float]:
        clock.seconds, clock.masks = 0.0, 0
        result = engine.generate([5, 6, 7], method, max_new_tokens=self.tokens, seed=seed, structured=spec)
        rounds = len(result.rounds)
        seconds = sum(round_.seconds for round_ in result.rounds)
        return {
            "share": clock.seconds / seconds,
            "milliseconds": 1000 * clock.seconds / rounds,
            "round_milliseconds": 1000 * seconds / rounds,
            "masks": clock.masks / rounds,
            "forced": result.metrics.forced / len(result.tokens),
        }


class Clock:
    """Times the grammars of generations."""

    def __init__(self) -> None:
        self.seconds, self.masks, self._busy = 0.0, 0, False

    def watch(self, generation: Generation, number: int) -> None:
        begin = generation.request.grammar
        assert begin is not None
        generation.request = replace(generation.request, grammar=lambda: Timed(begin(), self))

    def timed(self, work: Callable[[], T]) -> T:
        """What is done within other timed work is a part of that."""
        if self._busy:
            return work()
        self._busy, began = True, perf_counter()
        found = work()
        self._busy, self.seconds = False, self.seconds + perf_counter() - began
        return found


class Timed(Grammar):
    """A grammar whose answers are timed."""

    __slots__ = ("clock",)

    def __init__(self, inner: Grammar, clock: Clock) -> None:
        super().__init__(inner.start, inner.end, inner.vocab_size, inner.device)
        self.clock = clock

    def allowed(self, forest: Forest, node: int) -> Allowed:
        return self.clock.timed(lambda: Grammar.allowed(self, forest, node))

    def found(self, path: list[int]) -> Allowed:
        self.clock.masks += 1
        return Grammar.found(self, path)

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        return self.clock.timed(lambda: Grammar.__call__(self, logits, forest, nodes))


def larger(size: int) -> Tokenizer:
    """The embedded tokenizer with more tokens, each of two that it has, up to a number."""
    data = json.loads((EMBEDDED / "target" / "tokenizer.json").read_text("utf-8"))
    known, merges = data["model"]["vocab"], data["model"]["merges"]
    words = [word for word in known if word.isascii() and not word.startswith("<")]
    for first in words:
        for second in words:
            if len(known) >= size:
                break
            if first + second not in known:
                known[first + second] = len(known)
                merges.append([first, second])
    return Tokenizer(FastBackend.from_str(json.dumps(data)), f"{size} tokens")


def random_decoder(vocabulary: int, layers: int, width: int, dtype: str) -> Decoder:
    """A decoder of random weights, heads 32 wide, loaded as a checkpoint is."""
    heads = width // 32
    model = Decoder(DecoderConfig(vocabulary, width, 4 * width, layers, heads, heads, 32))
    generator = torch.Generator().manual_seed(layers)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
    with TemporaryDirectory() as place:
        saving.save(model, Path(place))
        return checkpoint.load(place, dtype)
