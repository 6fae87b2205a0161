"""A request under way: its sessions, the method's parts, its random streams, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from draftwood.core.forest import Forest, StopCheck
from draftwood.core.records import Ranking, Round
from draftwood.depth import ALONE, LOAD, DepthController, Load
from draftwood.depth.rules import UNCAPPED
from draftwood.draft import Drafter, Proposer
from draftwood.engine.metrics import Metrics
from draftwood.engine.recording import Recorder
from draftwood.engine.request import Request
from draftwood.engine.results import GenerationResult
from draftwood.engine.stopping import Ending
from draftwood.runtime.cost import NOMINAL_COSTS, NOMINAL_DRAFT_COSTS, Costs, Curve
from draftwood.runtime.session import Answer, Session
from draftwood.sampling.distributions import Distributions, Edit, Streams, chained
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.penalties import Penalties
from draftwood.verify import Verifier


@dataclass(slots=True, kw_only=True)
class Generation:
    """One request under way. Its sessions take memory when they first run; whoever carries it out closes them."""

    request: Request
    target: Session
    drafts: Sequence[Session]  # of the models that it drafts with
    drafter: Drafter
    verify: Verifier
    depth: DepthController
    ranking: Ranking
    ending: Ending
    stop: StopCheck | None
    new_ending: Callable[[], Ending]  # for each hypothesis of the result
    costs: Costs = field(default_factory=Costs)  # of passes, as measured
    running: Callable[[], tuple[int, int, int]] = lambda: (1, 0, 0)  # requests that draft by the load; others, rows
    streams: Streams = field(init=False)
    propose: Proposer = field(init=False)
    edit: Edit | None = field(init=False, default=None)
    grammar: Grammar | None = field(init=False, default=None)
    rounds: list[Round] = field(init=False, default_factory=list)
    began: float = field(init=False, default=0.0)
    _load: Load | None = field(init=False, default=None)  # the latest one; nominal ones stay as they are
    _forest: Forest | None = field(init=False, default=None)  # of the round
    _curves: tuple[Curve, ...] | None = field(init=False, default=None)  # of the target, of what drafts

    @property
    def states(self) -> tuple[int, ...]:
        """The target's last layer, where the drafter or the depth controller reads what the head reads."""
        return (self.target.model.n_layers,) if "target" in self.drafter.needs | self.depth.needs else ()

    def begin(self) -> Forest:
        """The forest before the first round; the request's clock starts here."""
        self.began = perf_counter()
        params, model = self.request.params, self.target.model
        self.streams = Streams(self.request.seed)
        least, ends = self.request.min_new_tokens, self.request.end_tokens
        if params.edits_logits or least:
            self.edit = Penalties(params, model.vocab_size, len(self.request.prompt), model.device, least, ends)
        if self.request.grammar is not None:
            self.grammar = self.request.grammar()
            self.edit = self.grammar if self.edit is None else chained(self.edit, self.grammar)
        self.propose = Proposer(params, self.streams, model.vocab_size, self.edit, self.verify.coupled, self.grammar)
        prompt = list(self.request.prompt)
        return Forest.from_prompt(prompt, len(prompt) + self.request.max_new_tokens, ends, self.stop, least)

    def load(self, forest: Forest) -> Load:
        """The load now; for controllers that do not ask for it the nominal one of a request alone."""
        self._forest = forest
        measured = self.depth.needs >= LOAD
        counts = self.running() if measured else ALONE.counts
        if self._load is None or self._load.counts != counts:
            self._load = self._measured(*counts) if measured else self._nominal()
        return self._load

    def _measured(self, drafting: int, others: int, rows: int) -> Load:
        """The load where so many requests run."""
        verify, *drafts = self._measures()
        plain = drafting + rows
        return Load(
            lambda rows: sum(draft.seconds(rows, min(rows, drafting)) for draft in drafts),
            lambda rows: verify.seconds(rows, drafting + others, min(drafting, rows - plain)),
            drafting,
            others,
            rows,
            self.behind,
            self.left,
        )

    def _nominal(self) -> Load:
        """The load of a request alone, by the sizes and kernels of its models where they are known."""
        verify, *drafts = curves = self._costs(NOMINAL_COSTS, NOMINAL_DRAFT_COSTS)
        if not all(curve.sized for curve in curves):
            return ALONE
        return Load(
            lambda rows: sum(draft.seconds(rows, 1) for draft in drafts),
            lambda rows: verify.seconds(rows, 1),
            behind=lambda: self._unseen(drafts),
            left=self.left,
        )

    def _costs(self, costs: Costs, drafts: Costs) -> tuple[Curve, ...]:
        """The curves of the target, in `costs`, and of what drafts."""
        target = self.target.model
        models = [(session.model, session.model.n_layers) for session in self.drafts]
        exits = [getattr(model, "layers", None) for model, _ in models]
        models += [(target, layers) for layers in exits if isinstance(layers, int)]
        return costs.curve(target), *(drafts.curve(*model) for model in models)

    def _measures(self) -> tuple[Curve, ...]:
        """The curves of what was measured."""
        if self._curves is None:
            self._curves = self._costs(self.costs, self.costs)
        return self._curves

    def behind(self) -> float:
        """Seconds until the draft models have seen what they have not, and the target has shown them what they lack."""
        target, *drafts = self._measures()
        lacks = 0 if self._forest is None else self.drafter.lacks(self._forest)
        return self._unseen(drafts) + (target.marginal(1, lacks) if lacks else 0.0)

    def _unseen(self, drafts: Sequence[Curve]) -> float:
        """Seconds until the draft models have seen what they have not, by their curves."""
        rows = [session.behind(self._known) for session in self.drafts]
        return sum(curve.marginal(1, more) for curve, more in zip(drafts, rows, strict=False) if more)

    @property
    def _known(self) -> int:
        """Tokens of the trunk."""
        return len(self.request.prompt if self._forest is None else self._forest.trunk)

    def left(self) -> int:
        """Tokens that may still come."""
        return len(self.request.prompt) + self.request.max_new_tokens - self._known

    def recorder(self) -> Recorder:
        """What turns verdicts into rounds."""
        most = self.depth.most if self.depth.most < UNCAPPED else 0
        return Recorder(self.target, self.ending, self.ranking, most, self.request.top_logprobs)

    def distributions(self, forest: Forest, answer: Answer) -> Distributions:
        """The target's distributions after a forest's nodes."""
        edit = self.edit
        if (
            self.grammar is not None and edit is not None
        ):  # drafts end where the grammar cannot be followed, the text must not
            edit = chained(self.grammar.checked, edit)
        hidden = next(iter(answer.hidden.values()), None)
        return Distributions(forest, answer.logits, self.request.params, edit, hidden, answer.read)

    def note(self, round_: Round) -> None:
        """Collect a round."""
        self.rounds.append(round_)

    def result(self) -> GenerationResult:
        """What the rounds so far come to."""
        rounds, ending, request = self.rounds, self.ending, self.request
        metrics = Metrics(
            seconds=perf_counter() - self.began if self.began else 0.0,
            peak_slots=self.target.peak,
            reused_tokens=self.target.reused,
        )
        for round_ in rounds:
            metrics.add(round_)
        beams = rounds[-1].beams if rounds else []
        for beam in beams:
            one = self.new_ending()
            one.feed(beam.tokens)
            cut = ending.reason if beam is beams[0] else None  # of the best only: others need not end as it does
            beam.text, beam.finish_reason = one.text, one.reason or cut or "cancelled"
        return GenerationResult(
            text=ending.text,
            tokens=[token for r in rounds for token in r.tokens],
            logprobs=[value for r in rounds for value in r.logprobs],
            warped_logprobs=[value for r in rounds for value in r.warped_logprobs],
            top_logprobs=[value for r in rounds for value in r.top_logprobs],
            warped_top_logprobs=[value for r in rounds for value in r.warped_top_logprobs],
            kinds=[kind for r in rounds for kind in r.kinds],
            finish_reason=ending.reason or "cancelled",
            metrics=metrics,
            rounds=rounds,
            prompt_tokens=list(request.prompt),
            seed=request.seed,
            method=request.method.as_dict(),
            sampling=request.params.model_dump(mode="json"),
            lossless=request.method.lossless,
            structured=None if request.structured is None else request.structured.model_dump(exclude_defaults=True),
            beams=beams,
        )
