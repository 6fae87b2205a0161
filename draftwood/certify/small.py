"""A method on tabular models, whose every distribution is known: by enumeration, by seed and by samples.

The engine runs as it is, with the method's own drafter and rule. Two ways to have few random choices: the method made
small on random tables, or as it is on tables where all but one or two tokens are certain (forms.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from draftwood.certify.enumeration import Law, TooLarge, enumerated
from draftwood.certify.laws import (
    BeamRules,
    LayerLaws,
    Observed,
    Opening,
    OpeningLaw,
    Reference,
    WholeLaw,
    best_beam,
    output_of,
    set_of_beams,
)
from draftwood.certify.references import BeamLaw, Output, exact_law, slow_beam_search
from draftwood.certify.rules import Tally
from draftwood.certify.tables import (
    PROMPT,
    SkippedTarget,
    StandInBlock,
    StandInExit,
    StandInHead,
    StandInHeads,
    in_other_tokens,
)
from draftwood.core.records import Round
from draftwood.depth import Auto, AutoBeams
from draftwood.engine.engine import Engine, prepare
from draftwood.engine.generation import Generation
from draftwood.engine.request import Options
from draftwood.engine.results import GenerationResult
from draftwood.methods import Method
from draftwood.methods.beams import BeamSamplingMethod, DynamicWidth, PlainBeamSearch
from draftwood.methods.self_drafting import DFlash, SelfSpeculative, StateHeadMethod
from draftwood.models.base import CausalModel
from draftwood.models.tabular import TabularModel
from draftwood.sampling.params import SamplingParams

END = frozenset({0})
CACHE_BYTES = 1 << 30  # bytes, of which hardly any are used: nobody has to ask how much is free

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


@dataclass(slots=True)
class Case:
    """A method on tabular models with an end token: its engine, one request and the reference for it.

    The models, number 0 the target, are random ones, or those of a `table`. With `rounds` the case is over after so
    many rounds with drafts. It counts only where what it is there for happened: the rules of `aim` (rules.py).
    """

    method: Method
    vocab: int
    tokens: int
    warp: str = "plain"
    seed: int = 0
    drafts: int | None = None
    order: int | None = None  # tokens that a distribution depends on; None: all
    table: Callable[[int], TabularModel] | None = None
    rounds: int = 0  # with drafts, that are looked at; 0: a whole generation
    prompt: list[int] = field(default_factory=PROMPT.copy)
    aim: frozenset[str] = frozenset()
    about: str = ""  # the table
    target: TabularModel = field(init=False)
    models: list[TabularModel] = field(init=False)
    drafts_loaded: list[CausalModel] = field(init=False)  # the models, in tokens of their own where that is certified
    stand_in: list[CausalModel] = field(init=False)  # for what drafts from the target
    engine: Engine = field(init=False)
    params: SamplingParams = field(init=False)
    counts: Counter[str] = field(init=False, default_factory=Counter)  # rounds that exercised a rule

    def __post_init__(self) -> None:
        count = self.method.drafts_needed[0] if self.drafts is None else self.drafts
        self.target = self._random(0)
        self.models = [self._random(1 + i) for i in range(count)]
        self.drafts_loaded = list(self.models)
        if getattr(self.method, "vocabulary", None) is not None:
            self.drafts_loaded = [in_other_tokens(model) for model in self.models]
        drafts_itself = self.method.drafts_needed[0] == 0 and type(self.method).models is not Method.models
        self.stand_in = [self._stand_in()] if drafts_itself and self._drafter != "lookup" else []
        self.engine = self._engine()
        self.params = SamplingParams(**WARPS[self.warp])

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (f"vocabulary {self.vocab}, {self.tokens} tokens", self.about, self.warp)))

    def _random(self, number: int) -> TabularModel:
        """A model of two layers, so that drafts may come from the first."""
        if self.table is not None:
            return self.table(number)
        return TabularModel.random(self.vocab, 1000 * self.seed + number, self.order, n_layers=2)

    def _engine(self) -> Engine:
        """An engine of its own: nothing that was learned in other runs."""
        engine = Engine(self.target, self.drafts_loaded, end_tokens=END, kv_cache_bytes=CACHE_BYTES)
        engine.builder.prepare = self._watch
        if self.stand_in:
            engine.set_draft_models(self.method, self.stand_in)
        return engine

    def _watch(self, generation: Generation) -> None:
        """Count what a method's rounds exercise. Drafts do not depend on the clock, which cannot be replayed."""
        if isinstance(generation.depth, Auto | AutoBeams):
            generation.depth = generation.depth.repeatable()
        if generation.request.method == self.method:
            generation.verify = Tally(generation.verify, self.counts)

    @property
    def _drafter(self) -> str | None:
        """The name of the method's drafter, where it has the choice."""
        return getattr(self.method, "drafter", None)

    def _stand_in(self) -> CausalModel:
        """Heads, an exit, or a part of the target."""
        if isinstance(self.method, DFlash) or self._drafter == "dflash":
            return StandInBlock(self._random(9))
        if isinstance(self.method, StateHeadMethod) or self._drafter in ("eagle", "mtp"):
            return StandInHead(self._random(9), self.prompt)
        if "heads" in type(self.method).model_fields or self._drafter == "medusa":
            return StandInHeads(self._random(9), max(2, self.tokens - 2))
        skips = isinstance(self.method, SelfSpeculative) or self._drafter == "skip"
        return (SkippedTarget if skips else StandInExit)(self._random(9), self.target)

    @property
    def judged(self) -> TabularModel:
        """The model whose law texts should follow."""
        return self.target

    @property
    def hypotheses(self) -> list[Output]:
        """The hypotheses of beam search, best first, written out."""
        assert isinstance(self.method, PlainBeamSearch)
        ranked, _ = slow_beam_search(
            self.judged,
            self.prompt,
            self.method.width,
            self.tokens,
            self.over,
            self.method.length_penalty,
            self.method.early_stopping,
            self.params,
        )
        return [output for output, _, _ in ranked]

    def enumerated(self, max_replays: int, advance: Callable[[], None]) -> tuple[Reference, Law[Any], int]:
        """The reference, the exact law of outcomes, and the replays it took; TooLarge beyond about `max_replays`."""
        replays = 0

        def counted() -> None:
            nonlocal replays
            replays += 1
            advance()

        with enumerated() as randomness:
            if not randomness.fits(self.experiment, max_replays):
                raise TooLarge
            self.counts.clear()
            expected = self.reference

            def run() -> Any:
                result = self.experiment()
                randomness.choices.closed = self.closed(result)
                return expected.outcome(result)

            return expected, randomness.law_of(run, 2 * max_replays, counted), replays

    @property
    def reference(self) -> Reference:
        """Plain decoding; of beams beam sampling; for a dynamic width each layer given those before."""
        method = self.method
        if not isinstance(method, BeamSamplingMethod):
            outputs = exact_law(self.judged, self.prompt, self.params, self.tokens, self.over)
            return (OpeningLaw if self.rounds else WholeLaw)(output_of, outputs)
        law = self._beams(self.judged)
        width = getattr(method, "width", None)
        if self.rounds and isinstance(method, DynamicWidth) and self._drafter != "lookup":
            draft = self._beams((self.models or [self._random(9)])[0], "joint")
            return LayerLaws(law, method.replacement, BeamRules(method, law, draft))
        if self.rounds or (method.lossless and width is None):
            return LayerLaws(law, method.replacement)
        sets = law.law(width or method.widest, method.replacement, self.tokens)
        if method.lossless:
            return WholeLaw(set_of_beams, sets)
        return WholeLaw(output_of, best_beam(law, sets, method.length_penalty))

    def _beams(self, model: TabularModel, scored: str | None = None) -> BeamLaw:
        assert isinstance(self.method, BeamSamplingMethod)
        return BeamLaw(model, self.prompt, self.params, self.over, self.method.warp, scored)

    def over(self, output: Output) -> bool:
        """True where an output ends with its last token."""
        return output[-1] in END

    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        """One generation."""
        generation, rounds = self._begun(self._engine(), method or self.method, seed)
        for round_ in rounds:
            generation.note(round_)
        return generation.result()

    def _begun(self, engine: Engine, method: Method, seed: int) -> tuple[Generation, Iterator[Round]]:
        """A generation and its rounds, each computed in this thread when it is asked for: enumerations end early."""
        options: Options = {"method": method, "sampling": self.params, "max_new_tokens": self.tokens, "seed": seed}
        generation = prepare(engine, self.prompt, **options)
        return generation, engine.scheduler.events(engine.scheduler.submit(engine.builder.task(generation)))

    def experiment(self) -> Observed:
        """The experiment that is enumerated: a generation, or its first rounds."""
        if not self.rounds:
            return self.run()
        rounds: list[Round] = []
        drafted = 0
        _, result = self._begun(self._engine(), self.method, 0)
        with closing(result):  # type: ignore[type-var]
            for round_ in result:
                rounds.append(round_)
                drafted += round_.draws > 0
                if drafted == self.rounds:
                    break
        return Opening(list(self.prompt), rounds)

    def closed(self, result: Observed) -> bool:
        """True where an enumeration looks no further than the last token, whichever it is."""
        last = result.rounds[-1]
        drawn = len(last.roots) == 1 and last.kinds[-1:] != ["accepted"]
        drafted = sum(round_.draws > 0 for round_ in result.rounds)
        return drawn and (len(result.tokens) == self.tokens or drafted == self.rounds > 0)

    def runs(self, count: int, concurrency: int, advance: Callable[[], None]) -> Iterator[GenerationResult]:
        """So many generations, each with its own seed, several at a time; `advance` is called as each ends."""
        results = self.engine.as_completed(
            [{"prompt": self.prompt, "seed": seed} for seed in range(count)],
            concurrency,
            method=self.method,
            sampling=self.params,
            max_new_tokens=self.tokens,
        )
        with closing(results):
            for _, result in results:
                advance()
                yield result
