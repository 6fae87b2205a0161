"""The predictor of Cali-TS (EESD §3.3): drafts noted while an engine decodes chains, and the training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth import ALONE, DepthController, DraftState, Load
from draftwood.depth.calibrated import PLACES, Calibration, Trained
from draftwood.depth.rules import STATES
from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.engine.request import Prompt
from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.sampling.distributions import Streams
from draftwood.train.calibration_metrics import CalibrationMetrics, judge
from draftwood.train.recording import WatchedEngine, drafts_one_by_one, fit, split

TARGET_RATES = (0.3, 0.03)  # of the learning rate, for the target's vectors, which overfit: a round has one state
MIN_DEVIATION = 0.05


@dataclass(frozen=True, slots=True)
class RecordedDrafts:
    """Recorded drafts that were verified; an unknown state of the target is NaN."""

    place: Tensor  # [n] int64, i
    target: Tensor  # [n, D_T] float32
    draft: Tensor  # [n, D_D] float32
    accepted: Tensor  # [n] float32, chi
    request: Tensor  # [n] int64: which request
    round: Tensor  # [n] int64: which round of all

    def __len__(self) -> int:
        return len(self.place)


class _DraftRecord(NamedTuple):
    """One draft, in the order of `RecordedDrafts`."""

    place: int
    target: Tensor | None
    draft: Tensor
    accepted: float
    request: int
    round: int


@dataclass(slots=True)
class _DraftRecorder(DepthController):
    """Stands in for the depth controller of one request, and records every verified draft."""

    inner: DepthController
    drafts: list[_DraftRecord]
    request: int
    numbers: Iterator[int]  # of rounds, over all requests
    most: int = field(init=False)
    needs: frozenset[str] = field(init=False)
    _states: list[Tensor] = field(init=False, default_factory=list)  # one per drafted layer of the round
    _target: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.most, self.needs = self.inner.most, self.inner.needs | STATES

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._states = []
        self.inner.start(streams, load)

    def deeper(self, state: DraftState) -> bool:
        if state.depth:
            if state.hidden is None or len(state.hidden) != 1:
                raise ConfigurationError(
                    "the predictor is trained on chains of drafts whose hidden states can be read; "
                    "use speculative, eesd or self-spec with gamma, without tree"
                )
            self._states.append(state.hidden[0].float().cpu().clone())
        return self.inner.deeper(state)

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        number = next(self.numbers)
        for i, read in enumerate(self._states[: round_.attempted]):
            accepted = float(i < round_.depth_accepted)
            self.drafts.append(_DraftRecord(i + 1, self._target, read, accepted, self.request, number))
        self._target = None if state is None else state.float().cpu().clone()
        self.inner.observe(round_, state)


def record(
    engine: Engine,
    method: Method,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0, 1.0),
    max_new_tokens: int = 96,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> RecordedDrafts:
    """Decode every prompt, at the temperatures in turn, and record the drafts; `progress` as in `Engine.batch`."""
    if not drafts_one_by_one(method):
        raise ConfigurationError(
            f"cali-ts cannot control method {method.name}; record with one that drafts chains: speculative, eesd, "
            "self-spec"
        )
    drafts, rounds = list[_DraftRecord](), count()

    def watch(generation: Generation, number: int) -> None:
        generation.depth = _DraftRecorder(generation.depth, drafts, number, rounds)

    requests = [
        {"prompt": prompt, "seed": seed + i, "sampling": {"temperature": temperatures[i % len(temperatures)]}}
        for i, prompt in enumerate(prompts)
    ]
    WatchedEngine(engine, watch).batch(requests, progress=progress, method=method, max_new_tokens=max_new_tokens)
    known = next((draft.target for draft in drafts if draft.target is not None), None)
    if known is None:
        raise ConfigurationError("no draft was tried after a round was over; record more tokens, with gamma above 0")
    unknown = torch.full_like(known, torch.nan)
    place, target, states, accepted, request, number = zip(*drafts, strict=True)
    return RecordedDrafts(
        torch.tensor(place),
        torch.stack([unknown if state is None else state for state in target]),
        torch.stack(states),
        *(torch.tensor(column) for column in (accepted, request, number)),
    )


def deviations(drafts: RecordedDrafts, chances: Tensor) -> tuple[float, float]:
    """(sM, sS) by the method of moments.

    sS: of a round's share of accepted drafts around its request's share. sM: of a request's mean error of theta_M, less
    the variance that coins of these chances have anyway. Both are at least MIN_DEVIATION, or one source would be
    believed blindly.
    """
    error, noise = drafts.accepted - chances, chances * (1 - chances)
    between, within = [], []
    for request in sorted(set(drafts.request.tolist())):
        mine = drafts.request == request
        size = int(mine.sum())
        between.append(float(error[mine].mean()) ** 2 - float(noise[mine].sum()) / size**2)
        share = float(drafts.accepted[mine].mean())
        for number in sorted(set(drafts.round[mine].tolist())):
            within.append((float(drafts.accepted[drafts.round == number].mean()) - share) ** 2)
    model, sample = (math.sqrt(max(0.0, statistics.mean(each))) for each in (between, within))
    return max(MIN_DEVIATION, model), max(MIN_DEVIATION, sample)


def train_calibration(
    drafts: RecordedDrafts, held_out: float = 0.2, epochs: int = 60, batch: int = 256, rate: float = 3e-3, seed: int = 0
) -> tuple[Trained, CalibrationMetrics]:
    """Train on recorded drafts; the judgement is on the `held_out` share of requests, drawn by seed.

    The weights that are best on a second held-out share, of the same size, are kept. Cross-entropy on chi, AdamW.
    """
    generator = torch.Generator().manual_seed(seed)
    test, tune, rest = split(drafts.request, held_out, generator, "drafts of {count} requests")
    known = drafts.target[rest][~drafts.target[rest].isnan().any(-1)]
    if not len(known):
        raise ConfigurationError("no target states were recorded: every request was one round; raise the tokens")
    mean, scale = known.mean(0), known.std(0, unbiased=False).clamp(min=1e-6)
    draft_mean = drafts.draft[rest].mean(0)
    draft_scale = drafts.draft[rest].std(0, unbiased=False).clamp(min=1e-6)
    target = ((drafts.target - mean) / scale).nan_to_num(0.0)
    draft = (drafts.draft - draft_mean) / draft_scale

    def fitted(share: float) -> tuple[float, list[Tensor]]:
        """(loss on the second share, weights), the target's vectors learning at `share` of the rate."""
        weights = [torch.zeros(PLACES, target.shape[1]), torch.zeros(draft.shape[1]), torch.zeros(PLACES)]
        for weight in weights:
            weight.requires_grad_()
        model = Calibration(weights[0], weights[1], weights[2], mean)
        groups = [{"params": weights[:1], "lr": share * rate}, {"params": weights[1:], "lr": rate}]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.1)

        def logits(some: Tensor) -> Tensor:
            return model.logits(drafts.place[some], target[some], draft[some])

        order = torch.Generator().manual_seed(seed)
        return fit(logits, drafts.accepted, weights, optimizer, rest, tune, epochs, batch, order)

    _, kept = min((fitted(share) for share in TARGET_RATES), key=lambda each: each[0])
    maps = kept[0] / scale, kept[1] / draft_scale  # the standardisation becomes part of them
    final = Calibration(*maps, kept[2] - maps[0] @ mean - maps[1] @ draft_mean, mean)
    states = torch.where(drafts.target.isnan(), mean, drafts.target)
    chances = torch.sigmoid(final.logits(drafts.place, states, drafts.draft))
    unseen = torch.cat((test, tune))
    aside_drafts = RecordedDrafts(*(getattr(drafts, name)[unseen] for name in RecordedDrafts.__dataclass_fields__))
    model_deviation, sample_deviation = deviations(aside_drafts, chances[unseen])
    share = float(drafts.accepted[rest].mean())
    trained = Trained(final, model_deviation, sample_deviation, share)
    return trained, judge(chances[test], drafts.accepted[test])
