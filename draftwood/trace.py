"""What happened: rounds, and the one definition of every metric.

Pure data. Refuses to know models and methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

TopLogprobs = list[tuple[int, float]]
Kind = Literal["accepted", "corrected", "bonus", "plain"]  # a draft; after a rejection; after all drafts; no drafts
Outcome = tuple[int, int]  # (node or beam, token or STAY)
RATIOS = (  # of `Metrics`, in the order of its dictionary
    *("tau", "acceptance_rate", "alpha", "acceptance_by_position", "tokens_per_second", "draft_cost_ratio"),
    *("draft_share", "harmonic_mean", "draft_token_cost", "predicted_speedup", "time_shares"),
    *("layers_per_round", "mean_width", "mean_accepted_width"),
)


@dataclass(slots=True)
class Said:
    """What a round says of an emitted token."""

    token: int
    kind: Kind
    logprob: float  # under the target's untouched softmax
    warped: float  # under T∘p; of beams: of beam and token under the layer's joint distribution
    top: TopLogprobs = field(default_factory=list)
    warped_top: TopLogprobs = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one draw. p is p' as the draw met it, q what it was drawn from, chance = min(1, p'/q)."""

    outcome: Outcome
    fate: Literal["accepted", "rejected", "discarded", "orphaned"]
    p: float = 0.0
    q: float = 0.0
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Layer:
    """The verdict on one layer: `width` beams in order, the first `accepted` of them drafts, the rest completions.

    With replacement `beams` counts multiplicity: given the layer before and the width, it is `width` iid draws from
    p (DSBD Theorem 3.1), as of the reference; equal outcomes are one beam from here on (`distinct`). Without
    replacement it is `width` successive draws without replacement from p. The layer stands if all are accepted drafts;
    otherwise its beams end the round.
    """

    width: int
    beams: list[Outcome]
    accepted: int
    judged: list[Judged]
    stands: bool
    chance: float = 0.0  # that `width` draws are accepted, as p, q and the number of draws foretell it
    least: float = 0.0  # beta: that at least the minimum width is accepted (Theorem 3.2)

    @property
    def distinct(self) -> list[Outcome]:
        """The beams as a set, in order of first appearance."""
        return list(dict.fromkeys(self.beams))

    def as_dict(self) -> dict[str, Any]:
        """Plain data; nodes are places in the round's forest."""
        return {
            "width": self.width,
            "draws": len(self.judged),
            "accepted": self.accepted,
            "stands": self.stands,
            "chance": self.chance,
            "least": self.least,
            "beams": [list(beam) for beam in self.beams],
            "judged": [
                {"node": one.outcome[0], "token": one.outcome[1], "fate": one.fate}
                | ({"p": one.p, "q": one.q, "chance": one.chance} if one.q else {})
                for one in self.judged
            ],
        }


@dataclass(slots=True)
class Beam:
    """One hypothesis of the answer. `score` is log-likelihood / length^length_penalty, by which beams are ranked."""

    tokens: list[int]
    logprobs: list[float]  # per token, under the target before warping
    log_likelihood: float  # of all tokens, as the method counts it
    score: float
    text: str = ""
    finish_reason: str = "length"

    @property
    def perplexity(self) -> float:
        """exp(-log-likelihood / length)."""
        return math.exp(-self.log_likelihood / len(self.tokens)) if self.tokens else math.inf


@dataclass(slots=True)
class Round:
    """One drafting phase and one target forward. Seconds of forwards are model time only; see `Metrics` for sums."""

    position: int  # place in the sequence of the round's (first) root
    tokens: list[int]  # emitted
    logprobs: list[float]  # of the emitted tokens, under the target's untouched softmax
    warped_logprobs: list[float]  # the same under T∘p, the distribution that is decoded
    top_logprobs: list[TopLogprobs]  # most probable tokens before warping, where asked for
    warped_top_logprobs: list[TopLogprobs]  # and after warping
    kinds: list[Kind]  # of the emitted tokens
    drafted: int  # distinct draft nodes
    draws: int  # draws, with multiplicity
    accepted: int  # drafts among the emitted tokens
    depth_accepted: int  # depth of the accepted path, before EOS, stop strings and limits cut it
    attempted: int  # positions at which drafts were verified: depth_accepted, plus one when all children failed
    draft_seconds: float  # forwards of draft models
    verify_seconds: float  # forwards of the target
    sampling_seconds: float  # warping, drawing, accepting
    other_seconds: float  # bookkeeping
    target_rows: float
    draft_rows: float
    draft_forwards: int
    forest_token: list[int]  # the round's nodes
    forest_parent: list[int]
    forest_path: list[int]  # accepted path, the root first
    roots: list[int]  # tokens of the next roots, STAY for one that is finished and stays,
    root_parents: list[int]  # and the nodes they hang on
    siblings: list[tuple[int, int]] = field(default_factory=list)  # per layer: (place of the accepted draw, draws)
    layers: Sequence[Layer] = ()  # of beams: what happened, layer by layer
    beams: list[Beam] = field(default_factory=list)  # with the last round of beams: the answer, best first
    target_state: Tensor | None = None  # [D] that its head read at the accepted path's end; for depth controllers only

    @property
    def seconds(self) -> float:
        """Wall time of the round that is accounted for."""
        return self.draft_seconds + self.verify_seconds + self.sampling_seconds + self.other_seconds


@dataclass(slots=True)
class Metrics:
    """Sums and ratios over the rounds of one request."""

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    depth_accepted: int = 0
    attempted: int = 0
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
    met_at: list[list[int]] = field(default_factory=list)  # [layer][place]: how often a sibling drawn there was met
    taken_at: list[list[int]] = field(default_factory=list)  # and accepted
    peak_slots: int = 0  # most cache slots that the target held at once
    layers: int = 0  # of beams: all that rounds gave, accepted ones and the one that ended the round
    widths: int = 0  # beams in these layers, with multiplicity
    widths_accepted: int = 0  # those of them that were drafts
    drafted_at: list[int] = field(default_factory=list)  # rounds that drafted a first, second, ... layer
    least: list[float] = field(default_factory=list)  # beta of each drafted layer that was verified (Theorem 3.2)

    def add(self, news: Round) -> None:
        """Count one round."""
        if self.rounds == 0:
            self.first_round_seconds = news.seconds
        self.rounds += 1
        self.emitted += len(news.tokens)
        self.drafted += news.drafted
        self.accepted += news.accepted
        self.depth_accepted += news.depth_accepted
        self.attempted += news.attempted
        self.draft_seconds += news.draft_seconds
        self.verify_seconds += news.verify_seconds
        self.sampling_seconds += news.sampling_seconds
        self.other_seconds += news.other_seconds
        self.target_rows += news.target_rows
        self.draft_rows += news.draft_rows
        self.draft_forwards += news.draft_forwards
        while len(self.attempted_at) < news.attempted:
            self.attempted_at.append(0)
            self.accepted_at.append(0)
        for depth in range(news.attempted):
            self.attempted_at[depth] += 1
            self.accepted_at[depth] += depth < news.depth_accepted
        for depth, (place, draws) in enumerate(news.siblings):
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
        if news.layers:
            self._add_layers(news)

    def _add_layers(self, news: Round) -> None:
        self.layers += len(news.layers)
        self.widths += sum(layer.width for layer in news.layers)
        self.widths_accepted += sum(layer.accepted for layer in news.layers)
        self.least += [layer.least for layer in news.layers if layer.judged]
        each = len(news.layers[0].judged)  # draws of a layer
        depth = max(math.ceil(news.draws / each), news.attempted) if each else 0
        self.drafted_at += [0] * (depth - len(self.drafted_at))
        for layer in range(depth):
            self.drafted_at[layer] += 1

    @property
    def tau(self) -> float:
        """Tokens emitted per target forward."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens (v_d of EESD App. D); 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def alpha(self) -> float:
        """Chance that verification goes on at a position where there were drafts; 0 when nothing was drafted."""
        return self.depth_accepted / self.attempted if self.attempted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """The same, separately for the first, second, ... drafted position."""
        return [a / n for a, n in zip(self.accepted_at, self.attempted_at, strict=True)]

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of wall time, the prompt's forward included."""
        return self.emitted / self.seconds if self.seconds else 0.0

    @property
    def draft_cost_ratio(self) -> float:
        """c = seconds of a draft forward over seconds of a target forward; 0 without a draft model."""
        if not self.draft_forwards or not self.verify_seconds:
            return 0.0
        return (self.draft_seconds / self.draft_forwards) / (self.verify_seconds / self.rounds)

    @property
    def draft_share(self) -> float:
        """Accepted drafts over emitted tokens (r_d of EESD App. D, Eq. 12); 0 when nothing was emitted."""
        return self.accepted / self.emitted if self.emitted else 0.0

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
        """v_d / ((a - v_d) r_d + v_d), the speed-up that EESD Eq. 14 foretells; without drafts 1.

        Written as emitted tokens over a drafted + emitted - accepted (Eq. 13), which also holds where v_d is 0. It
        knows drafting and target forwards only, and takes a verification for as dear as a plain decoding step.
        """
        if a < 0:
            raise ValueError(f"a is {a}, but a cost cannot be negative")
        forwards = max(self.emitted - self.accepted, 1)  # a text may end within its first drafts
        return self.emitted / (a * self.drafted + forwards) if self.emitted else 1.0

    @property
    def predicted_speedup(self) -> float:
        """`predicted_speedup_at` the measured `draft_token_cost`."""
        return self.predicted_speedup_at(self.draft_token_cost)

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of draft forwards, target forwards, sampling and the rest in the time of the rounds (EESD Table 8)."""
        seconds = {
            "draft": self.draft_seconds,
            "verify": self.verify_seconds,
            "sampling": self.sampling_seconds,
            "other": self.other_seconds,
        }
        total = sum(seconds.values())
        return {name: value / total if total else 0.0 for name, value in seconds.items()}

    @property
    def layers_per_round(self) -> float:
        """Layers of beams per target forward: accepted ones and the one that ends the round; 0 without beams."""
        return self.layers / self.rounds if self.rounds else 0.0

    @property
    def mean_width(self) -> float:
        """Beams per layer, completions and multiplicity counted: comparable with the width of beam sampling."""
        return self.widths / self.layers if self.layers else 0.0

    @property
    def mean_accepted_width(self) -> float:
        """Accepted drafts per layer that was verified (DSBD App. C.1); 0 when no layer was drafted."""
        return self.widths_accepted / self.attempted if self.layers and self.attempted else 0.0

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
        names = [name for name in self.__dataclass_fields__ if name not in lists]
        values = {name: getattr(self, name) for name in names}
        for name in RATIOS:
            values[name] = getattr(self, name)
        return values


@dataclass(slots=True)
class GenerationResult:
    """What one request produced. `tokens` are the generated ids only; `text` excludes a stop string that was met."""

    text: str
    tokens: list[int]
    logprobs: list[float]  # per token, under the target before warping
    warped_logprobs: list[float]  # per token, under T∘p
    top_logprobs: list[TopLogprobs]  # per token, before warping, where asked for
    warped_top_logprobs: list[TopLogprobs]  # per token, under T∘p
    kinds: list[Kind]  # per token
    finish_reason: str  # eos, stop, length, cancelled
    metrics: Metrics
    rounds: list[Round]
    prompt_tokens: list[int]
    seed: int
    method: dict[str, Any]
    sampling: dict[str, Any]
    lossless: bool
    beams: list[Beam] = field(default_factory=list)  # of methods with several hypotheses: the best, first `tokens`

    @property
    def predicted_layers(self) -> float | None:
        """What Theorem 3.2 foretells of `metrics.layers_per_round`; None where it says nothing.

        It speaks of DSBD with draws with replacement; without, the chances of layers are no probabilities.
        """
        if "threshold" not in self.method or not self.method.get("replacement", True):
            return None
        return self.metrics.predicted_layers(1.0 if self.method.get("width") else self.method["threshold"])

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data (rounds in short form), ready for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "logprobs": self.logprobs,
            "warped_logprobs": self.warped_logprobs,
            "top_logprobs": self.top_logprobs,
            "warped_top_logprobs": self.warped_top_logprobs,
            "kinds": self.kinds,
            "prompt_tokens": self.prompt_tokens,
            "seed": self.seed,
            "method": self.method,
            "sampling": self.sampling,
            "lossless": self.lossless,
            "beams": [{**asdict(beam), "perplexity": beam.perplexity} for beam in self.beams],
            "metrics": {**self.metrics.as_dict(), "predicted_layers": self.predicted_layers},
            "rounds": [
                {
                    "position": r.position,
                    "tokens": r.tokens,
                    "drafted": r.drafted,
                    "draws": r.draws,
                    "accepted": r.accepted,
                    "kinds": r.kinds,
                    "seconds": r.seconds,
                    "forest_token": r.forest_token,
                    "forest_parent": r.forest_parent,
                    "roots": r.roots,
                    "root_parents": r.root_parents,
                    "layers": [layer.as_dict() for layer in r.layers],
                }
                for r in self.rounds
            ],
        }
