"""Depth by Thompson sampling with calibration (EESD §3.3, Algorithm 3): a predictor's word, corrected by what was seen.

Knows the posterior and the predictor: training, saving, loading. Refuses to know models: states are arrays that were
recorded or are given.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftwood.core.records import Round
from draftwood.depth.judgement import Judgement, judge
from draftwood.depth.rules import STATES, Growth
from draftwood.depth.thompson import draw_normal
from draftwood.errors import ConfigurationError
from draftwood.sampling import Streams

TARGET_RATES = (0.3, 0.03)  # of the learning rate, for the target's vectors, which overfit: a round has one state
PLACES = 10  # of drafts in a round that the predictor tells apart; later ones count as the last of them
LEAST = 0.05  # deviation
TRAIN = "train it with `draftwood train calibration`"

Foretell = Callable[[Growth, Tensor | None], float | None]  # (drafted so far, the target's state) -> theta_M, if any


@dataclass(slots=True)
class Seen:
    """What verification showed: rounds with drafts, and drafts in them that were accepted, and tried."""

    rounds: int = 0
    accepted: int = 0
    tried: int = 0


@dataclass(slots=True)
class CalibratedThompson:
    """Cali-TS (EESD Algorithm 3): a predictor's theta_M of the last layer, corrected by what verification showed.

    theta ~ N(mu, s²), clipped to [0, 1], with mu = (sS² theta_M + n sM² theta_hat) / (n sM² + sS²) and
    s² = sM² sS² / (sS² + n sM²) (Eq. 6, 7); n is the number of verified rounds. theta_hat is the mean of all verified
    drafts, accepted ones over tried ones, with the guess `theta0` counted as one: EESD Eq. 8 divides by the
    accepted drafts themselves, so that its theta_hat can only rise to 1 (spec §9.5).

    As in the paper one layer is always drafted; with `zero` a coin of chance theta_hat is thrown before it. Where the
    draft shows no states, as of beams, theta_hat decides alone.
    """

    most: int
    predict: Foretell
    model_deviation: float = 0.25  # sM, the predictor's error for a request
    sample_deviation: float = 0.5  # sS, of the share of accepted drafts in a round
    theta0: float = 0.5
    zero: bool = False
    shared: bool = False
    seen: Seen = field(default_factory=Seen)
    needs: frozenset[str] = STATES
    _target: Tensor | None = field(init=False, compare=False, default=None)  # its state where the round begins
    _streams: Streams = field(init=False, compare=False, default_factory=lambda: Streams(0))

    @property
    def theta_hat(self) -> float:
        return (self.theta0 + self.seen.accepted) / (1 + self.seen.tried)

    def posterior(self, theta_model: float) -> tuple[float, float]:
        """(mu, s²) of theta."""
        model, sample = self.model_deviation**2, self.sample_deviation**2
        seen = self.seen.rounds * model
        total = seen + sample
        return (sample * theta_model + seen * self.theta_hat) / total, model * sample / total

    def for_request(self) -> CalibratedThompson:
        return replace(self)

    def start(self, streams: Streams) -> None:
        self._streams = streams

    def deeper(self, growth: Growth) -> bool:
        if growth.depth >= self.most:
            return False
        if growth.depth == 0 and not self.zero:
            return True
        theta_model = self.predict(growth, self._target) if growth.depth else None
        if theta_model is None:
            theta = self.theta_hat
        else:
            mu, variance = self.posterior(theta_model)
            theta = mu + math.sqrt(variance) * draw_normal(lambda: self._streams.uniform("depth"))
        return self._streams.uniform("depth") < min(1.0, max(0.0, theta))

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        self._target = state
        if round_.attempted:
            self.seen.rounds += 1
            self.seen.tried += round_.attempted
            self.seen.accepted += round_.depth_accepted


# -- the predictor -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Calibration:
    """theta_M = sigmoid(W_p [W^i h_target ; h_draft]), i = min(i, 10) (EESD Eq. 5).

    h_target is the target's last hidden state at the last accepted token, h_draft what the draft's head read for the
    i-th draft of the round. Nothing non-linear stands between W^i and W_p, so a row vector for each i says all that
    the paper's ten d×d matrices can: `target` [10, D_T] holds W_p's first half times W^i, `draft` [D_D] its second
    half, `bias` [10] what the maps add. An unknown h_target counts as the mean one.
    """

    target: Tensor
    draft: Tensor
    bias: Tensor
    mean: Tensor  # [D_T] of h_target

    def logits(self, place: Tensor, target: Tensor, draft: Tensor) -> Tensor:
        """[n] for places [n] from 1 on, states of the target [n, D_T] and the draft [n, D_D]."""
        i = place.clamp(max=PLACES) - 1
        return (self.target[i] * target).sum(-1) + draft @ self.draft + self.bias[i]

    def chance(self, growth: Growth, target: Tensor | None) -> float | None:
        """theta_M of the last layer, in trees of its most promising node; None without hidden states."""
        if growth.hidden is None:
            return None
        if self.draft.device != growth.hidden.device:
            for name in Calibration.__dataclass_fields__:
                setattr(self, name, getattr(self, name).to(growth.hidden.device))
        i = min(growth.depth, PLACES) - 1
        state = self.mean if target is None else target.float()
        rows = sorted({row for row, _ in growth.picked})
        hidden = growth.hidden if not rows or len(rows) == len(growth.hidden) else growth.hidden[rows]
        draft = hidden[0].float().dot(self.draft) if len(hidden) == 1 else (hidden.float() @ self.draft).max()
        logit = float(draft + self.target[i].dot(state) + self.bias[i])
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


@dataclass(frozen=True, slots=True)
class Drafts:
    """Recorded drafts that were verified; what is unknown of the target's state is NaN."""

    place: Tensor  # [n] int64, i
    target: Tensor  # [n, D_T] float32
    draft: Tensor  # [n, D_D] float32
    accepted: Tensor  # [n] float32, chi
    request: Tensor  # [n] int64: which request
    round: Tensor  # [n] int64: which round of all

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True, slots=True)
class Trained:
    """A predictor with what is known of its errors: the hyperparameters of `CalibratedThompson`."""

    model: Calibration
    model_deviation: float
    sample_deviation: float
    theta0: float
    judgement: Judgement | None = None


def deviations(drafts: Drafts, chances: Tensor) -> tuple[float, float]:
    """(sM, sS) by the method of moments.

    sS: of the share of accepted drafts in a round around its request's share. sM: of a request's mean error of theta_M,
    less what coins of these chances scatter anyway. Neither is below LEAST, or one source would be believed blindly.
    """
    error, noise = drafts.accepted - chances, chances * (1 - chances)
    between, within = [], []
    for request in sorted(set(drafts.request.tolist())):
        mine = drafts.request == request
        count = int(mine.sum())
        between.append(float(error[mine].mean()) ** 2 - float(noise[mine].sum()) / count**2)
        share = float(drafts.accepted[mine].mean())
        for number in sorted(set(drafts.round[mine].tolist())):
            within.append((float(drafts.accepted[drafts.round == number].mean()) - share) ** 2)
    model, sample = (math.sqrt(max(0.0, statistics.mean(each))) for each in (between, within))
    return max(LEAST, model), max(LEAST, sample)


def train_calibration(
    drafts: Drafts, held_out: float = 0.2, epochs: int = 60, batch: int = 256, rate: float = 3e-3, seed: int = 0
) -> Trained:
    """Train on recorded drafts; the judgement is on the `held_out` share of requests, drawn by seed.

    The weights that are best on a second held-out share, of the same size, are kept. Cross-entropy on chi, AdamW.
    """
    requests = torch.tensor(sorted(set(drafts.request.tolist())))
    aside = int(len(requests) * held_out)
    if not 0 < held_out < 0.5 or aside < 1 or len(requests) - 2 * aside < 1:
        raise ConfigurationError(
            f"drafts of {len(requests)} requests cannot be split with held_out {held_out}; record more prompts"
        )
    generator = torch.Generator().manual_seed(seed)
    shuffled = requests[torch.randperm(len(requests), generator=generator)]
    test, tune, rest = (
        torch.isin(drafts.request, chosen).nonzero()[:, 0]
        for chosen in (shuffled[:aside], shuffled[aside : 2 * aside], shuffled[2 * aside :])
    )
    known = drafts.target[rest][~drafts.target[rest].isnan().any(-1)]
    if not len(known):
        raise ConfigurationError("no target states were recorded: every request was one round; raise the tokens")
    mean, scale = known.mean(0), known.std(0, unbiased=False).clamp(min=1e-6)
    draft_mean = drafts.draft[rest].mean(0)
    draft_scale = drafts.draft[rest].std(0, unbiased=False).clamp(min=1e-6)
    target = ((drafts.target - mean) / scale).nan_to_num(0.0)
    draft = (drafts.draft - draft_mean) / draft_scale
    loss = nn.functional.binary_cross_entropy_with_logits

    def fitted(share: float) -> tuple[float, list[Tensor]]:
        """(loss on the second share, weights), the target's vectors learning at `share` of the rate."""
        weights = [torch.zeros(PLACES, target.shape[1]), torch.zeros(draft.shape[1]), torch.zeros(PLACES)]
        for weight in weights:
            weight.requires_grad_()
        model = Calibration(weights[0], weights[1], weights[2], mean)
        groups = [{"params": weights[:1], "lr": share * rate}, {"params": weights[1:], "lr": rate}]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
        order = torch.Generator().manual_seed(seed)
        best, kept = math.inf, weights
        for _ in range(epochs):
            for chosen in torch.split(rest[torch.randperm(len(rest), generator=order)], batch):
                optimizer.zero_grad()
                logits = model.logits(drafts.place[chosen], target[chosen], draft[chosen])
                loss(logits, drafts.accepted[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                now = float(loss(model.logits(drafts.place[tune], target[tune], draft[tune]), drafts.accepted[tune]))
            if now < best:
                best, kept = now, [weight.detach().clone() for weight in weights]
        return best, kept

    _, kept = min((fitted(share) for share in TARGET_RATES), key=lambda each: each[0])
    maps = kept[0] / scale, kept[1] / draft_scale  # the standardisation becomes part of them
    final = Calibration(*maps, kept[2] - maps[0] @ mean - maps[1] @ draft_mean, mean)
    states = torch.where(drafts.target.isnan(), mean, drafts.target)
    chances = torch.sigmoid(final.logits(drafts.place, states, drafts.draft))
    unseen = torch.cat((test, tune))
    aside_drafts = Drafts(*(getattr(drafts, name)[unseen] for name in Drafts.__dataclass_fields__))
    model_deviation, sample_deviation = deviations(aside_drafts, chances[unseen])
    share = float(drafts.accepted[rest].mean())
    return Trained(final, model_deviation, sample_deviation, share, judge(chances[test], drafts.accepted[test]))


def save_calibration(path: Path, trained: Trained, target: str, draft: str, about: dict[str, Any]) -> None:
    """Write PATH (safetensors) and beside it PATH with .json: fingerprints, deviations, the judgement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = trained.model
    tensors = {name: getattr(model, name).contiguous() for name in Calibration.__dataclass_fields__}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    document = {
        "kind": "calibration",
        "target": target,
        "draft": draft,
        "model_deviation": trained.model_deviation,
        "sample_deviation": trained.sample_deviation,
        "theta0": trained.theta0,
        "judgement": asdict(trained.judgement) if trained.judgement else None,
        **about,
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    partial.replace(path)  # last: an interrupted save leaves the weights that were there


def load_calibration(path: Path, target: str, draft: str) -> Trained:
    """A saved predictor for models of these fingerprints; ConfigurationError if missing, damaged or of others."""
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if not file.is_file():
            raise ConfigurationError(f"calibration {file} does not exist; {TRAIN}")
    try:
        about = json.loads(beside.read_text("utf-8"))
        tensors = load_file(path)
        model = Calibration(*(tensors[name] for name in Calibration.__dataclass_fields__))
        found = about["target"], about["draft"]
        if model.target.shape != (PLACES, *model.mean.shape) or model.bias.shape != (PLACES,):
            raise ValueError("it holds something else")
        trained = Trained(
            model, float(about["model_deviation"]), float(about["sample_deviation"]), float(about["theta0"])
        )
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise ConfigurationError(f"calibration {path} cannot be read ({error}); {TRAIN} again") from error
    for role, trained_for, here in (("target", found[0], target), ("draft", found[1], draft)):
        if trained_for != here:
            raise ConfigurationError(
                f"calibration {path} was trained for another {role} (its fingerprint is {trained_for}, this one's "
                f"{here}); {TRAIN} for these models"
            )
    return trained
