"""Drafts and hidden states for the predictor of Cali-TS (EESD §3.3), noted while an engine decodes chains of drafts.

Knows which drafts of a round were tried and what could be read before. Refuses to know how the predictor learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth import DepthController, Growth
from draftwood.depth.calibrated import Drafts
from draftwood.depth.rules import STATES
from draftwood.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.generation import Generation
from draftwood.methods import Method
from draftwood.request import Prompt
from draftwood.sampling import Streams
from draftwood.train.recording import Recording

GROUP_SIZE = 8  # requests at once


@dataclass(slots=True)
class _Notes:
    """Columns of `Drafts`; states of the target once per round."""

    place: list[int] = field(default_factory=list)
    draft: list[Tensor] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    request: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    target: list[Tensor | None] = field(default_factory=list)  # per round


@dataclass(slots=True)
class _Recorder:
    """In the place of a request's depth controller, which it asks; notes every draft that was tried."""

    inner: DepthController
    notes: _Notes
    request: int
    needs: frozenset[str] = field(init=False)
    _states: list[Tensor] = field(init=False, default_factory=list)  # one per drafted layer of the round
    _target: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.needs = self.inner.needs | STATES

    def start(self, streams: Streams) -> None:
        self._states = []
        self.inner.start(streams)

    def deeper(self, growth: Growth) -> bool:
        if growth.depth:
            if growth.hidden is None or len(growth.hidden) != 1:
                raise ConfigurationError(
                    "the predictor is trained on chains of drafts whose hidden states can be read; "
                    "use speculative, eesd or self-spec with gamma, without tree"
                )
            self._states.append(growth.hidden[0].float().cpu().clone())
        return self.inner.deeper(growth)

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        notes, number = self.notes, len(self.notes.target)
        notes.target.append(self._target)
        for i, read in enumerate(self._states[: round_.attempted]):
            notes.place.append(i + 1)
            notes.draft.append(read)
            notes.accepted.append(float(i < round_.depth_accepted))
            notes.request.append(self.request)
            notes.round.append(number)
        self._target = None if state is None else state.float().cpu().clone()
        self.inner.observe(round_, state)


def record(
    engine: Engine,
    method: Method,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0, 1.0),
    max_new_tokens: int = 96,
    seed: int = 0,
    advance: Callable[[int], object] = lambda count: None,
) -> Drafts:
    """Decode every prompt, at the temperatures in turn; `advance` is told of requests that ended."""
    if "depth" not in type(method).model_fields or "n_best" in type(method).model_fields:
        raise ConfigurationError(
            f"cali-ts cannot control method {method.name}; record with one that drafts chains: speculative, eesd, "
            "self-spec"
        )
    notes = _Notes()

    def watch(generation: Generation, number: int) -> None:
        generation.depth = _Recorder(generation.depth, notes, number)

    recording = Recording(engine, watch)
    requests = [
        {"prompt": prompt, "seed": seed + i, "sampling": {"temperature": temperatures[i % len(temperatures)]}}
        for i, prompt in enumerate(prompts)
    ]
    for start in range(0, len(requests), GROUP_SIZE):
        some = requests[start : start + GROUP_SIZE]
        recording.batch(some, GROUP_SIZE, method=method, max_new_tokens=max_new_tokens)
        advance(len(some))
    known = next((state for state in notes.target if state is not None), None)
    if known is None or not notes.place:
        raise ConfigurationError("no draft was tried after a round was over; record more tokens, with gamma above 0")
    unknown = torch.full_like(known, torch.nan)
    of_round = [unknown if state is None else state for state in notes.target]
    return Drafts(
        torch.tensor(notes.place),
        torch.stack([of_round[number] for number in notes.round]),
        torch.stack(notes.draft),
        torch.tensor(notes.accepted),
        torch.tensor(notes.request),
        torch.tensor(notes.round),
    )
