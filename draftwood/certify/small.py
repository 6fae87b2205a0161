"""A method on tabular models, whose every distribution is known: by enumeration, by seed and by samples.

The engine runs as it is, with the method's own drafter and rule. Two ways to have few random choices: the method made
small on random tables (`variants`), or as it is on tables where all but one or two tokens are certain (`windows`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from draftwood.certify.laws import (
    BeamRules,
    Found,
    LayerLaws,
    Opening,
    OpeningLaw,
    Reference,
    WholeLaw,
    best_beam,
    output_of,
    set_of_beams,
)
from draftwood.certify.references import BeamLaw, exact_law
from draftwood.depth import parse_depth
from draftwood.engine import Engine
from draftwood.methods import Lookup, Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod, DynamicWidth
from draftwood.methods.eagle import Eagle
from draftwood.methods.self_speculative import SelfSpeculative
from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.heads import Heads
from draftwood.models.tabular import TabularModel
from draftwood.params import SamplingParams
from draftwood.results import GenerationResult

END = frozenset({0})
PROMPT = [1, 0, 1, 0, 1, 0, 1]  # a repetition, so that lookup finds something; the end token has no meaning in a prompt
COPIED = [4, 1, 2, 3, 4]  # the prompt of windows where lookup drafts: what follows 4 in it is what is certain behind it
VARYING = 0.3  # a threshold at which dynamic widths are of several sizes
MEMORY = 1 << 30  # bytes, of which hardly any are used: nobody has to ask how much is free
COST = 0.1  # of a draft in target forwards, where a depth controller would measure it: clocks cannot be replayed
VOCAB = 5  # of windows
DECAY = 0.4  # of a draft's chances there, from one token to the next
DEEPEST, WIDEST = 6, 6  # layers and siblings of windows

WARPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"temperature": 1.4, "top_k": 3},
    "top-p": {"temperature": 0.8, "top_p": 0.85},
    "penalties": {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "logit_bias": {1: 0.5},
    },
    "all": {"temperature": 1.2, "top_k": 3, "top_p": 0.95, "repetition_penalty": 1.3, "logit_bias": {1: 0.5}},
    "greedy": {"temperature": 0.0},
    "greedy, penalties": {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 1.0},
}


class _Exit(TabularModel):
    """In the place of parts that a method makes or loads for its target: an unrelated model, read after one layer."""

    layers = 1

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model.law, model.vocab_size, n_layers=model.n_layers)


class _Part(_Exit):
    """In the place of the target without some sublayers: an unrelated model that reads the target's cache."""

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model, target)
        self.whole = target


class _Heads(Heads):
    """In the place of Medusa heads: head k answers as a table does behind so many tokens, whatever it reads."""

    def __init__(self, model: TabularModel, count: int) -> None:
        super().__init__(model.vocab_size, model.vocab_size, count, "")
        self.double().requires_grad_(False)
        rows = [model.law((*PROMPT, *(1,) * (1 + k))) for k in range(count)]  # a round's root follows the prompt
        self.tables = torch.tensor(rows, dtype=torch.float64).log()

    def train_forward(self, hidden: Tensor) -> Tensor:
        return self.tables[:, None].expand(-1, len(hidden), -1)


class _Eagle(TabularModel):
    """In the place of an EAGLE head: an unrelated model, which sees all tokens but the first."""

    reads = (1,)
    first = 1

    def __init__(self, model: TabularModel, prompt: Sequence[int]) -> None:
        super().__init__(lambda prefix: model.law((prompt[0], *prefix)), model.vocab_size, n_layers=model.n_layers)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        return super().forward(replace(batch, hidden=None), cache)


def window_table(seed: int, number: int, possible: Sequence[int], prompt: Sequence[int]) -> TabularModel:
    """A random model of which the n-th token behind the prompt has `possible[n]` values, a certain one if 1.

    What drafts (`number` above 0) find likely the target (0) does not, and it has a value more: many draws are rejected
    one after the other, and something remains each time.
    """

    def law(prefix: tuple[int, ...]) -> list[float]:
        place = len(prefix) - len(prompt)
        count = possible[place] if 0 <= place < len(possible) else 1
        weights = [0.0] * VOCAB
        if count == 1:
            weights[1 + place % (VOCAB - 1)] = 1.0
            return weights
        order = random.Random(f"{seed}:{prefix}").sample(range(VOCAB), VOCAB)
        noise = random.Random(f"{seed}:{number}:{prefix}")
        for rank, token in enumerate(order[: count + (not number)]):
            weights[token] = noise.uniform(0.7, 1.3) * (DECAY**rank if number else 1 + rank)
        return weights

    return TabularModel(law, VOCAB, n_layers=2)


def tied_table(seed: int, vocab: int, count: int) -> TabularModel:
    """A random model that has `count` equally probable next tokens after every prefix."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        tokens = random.Random(f"{seed}:{prefix}").sample(range(vocab), count)
        return [float(token in tokens) for token in range(vocab)]

    return TabularModel(law, vocab, n_layers=2)


@dataclass(slots=True)
class Case:
    """A method on tabular models with an end token: its engine, one request and the reference for it.

    With `possible` (how many values the draft's n-th token has) the case is over after the first round with drafts.
    With `tied` every token has so many values, all as probable.
    """

    method: Method
    vocab: int
    tokens: int
    warp: str = "plain"
    seed: int = 0
    drafts: int | None = None
    order: int | None = None  # tokens that a distribution depends on; None: all
    possible: tuple[int, ...] = ()
    tied: int | None = None
    target: TabularModel = field(init=False)
    models: list[TabularModel] = field(init=False)
    stand_in: list[CausalModel] = field(init=False)  # for what drafts from the target
    engine: Engine = field(init=False)
    params: SamplingParams = field(init=False)

    def __post_init__(self) -> None:
        count = self.method.drafts_needed[0] if self.drafts is None else self.drafts
        self.target = self._random(0)
        self.models = [self._random(1 + i) for i in range(count)]
        drafts_itself = self.method.drafts_needed[0] == 0 and type(self.method).models is not Method.models
        self.stand_in = [self._stand_in()] if drafts_itself else []
        self.engine = self._engine()
        self.params = SamplingParams(**WARPS[self.warp])

    @property
    def prompt(self) -> list[int]:
        """A repetition, so that lookup finds something."""
        looks = isinstance(self.method, Lookup) or getattr(self.method, "lookup", False)
        return COPIED if looks and self.possible else PROMPT

    @property
    def label(self) -> str:
        values = f", {','.join(map(str, self.possible))} values" if self.possible else ""
        return f"vocabulary {self.vocab}, {self.tokens} tokens{values}, {self.warp}"

    def _random(self, number: int) -> TabularModel:
        """A model of two layers, so that drafts may come from the first."""
        if self.possible:
            return window_table(self.seed, number, self.possible, self.prompt)
        seed = 1000 * self.seed + number
        if self.tied:
            return tied_table(seed, self.vocab, self.tied)
        return TabularModel.random(self.vocab, seed, self.order, n_layers=2)

    def _engine(self) -> Engine:
        """An engine of its own: nothing that was learned in other runs."""
        engine = Engine(self.target, self.models, end_tokens=END, kv_cache_bytes=MEMORY)
        if self.stand_in:
            engine.draft_with(self.method, self.stand_in)
        return engine

    def _stand_in(self) -> CausalModel:
        """Heads, an exit, or a part of the target."""
        if isinstance(self.method, Eagle):
            return _Eagle(self._random(9), self.prompt)
        if "heads" in type(self.method).model_fields:
            return _Heads(self._random(9), max(2, self.tokens - 2))
        return (_Part if isinstance(self.method, SelfSpeculative) else _Exit)(self._random(9), self.target)

    @property
    def reference(self) -> Reference:
        """Plain decoding; of beams beam sampling; for a dynamic width each layer given those before."""
        method = self.method
        if not isinstance(method, BeamSamplingMethod):
            outputs = exact_law(self.target, self.prompt, self.params, self.tokens, END)
            return (OpeningLaw if self.possible else WholeLaw)(output_of, outputs)
        law = self._beams(self.target)
        width = getattr(method, "width", None)
        if self.possible and isinstance(method, DynamicWidth):
            draft = self._beams((self.models or [self._random(9)])[0])
            return LayerLaws(law, method.replacement, BeamRules(method, law, draft))
        if self.possible or (method.lossless and width is None):
            return LayerLaws(law, method.replacement)
        sets = law.law(width or method.widest, method.replacement, self.tokens)
        if method.lossless:
            return WholeLaw(set_of_beams, sets)
        return WholeLaw(output_of, best_beam(law, sets, method.length_penalty))

    def _beams(self, model: TabularModel) -> BeamLaw:
        assert isinstance(self.method, BeamSamplingMethod)
        return BeamLaw(model, self.prompt, self.params, END, self.method.warp)

    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        """One generation."""
        return self._engine().generate(self.prompt, method or self.method, self.params, self.tokens, seed)

    def found(self) -> Found:
        """What an enumeration looks at: a generation, or its rounds up to the first with drafts."""
        if not self.possible:
            return self.run()
        rounds = []
        events = self._engine().stream(
            self.prompt, method=self.method, sampling=self.params, max_new_tokens=self.tokens, seed=0
        )
        with closing(events):  # type: ignore[type-var]
            for event in events:
                rounds.append(event.round)
                if event.round.draws:
                    break
        return Opening(self.prompt, rounds)

    def closed(self, result: Found) -> bool:
        """Whether the last token ends what an enumeration looks at, whichever it is."""
        last = result.rounds[-1]
        drawn = len(last.roots) == 1 and last.kinds[-1:] != ["accepted"]
        return drawn and (len(result.tokens) == self.tokens or bool(self.possible and last.draws))

    def runs(self, count: int, concurrency: int, advance: Callable[[], None]) -> Iterator[GenerationResult]:
        """So many generations, each with its own seed, several at a time; `advance` is called as each ends."""
        found = self.engine.as_completed(
            [{"prompt": self.prompt, "seed": seed} for seed in range(count)],
            concurrency,
            method=self.method,
            sampling=self.params,
            max_new_tokens=self.tokens,
        )
        with closing(found):
            for _, result in found:
                advance()
                yield result


def windows(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Cases of one round of the method as it is, each with smaller ones to take where there are too many choices.

    One token after the other has several values, of chains and trees the token after it too. Beams are drafted up to
    that token only, and once over two layers, so that some parents are not accepted.
    """
    values = _capped(method.as_dict(), WIDEST, DEEPEST)
    beams = isinstance(method, BeamMethod)
    tree = values.get("tree") or values.get("expansion") or ()
    layers = len(tree) or (3 if "heads" in values else values.get("gamma", 1))
    forms: list[tuple[str, list[tuple[dict[str, Any], tuple[int, ...]]]]] = []  # with the warp of the second case
    for place in range(layers):
        form = _capped(values, WIDEST, place + 1) if beams else values
        certain = (1,) * (place + ("heads" in values))
        sizes = [(count, after) for count in (5, 4, 3, 2) for after in ((1,) if beams else (2, 1))]
        forms.append((("penalties", "top-k", "top-p")[place % 3], [(form, (*certain, *size)) for size in sizes]))
    if layers > 1 and "draft_width" in values:
        least = {"min_width": 2} if "min_width" in values else {}
        wide, narrow = ({**_capped(values, draws, 2), **least} for draws in (3, 2))
        two = [(wide, 3, 2), (wide, 2, 2), (narrow, 2, 2), (wide, 2, 1), (narrow, 2, 1)]
        forms.append(("all", [(form, (first, second, 1)) for form, first, second in two]))
    varying = {"threshold": min(values["threshold"], VARYING)} if "threshold" in values else {}
    for number, (other, shapes) in enumerate(forms):
        for warp in ("plain", other):
            if warp != "plain":  # where widths vary; where the token after matters most
                shapes = sorted(shapes, key=lambda one: -one[1][-1])
                shapes = [({**form, **varying}, shape) for form, shape in shapes]
            yield (
                Case(
                    Method.parse(form),
                    VOCAB,
                    len(shape) + (not beams),
                    warp,
                    seed + 10 * number,
                    drafts,
                    possible=shape,
                )
                for form, shape in shapes
            )


def _capped(values: Mapping[str, Any], widest: int, deepest: int) -> dict[str, Any]:
    """A method's options, narrower and shallower where they were not already."""
    values = dict(values)
    if "gamma" in values:
        values["gamma"] = min(values["gamma"], deepest)
    for name in ("tree", "expansion"):
        if values.get(name):
            values[name] = [min(wide, widest) for wide in values[name][:deepest]]
    for name in ("width", "min_width", "draft_width"):
        if values.get(name):
            values[name] = min(values[name], widest)
    if "heads" in values:
        values |= {"tree": values["tree"] or [3, 2, 1], "paths": None}
    if "min_ngram" in values:
        values["min_ngram"] = 1
    if values.get("depth"):
        values["depth"] = _repeatable(values["depth"])
    if "n_best" in values:
        values["n_best"] = 1
    return values


def variants(method: Method) -> list[Method]:
    """`shrunk` in the forms that have different things to get wrong, and few enough choices.

    Several rounds of one beam, and one of two; a dynamic width also with a threshold at which widths vary.
    """
    small = shrunk(method)
    values = small.as_dict()
    if not isinstance(method, BeamSamplingMethod) or "draft_width" not in values:
        return [small]
    if values["width"] is None:
        return [small] if values["threshold"] <= VARYING else [small, _changed(values, threshold=VARYING)]
    wide = _changed(values, gamma=1)
    return [_changed(values, width=1, draft_width=2, n_best=1), *([wide] if values["width"] > 1 else [])]


def shrunk(method: Method, beams_only: bool = False) -> Method:
    """The same rule with few drafts, so that all of its choices can be enumerated; all beams are returned.

    With `beams_only` just the number of beams becomes small, so that the law of their sets can be written down.
    """
    values = method.as_dict()
    if not beams_only:
        values = _capped(values, 2, 2)
        if "heads" in values:
            values["tree"] = [2, 1]
        if values.get("initial", 1) > 1:
            values |= {"initial": 2, "tree": [1]}
    elif isinstance(method, BeamMethod):
        few = {name: min(values[name], 2) for name in ("width", "min_width") if values.get(name)}
        if values.get("draft_width"):
            most = 4 if values.get("width") else 3
            few["draft_width"] = max(min(values["draft_width"], most), few.get("width") or few.get("min_width", 2))
        values |= few
    if values.get("depth"):
        values["depth"] = _repeatable(values["depth"])
    if isinstance(method, BeamMethod):
        values["n_best"] = 1
        values["n_best"] = Method.parse(values).widest  # type: ignore[attr-defined]
    return Method.parse(values)


def _changed(values: Mapping[str, Any], **changes: Any) -> Method:
    return Method.parse({**values, **changes})


def _repeatable(depth: str) -> str:
    """The depth controller without a clock, and without a model trained for one draft."""
    try:
        settings = parse_depth(depth)
    except ValueError:
        return "fixed"
    if "cost" in type(settings).model_fields:
        given = settings.model_dump(exclude_defaults=True)
        rest = ",".join(f"{key}={value}" for key, value in {"cost": COST, **given}.items())
        return f"{settings.name}:{rest}"
    if any(isinstance(value, str) for value in settings.model_dump().values()):
        return "fixed"  # a file of learned weights
    return depth
