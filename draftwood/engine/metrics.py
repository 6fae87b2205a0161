"""The one definition of every metric: sums over rounds, and the ratios that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from draftwood.core.records import Round

PARTS = ("draft", "verify", "sampling", "other")  # of a round's time
OF_ROUNDS = (  # fields of rounds that `Metrics` adds up
    *("drafted", "accepted", "depth_accepted", "attempted", "target_rows", "draft_rows", "draft_forwards"),
    *(f"{part}_seconds" for part in PARTS),
)
LATER = ("later_draft_seconds", "later_draft_forwards", "later_verify_seconds", "later_rounds")  # sums that c divides


_of_rounds = attrgetter(*OF_ROUNDS)


class Quotient(property):
    """A metric that is one sum of `Metrics` over another: `above` over `below`, and 0 where `below` is 0.

    Of several requests it is the quotient of their added sums.
    """

    def __init__(self, above: str, below: str, doc: str) -> None:
        def quotient(metrics: Metrics) -> float:
            total = getattr(metrics, below)
            return getattr(metrics, above) / total if total else 0.0

        quotient.__doc__ = doc
        super().__init__(quotient)
        self.above, self.below = above, below


@dataclass(slots=True, repr=False)
class Metrics:
    """Sums and ratios over the rounds of one request."""

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0  # emitted tokens that a grammar left no choice about
    depth_accepted: int = 0
    attempted: int = 0
    drafting_rounds: int = 0  # rounds that drafted anything
    accepted_shares: float = 0.0  # over these: accepted depth / the depth that the method is configured for
    attempted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    sampling_seconds: float = 0.0
    other_seconds: float = 0.0
    target_rows: float = 0.0
    draft_rows: float = 0.0
    draft_forwards: int = 0
    seconds: float = 0.0  # wall time of the request
    first_round_seconds: float = 0.0  # contains the prompt's forward
    later_rounds: int = 0  # those behind the first,
    later_verify_seconds: float = 0.0  # and their forwards of the target
    later_draft_forwards: int = 0  # of rounds behind the first that drafted, in which a draft reads the prompt,
    later_draft_seconds: float = 0.0  # and their time
    met_at: list[list[int]] = field(default_factory=list)  # [layer][place]: how often a sibling drawn there was met
    taken_at: list[list[int]] = field(default_factory=list)  # and accepted
    peak_slots: int = 0  # most cache slots that the target held at once
    reused_tokens: int = 0  # of the prompt, whose keys and values another request had left behind
    layers: int = 0  # of beams: all that rounds gave, accepted ones and the one that ended the round
    widths: int = 0  # beams in these layers, with multiplicity
    widths_accepted: int = 0  # those of them that were drafts
    drafted_at: list[int] = field(default_factory=list)  # rounds that drafted a first, second, ... layer
    bounded: int = 0  # positions of some rounds with n independent draws,
    bounded_accepted: int = 0  # those of them at which one was accepted,
    bounds: float = 0.0  # and the sum of alpha*(n), what a rule that judges node by node could accept (verify/bound.py)
    least: list[float] = field(default_factory=list)  # beta of each drafted layer that was verified (Theorem 3.2)

    def __repr__(self) -> str:
        return (
            f"Metrics({self.emitted} tokens in {self.rounds} rounds, tau={self.tau:.2f}, "
            f"acceptance_rate={self.acceptance_rate:.2f}, {self.tokens_per_second:.1f} tokens/s)"
        )

    def add(self, round_: Round) -> None:
        """Count one round."""
        self._add_later(round_)
        self.rounds += 1
        for name, value in zip(OF_ROUNDS, _of_rounds(round_), strict=True):
            if value:
                setattr(self, name, getattr(self, name) + value)
        self.emitted += len(round_.tokens)
        self.forced += round_.kinds.count("forced")
        if round_.draws and round_.most:
            self.drafting_rounds += 1
            self.accepted_shares += round_.depth_accepted / round_.most
        for counts in (self.attempted_at, self.accepted_at):
            counts += [0] * (round_.attempted - len(counts))
        for depth in range(round_.attempted):
            self.attempted_at[depth] += 1
            self.accepted_at[depth] += depth < round_.depth_accepted
        for depth, (place, draws) in enumerate(round_.siblings):
            if depth == len(self.met_at):
                self.met_at.append([])
                self.taken_at.append([])
            met, taken = self.met_at[depth], self.taken_at[depth]
            met += [0] * (draws - len(met))
            taken += [0] * (draws - len(taken))
            for i in range(min(place + 1, draws)):
                met[i] += 1
            if place < draws:
                taken[place] += 1
        for bound, accepted in round_.bounds:
            self.bounded += 1
            self.bounded_accepted += accepted
            self.bounds += bound
        if round_.layers:
            self._add_layers(round_)

    def _add_later(self, round_: Round) -> None:
        if not self.rounds:
            self.first_round_seconds = round_.seconds
            return
        self.later_rounds += 1
        self.later_verify_seconds += round_.verify_seconds
        if self.draft_forwards:
            self.later_draft_forwards += round_.draft_forwards
            self.later_draft_seconds += round_.draft_seconds

    def _add_layers(self, round_: Round) -> None:
        self.layers += len(round_.layers)
        self.widths += sum(layer.width for layer in round_.layers)
        self.widths_accepted += sum(layer.accepted for layer in round_.layers)
        self.least += [layer.least for layer in round_.layers if layer.judged]
        each = len(round_.layers[0].judged)  # draws of a layer
        depth = max(math.ceil(round_.draws / each), round_.attempted) if each else 0
        self.drafted_at += [0] * (depth - len(self.drafted_at))
        for layer in range(depth):
            self.drafted_at[layer] += 1

    tau = Quotient("emitted", "rounds", "Tokens emitted per target forward.")
    acceptance_rate = Quotient("accepted", "drafted", "accepted/drafted: tokens (v_d of EESD App. D).")
    alpha = Quotient("accepted_shares", "drafting_rounds", "MCSD's rate (§1): accepted depth over the configured one.")
    position_rate = Quotient("depth_accepted", "attempted", "Chance that a position with drafts has one accepted.")
    bounded_rate = Quotient("bounded_accepted", "bounded", "`position_rate` where there is an `acceptance_bound`.")
    acceptance_bound = Quotient("bounds", "bounded", "Mean alpha*(n): no rule that judges node by node accepts more.")
    draft_share = Quotient("accepted", "emitted", "Accepted drafts over emitted tokens (r_d of EESD App. D, Eq. 12).")
    layers_per_round = Quotient("layers", "rounds", "Layers of beams per target forward; 0 without beams.")
    mean_width = Quotient("widths", "layers", "Beams per layer, with multiplicity, as in beam sampling.")
    mean_accepted_width = Quotient("widths_accepted", "attempted", "Accepted drafts per judged layer (DSBD App. C.1).")

    @property
    def acceptance_by_position(self) -> list[float]:
        """`position_rate`, separately for the first, second, ... drafted position."""
        return [a / n for a, n in zip(self.accepted_at, self.attempted_at, strict=True)]

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of wall time, the prompt's forward included."""
        return self.emitted / self.seconds if self.seconds else 0.0

    @property
    def draft_cost_ratio(self) -> float:
        """c = seconds of a draft forward over seconds of a target forward, but for those that read the prompt.

        0 without a draft model, and where no round behind the first drafted.
        """
        return cost_ratio(*(getattr(self, name) for name in LATER))

    @property
    def harmonic_mean(self) -> float:
        """Of v_d and r_d (HM of EESD App. D), from 0 to 1: deeper rounds raise r_d and lower v_d."""
        v, r = self.acceptance_rate, self.draft_share
        return 2 * v * r / (v + r) if v + r else 0.0

    @property
    def draft_token_cost(self) -> float:
        """a = seconds per drafted token over seconds per target forward, the prompt's included (EESD App. D)."""
        if not self.drafted or not self.verify_seconds:
            return 0.0
        return (self.draft_seconds / self.drafted) / (self.verify_seconds / self.rounds)

    def predicted_speedup_at(self, a: float) -> float:
        """v_d / ((a - v_d) r_d + v_d), the speed-up that EESD Eq. 14 predicts; without drafts 1.

        Written as emitted tokens over a drafted + emitted - accepted (Eq. 13), which also holds where v_d is 0. It
        knows drafting and target forwards only, and takes a verification for as dear as a plain decoding step.
        """
        if a < 0:
            raise ValueError(f"a is {a}, but a cost cannot be negative")
        forwards = max(self.emitted - self.accepted - self.forced, 1)  # a text may end within its first drafts
        return self.emitted / (a * self.drafted + forwards) if self.emitted else 1.0

    @property
    def predicted_speedup(self) -> float:
        """`predicted_speedup_at` the measured `draft_token_cost`."""
        return self.predicted_speedup_at(self.draft_token_cost)

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of draft forwards, target forwards, sampling and the rest in the time of the rounds (EESD Table 8)."""
        seconds = {part: getattr(self, f"{part}_seconds") for part in PARTS}
        total = sum(seconds.values())
        return {name: value / total if total else 0.0 for name, value in seconds.items()}

    def predicted_layers(self, threshold: float = 1.0) -> float:
        """Theorem 3.2: layers per round are at least 1 + a + ... + a^gamma, gamma as each round drafted.

        a is the mean of min(t, beta) over the verified layers; with a fixed width t is 1. The theorem takes a for the
        same in every layer and round; where it is not, and in short texts, fewer layers may be measured.
        """
        if not self.rounds or not self.layers:
            return 0.0
        a = sum(min(threshold, beta) for beta in self.least) / len(self.least) if self.least else 0.0
        return 1.0 + sum(count * a ** (layer + 1) for layer, count in enumerate(self.drafted_at)) / self.rounds

    def as_dict(self) -> dict[str, Any]:
        """Every field and ratio, ready for JSON."""
        lists = ("attempted_at", "accepted_at", "drafted_at", "least", "met_at", "taken_at")
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, *RATIOS) if name not in lists}


def cost_ratio(draft_seconds: float, drafts: float, verify_seconds: float, rounds: float) -> float:
    """c of the sums `LATER`; 0 where nothing was drafted."""
    return draft_seconds / drafts / (verify_seconds / rounds) if drafts and verify_seconds else 0.0


RATIOS = tuple(name for name, value in vars(Metrics).items() if isinstance(value, property))
QUOTIENTS = {name: value for name, value in vars(Metrics).items() if isinstance(value, Quotient)}
DIVIDED = dict.fromkeys(name for each in QUOTIENTS.values() for name in (each.above, each.below))
ADDED = (*dict.fromkeys([*DIVIDED, *OF_ROUNDS, "first_round_seconds"]),)  # sums of one request that add up to several's
