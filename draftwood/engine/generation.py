"""The state of one request under way: its sessions, its method's parts, its random streams, its rounds so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from draftwood.core.forest import Forest, StopCheck
from draftwood.core.records import Ranking, Round
from draftwood.depth import LOAD, DepthController, Load
from draftwood.depth.rules import UNCAPPED
from draftwood.draft import Drafter, Proposer
from draftwood.engine.load_estimate import LoadEstimate
from draftwood.engine.metrics import Metrics
from draftwood.engine.recording import RoundRecorder
from draftwood.engine.request import Request
from draftwood.engine.results import GenerationResult
from draftwood.engine.stopping import Ending
from draftwood.runtime.session import Answer, Session
from draftwood.sampling.distributions import Distributions, Edit, Streams, chained
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.penalties import Penalties
from draftwood.verify import Verifier


@dataclass(slots=True, kw_only=True)
class Generation:
    """One request under way. Its sessions take memory when they first run; the task that carries it out closes them."""

    request: Request
    target: Session
    drafts: Sequence[Session]  # on the models that it drafts with
    drafter: Drafter
    verify: Verifier
    depth: DepthController
    ranking: Ranking
    load: LoadEstimate
    ending: Ending  # follows the text and says where it ends
    stop: StopCheck | None
    new_ending: Callable[[], Ending]  # makes one for each hypothesis of the result
    streams: Streams = field(init=False)
    propose: Proposer = field(init=False)
    edit: Edit | None = field(init=False, default=None)  # of logits: penalties, biases, the grammar
    grammar: Grammar | None = field(init=False, default=None)
    leading: int = field(init=False, default=0)  # of the most probable tokens, as many are asked of the target's runs
    rounds: list[Round] = field(init=False, default_factory=list)
    began: float = field(init=False, default=0.0)  # by `perf_counter`, when its first step ran

    @property
    def states(self) -> tuple[int, ...]:
        """Layers whose output the target's runs return: the last one if the drafter or the controller reads it."""
        return (self.target.model.n_layers,) if "target" in self.drafter.needs | self.depth.needs else ()

    def begin(self) -> Forest:
        """Start the clock, make random streams and edits of logits, and return the forest before the first round."""
        self.began = perf_counter()
        params, model = self.request.params, self.target.model
        self.streams = Streams(self.request.seed)
        least, ends = self.request.min_new_tokens, self.request.end_tokens
        allowed, bad_words = self.request.allowed_token_ids, self.request.bad_words
        if params.edits_logits or least or allowed is not None or bad_words:
            size = len(self.request.prompt)
            self.edit = Penalties(params, model.vocab_size, size, model.device, least, ends, allowed, bad_words)
        if self.request.grammar is not None:
            self.grammar = self.request.grammar()
            self.edit = self.grammar if self.edit is None else chained(self.edit, self.grammar)
        self.propose = Proposer(params, self.streams, model.vocab_size, self.edit, self.verify.coupled, self.grammar)
        prompt = list(self.request.prompt)
        return Forest.from_prompt(prompt, len(prompt) + self.request.max_new_tokens, ends, self.stop, least)

    def current_load(self, forest: Forest) -> Load:
        """The load as the round over `forest` begins; nominal for a controller that does not ask for it."""
        return self.load(forest, self.depth.needs >= LOAD)

    def recorder(self) -> RoundRecorder:
        """A new recorder, which makes the `Round` of each verdict."""
        most = self.depth.most if self.depth.most < UNCAPPED else 0
        return RoundRecorder(self.target, self.ending, self.ranking, most, self.request.top_logprobs)

    def distributions(self, forest: Forest, answer: Answer) -> Distributions:
        """The target's distributions after a forest's nodes, from its answer to them."""
        edit = self.edit
        if self.grammar is not None and edit is not None:
            # drafts end where the grammar cannot be followed, the text must not
            edit = chained(self.grammar.checked, edit)
        hidden = next(iter(answer.hidden.values()), None)
        params = self.request.params
        return Distributions(forest, answer.logits, params, edit, hidden, answer.read, answer.tops)

    def note(self, round_: Round) -> None:
        """Collect a round."""
        self.rounds.append(round_)

    def result(self) -> GenerationResult:
        """The result of the rounds that were collected so far."""
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
        joined: dict[str, Any] = {
            name: [value for round_ in rounds for value in getattr(round_, name)]
            for name in ("tokens", "logprobs", "warped_logprobs", "top_logprobs", "warped_top_logprobs", "kinds")
        }
        return GenerationResult(
            **joined,
            text=ending.text,
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
