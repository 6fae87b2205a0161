"""Depth by Thompson sampling with calibration (EESD §3.3, Algorithm 3): a predictor, corrected by what was seen."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import STATES, DepthController, DraftState
from draftwood.depth.thompson import draw_normal
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact
from draftwood.sampling.distributions import Streams

PLACES = 10  # of drafts in a round that the predictor tells apart; later ones count as the last of them
TENSORS = ("target", "draft", "bias", "mean")  # of a predictor
NUMBERS = ("model_deviation", "sample_deviation", "theta0")

Predict = Callable[[DraftState, Tensor | None], float | None]  # (drafted so far, the target's state) -> theta_M, if any


@dataclass(slots=True)
class Seen:
    """Counts of verified rounds with drafts, and of the drafts in them: accepted ones, and all that were tried."""

    rounds: int = 0
    accepted: int = 0
    tried: int = 0


@dataclass(slots=True)
class CalibratedThompson(DepthController):
    """Cali-TS (EESD Algorithm 3): a predictor's theta_M of the last layer, corrected by what verification showed.

    theta ~ N(mu, s²), clipped to [0, 1], with mu = (sS² theta_M + n sM² theta_hat) / (n sM² + sS²) and
    s² = sM² sS² / (sS² + n sM²) (Eq. 6, 7); n is the number of verified rounds. theta_hat is the mean of all verified
    drafts, accepted ones over tried ones, with the guess `theta0` counted as one: EESD Eq. 8 divides by the
    accepted drafts themselves, so that its theta_hat can only rise to 1 (spec §9.5).

    As in the paper one layer is always drafted; with `zero` a coin of chance theta_hat is thrown before it. Where the
    draft shows no states, as of beams, theta_hat decides alone.
    """

    most: int
    predict: Predict
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

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._streams = streams

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        if state.depth == 0 and not self.zero:
            return True
        theta_model = self.predict(state, self._target) if state.depth else None
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

    def chance(self, state: DraftState, target: Tensor | None) -> float | None:
        """theta_M of the last layer, in trees of its most promising node; None without hidden states."""
        if state.hidden is None:
            return None
        if self.draft.device != state.hidden.device:
            for name in TENSORS:
                setattr(self, name, getattr(self, name).to(state.hidden.device))
        i = min(state.depth, PLACES) - 1
        target_state = self.mean if target is None else target.float()
        rows = sorted({row for row, _ in state.picked})
        hidden = state.hidden if not rows or len(rows) == len(state.hidden) else state.hidden[rows]
        draft = hidden[0].float().dot(self.draft) if len(hidden) == 1 else (hidden.float() @ self.draft).max()
        logit = float(draft + self.target[i].dot(target_state) + self.bias[i])
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


@dataclass(frozen=True, slots=True)
class Trained:
    """A predictor with what is known of its errors: the hyperparameters of `CalibratedThompson`."""

    model: Calibration
    model_deviation: float
    sample_deviation: float
    theta0: float


def save_calibration(path: Path, trained: Trained, target: str, draft: str, about: Mapping[str, Any]) -> None:
    """Write a predictor for the models of these fingerprints; `about` says how it was trained and what it is worth."""
    settings = {name: getattr(trained, name) for name in NUMBERS}
    tensors = {name: getattr(trained.model, name) for name in TENSORS}
    Artifact("calibration", {"target": target, "draft": draft}, settings, tensors, about).save(path)


def load_calibration(path: Path, target: str, draft: str) -> Trained:
    """A saved predictor for models of these fingerprints; ModelError where it is missing, damaged or of others.

    It is read when a request first asks for it, and again when the file has changed.
    """
    path = path.expanduser()
    state = path.stat() if path.is_file() else None
    trained = _read(path, target, draft, state and state.st_mtime_ns, state and state.st_size)
    return replace(trained, model=copy.copy(trained.model))  # which moves to the device of its request


@functools.lru_cache(maxsize=16)
def _read(path: Path, target: str, draft: str, changed: int | None, size: int | None) -> Trained:
    stored = artifact.load(path, "calibration", target=target, draft=draft)
    try:
        model = Calibration(*(stored.tensors[name] for name in TENSORS))
        if model.target.shape != (PLACES, *model.mean.shape) or model.bias.shape != (PLACES,) or model.draft.dim() != 1:
            raise ValueError("it holds something else")
        return Trained(model, *(float(stored.settings[name]) for name in NUMBERS))
    except (LookupError, TypeError, ValueError) as error:
        raise artifact.damaged(path, "calibration", error) from error
