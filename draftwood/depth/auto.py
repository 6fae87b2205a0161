"""Depth and width by what drafts are worth at the present load: the default of chains and trees.

- Known: what passes cost at the load (`Load`).
- Estimated: how often drafts are accepted (`DraftEvidence`), and from both the fastest way to draft (`DraftPlan`).
- Decided: whether a round drafts, with a model or with lookup, and after each layer whether to draft another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.acceptance import (
    GREEDY_RATES,
    MAX_RATE,
    PRIOR_RATE,
    PRIOR_TRIALS,
    SAMPLED_RATES,
    UNKNOWN_BIN,
    LayerRates,
    RoundPath,
    SiblingAcceptance,
)
from draftwood.depth.load import ALONE, Load
from draftwood.depth.plan import DraftPlan
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.sampling.distributions import Streams

TRIAL_SHARE = 0.005  # of the time, for trials of drafts that do not pay as far as is known
EARLY_TRIAL_SHARE = 0.3  # the same before anything is known, where requests learn together
PLAN_ROUNDS = 64  # rounds of each request that a plan is good for
MAX_PLANS = 64  # plans for different loads that are kept
UNTRIED_TOKENS = 1.0  # what a model's drafts are held to be worth more, in tokens of a round, before any was seen
LOOKUP_SECONDS = 6e-5  # what a round takes to search the text for a match
LOOKUP_ROUNDS = 16  # of so many rounds one searches where matches have not been worth it
LOOKUP_DISCOUNT = 0.97  # what older searches count for, for each later one
MIN_LOOKUPS = 8.0  # discounted searches before their worth is judged


@dataclass(slots=True)
class DraftEvidence:
    """The outcomes of rounds so far: those of a request while it runs alone, or of all requests that run at once."""

    siblings: SiblingAcceptance = field(default_factory=SiblingAcceptance)
    rates: LayerRates = field(default_factory=LayerRates)
    rounds: int = 0
    drafted: int = 0  # rounds with drafts of a model
    undrafted: int = 0  # rounds since the last of these, or since the last trial
    lookups: float = 0.0  # discounted rounds that searched the text
    lookup_tokens: float = 0.0  # discounted tokens that these have gained, less what their rows' time was worth
    plans: dict[tuple[int, int, int], DraftPlan] = field(default_factory=dict)  # the latest ones, by `Load.counts`


@dataclass(slots=True)
class Auto(DepthController):
    """Draft on while that raises the tokens per second of the machine.

    lambda, the tokens per second of the plan, is what a second is worth. A layer is drafted if for some k the expected
    tokens of k layers more exceed lambda times their seconds: reach, the chance that the next layer is accepted,
    follows from the draft's own probabilities (`RoundPath`), the chances of those behind it from the siblings that were
    accepted before. So the argmax over B of (tokens of B layers) / (seconds of drafting and verifying them) is found
    layer by layer.

    Whose rounds count: what pays differs from text to text, so a request that runs alone goes by its own rounds, and
    by those of other texts only for its first guess. Requests that run at once share passes, and learn together.

    A model that has not read the text so far must read it before it drafts; it begins only where the tokens that may
    still come save as much time. Where drafts do not pay, one is tried now and then, with TRIAL_SHARE of the time; more
    often while requests that learn together know little. A round for which neither the model nor lookup promises
    anything `rests`, and costs what plain decoding costs. Beams have a controller of their own, `AutoBeams`.

    No decision depends on a token that is not drawn yet, so the distribution of the output is the same at any load.
    """

    most: int
    widths: tuple[int, ...] = (1,)  # children per node, layer by layer; the last one repeats
    roots: int = 1  # nodes that the first layer hangs on
    lookup: bool = False  # whether lookup drafts too
    model: bool = True  # whether a model drafts
    discount: float = 0.99
    shared: bool = True  # whether requests learn together and follow the load
    shared_evidence: DraftEvidence = field(default_factory=DraftEvidence)
    needs: frozenset[str] = LOGITS | LOAD
    prior: float = PRIOR_RATE  # chance of a layer before any was seen
    prior_trials: float = PRIOR_TRIALS  # that it counts for, for a request that learns of its own rounds alone
    guesses: Sequence[float] = tuple(GREEDY_RATES)  # the same by its confidence
    own_evidence: DraftEvidence = field(init=False, default_factory=DraftEvidence)
    rests: bool = field(init=False, default=False)
    _evidence: DraftEvidence = field(init=False, default_factory=DraftEvidence)  # which the round goes by
    _path: RoundPath = field(init=False, default_factory=RoundPath)
    _plan: DraftPlan = field(init=False, repr=False, compare=False)
    _load: Load = field(init=False, repr=False, compare=False)
    _begun: bool = field(init=False, default=False)  # whether a model has drafted
    _too_late: DraftPlan | None = field(init=False, default=None)  # the plan by which a model need not begin any more
    _trial: bool = field(init=False, default=False)  # whether the round tries a draft that does not pay
    _trial_price: float = field(init=False, default=0.0)  # of the next trial, with what the model has to read first
    _model_drafts: bool = field(init=False, default=False)  # whether the model drafts, as it seems when a round begins
    _copies: bool = field(init=False, default=False)  # whether `copies` chose some of what lookup has found

    def for_request(self) -> Auto:
        return replace(self)

    def repeatable(self) -> Auto:
        """A controller for a request whose text depends on its drafts: by its own rounds and nominal costs alone.

        A draft that was measured in training is first held to be as good as it was there.
        """
        guesses = [min(MAX_RATE, rate * self.prior / PRIOR_RATE) for rate in SAMPLED_RATES]
        return replace(self, shared=False, needs=self.needs - LOAD, guesses=guesses)

    @property
    def prepares(self) -> bool:
        """As of any controller; where requests share passes only if a model drafts: the others catch up if it pays.

        Alone, too, if rounds without drafts take more for it than trials may.
        """
        return self._model_drafts or (self._load.drafting == 1 and self._keeps_up)

    @property
    def _keeps_up(self) -> bool:
        """Whether to have the target show in rounds without drafts what drafting reads of it, for trials to come."""
        return self._load.read_seconds <= TRIAL_SHARE * self._plan.seconds[0]

    # -- what is estimated ---------------------------------------------------------------------------------------------

    def _planned(self, load: Load) -> DraftPlan:
        """The plan for a load: the latest one, or a new one where it is old or twice as many drafts are known."""
        evidence = self._evidence
        last = evidence.plans.get(load.counts)
        if last and evidence.rounds <= last.valid_until and evidence.drafted <= 2 * last.evidence + 2:
            return last
        prior, guesses = self._first_guess()
        trials = PRIOR_TRIALS if self.shared else self.prior_trials
        plan = DraftPlan(
            load.counts,
            evidence.rates.own.chances(guesses, prior, trials),
            evidence.rates.next.chances(prior=prior, trials=trials),
            evidence.siblings.chances(max(self.widths), prior, trials),
            evidence.rounds + PLAN_ROUNDS * load.drafting,
            evidence.drafted,
        )
        costs_changed = self.shared and (load.drafting > 1 or last is None or evidence.rounds > last.valid_until)
        if last is not None and not costs_changed:
            plan.step_seconds = last.step_seconds
        full = [self.widths[min(layer, len(self.widths) - 1)] for layer in range(self.most)]
        for cap in sorted(set(self.widths), reverse=True):
            plan.consider([min(cap, width) for width in full], self.roots, load)
        if len(evidence.plans) == MAX_PLANS:
            evidence.plans.clear()
        evidence.plans[load.counts] = plan
        return plan

    def _first_guess(self) -> tuple[float, Sequence[float]]:
        """The chance of a layer before any was seen, and that by its confidence.

        A request tries drafts, though other texts did without.
        """
        known = self.shared_evidence.rates.next.rate()
        return (max(PRIOR_RATE, known) if self.shared else self.prior), self.guesses

    def _catch_up_seconds(self, load: Load) -> float:
        """Seconds that the model takes to read what it has not seen, before it can draft.

        A request whose text must repeat counts the prompt alone, and all of it: what other requests have left of it in
        a cache differs from run to run.
        """
        return load.catch_up_seconds() if self.shared or not self._begun else 0.0

    # -- what is decided -----------------------------------------------------------------------------------------------

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        evidence = self._evidence = self.own_evidence if load.drafting == 1 else self.shared_evidence
        evidence.rounds += 1
        plan = self._plan = self._planned(load)
        self._load, self._copies = load, False
        self._trial = self.model and self._trial_is_due(plan, load)
        self._model_drafts = self._trial or (self.model and self._model_pays(plan, load))
        self.rests = not (self._model_drafts or (self.lookup and self._lookup_pays(plan)))
        if not self.rests:
            self._path = RoundPath(plan.own_chances, plan.next_chances)

    def _trial_is_due(self, plan: DraftPlan, load: Load) -> bool:
        """Whether rounds without drafts have gone on for long enough that a trial takes no more than its share."""
        evidence = self._evidence
        early = 0.0 if evidence is self.own_evidence else EARLY_TRIAL_SHARE / (1 + evidence.drafted) ** 2
        share = evidence.undrafted * (TRIAL_SHARE + early)
        if not self._keeps_up or share < max(plan.trial_price, self._trial_price):
            return False
        self._trial_price = plan.trial_price + self._catch_up_seconds(load) / plan.seconds[0]
        if share < self._trial_price:
            return False
        evidence.undrafted, self._trial_price = 0, 0.0  # other requests need not try now
        return True

    def _model_pays(self, plan: DraftPlan, load: Load) -> bool:
        """Whether a first layer of the model pays, and what it has to read before."""
        if plan is self._too_late or not plan.pays(0, plan.next_chances[UNKNOWN_BIN], (), load):
            return False
        if not self._model_drafts:  # else it has read almost all
            saved = load.tokens_left() * plan.seconds_saved
            self._too_late = None if self._catch_up_seconds(load) <= saved else plan
        return self._too_late is None

    def _lookup_pays(self, plan: DraftPlan) -> bool:
        """Whether to search the text: where that has gained more than its time, and now and then to see if it does."""
        evidence = self._evidence
        if evidence.lookups < MIN_LOOKUPS or evidence.rounds % LOOKUP_ROUNDS == 0:
            return True
        return evidence.lookup_tokens >= evidence.lookups * LOOKUP_SECONDS * plan.tokens_per_second

    def copies(self, chances: Sequence[float]) -> int:
        """The number k of tokens found by lookup to draft before the model does.

        The k of the largest worth: tokens expected to be accepted, less what the time of k more rows is worth. 0 where
        the model's own drafts are worth more, or are to be tried.
        """
        plan, best, gain, reach = self._plan, 0, 0.0, 1.0
        seconds = plan.seconds_of(self._load, [1] * len(plan.widths), free_drafts=True) if chances else []
        best_worth = 0.0
        if self._model_drafts:
            best_worth = plan.surplus_tokens + UNTRIED_TOKENS / (1 + self._evidence.drafted)
        for k, chance in enumerate(() if self._trial else chances[: self.most], 1):
            reach *= chance
            gain += reach
            worth = gain - plan.tokens_per_second * (seconds[k] - seconds[0])
            if worth > best_worth:
                best, best_worth = k, worth
        self._copies = best > 0
        return best

    def deeper(self, state: DraftState) -> bool:
        if self.rests:
            return False
        path, depth = self._path, state.depth
        reach = path.next_chance(state) * path.reach
        if self._trial:  # one layer: the plan's deeper ones are for requests that all draft
            goes_on = depth == 0
        elif state.ahead and self._copies:  # chosen already
            goes_on = depth < self.most
        elif not (state.ahead or self._model_drafts):  # a model that would have too much to read before
            goes_on = False
        else:
            goes_on = depth < self.most and self._plan.pays(depth, reach, state.ahead, self._load)
        if goes_on:
            path.agree(state)
            self._begun |= path.by_model[-1]
        return goes_on

    def width(self, most: int) -> int:
        return min(most, self._plan.widths[len(self._path.by_model) - 1])

    # -- what is learned -----------------------------------------------------------------------------------------------

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        evidence, path = self._evidence, self._path
        if self.lookup and not self.rests:
            self._judge_lookup(round_)
        if self.rests or not round_.attempted or (self.lookup and not any(path.by_model)):
            evidence.undrafted += 1
            return
        evidence.undrafted = 0
        evidence.drafted += 1
        evidence.siblings.add(round_, self.discount, path.by_model)
        path.learn(round_, evidence.rates, self.discount)
        if self.shared and evidence is self.own_evidence:
            path.learn(round_, self.shared_evidence.rates, self.discount)

    def _judge_lookup(self, round_: Round) -> None:
        """Add what a search of the text has gained: the accepted copies, less what their rows' time was worth."""
        evidence, plan = self._evidence, self._plan
        copied = [*self._path.by_model, True].index(True)
        gained = 0.0
        if copied:
            seconds = plan.seconds_of(self._load, [1] * len(plan.widths), free_drafts=True)
            spent = plan.tokens_per_second * (seconds[copied] - seconds[0])
            gained = min(copied, round_.depth_accepted) - spent
        evidence.lookups = LOOKUP_DISCOUNT * evidence.lookups + 1
        evidence.lookup_tokens = LOOKUP_DISCOUNT * evidence.lookup_tokens + gained
