"""The drafter that drafts from a session's model, whatever that reads: tokens, or the target's states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwood.core.forest import Forest
from draftwood.depth import DepthController
from draftwood.draft.base import Drafter, Drafting, Proposer, Source
from draftwood.draft.blocks import BlockSession, BlockSource, MedusaSource
from draftwood.draft.shared import SharedSession
from draftwood.draft.states import AssistantSource, ExitSource, HeadSource, StateSource
from draftwood.draft.suffix import EarlierAnswers
from draftwood.models.heads.medusa import Heads
from draftwood.runtime.session import Session
from draftwood.sampling.distributions import Distributions


@dataclass(slots=True)
class StateDrafter(Drafter):
    """Any drafter that drafts from states of the target."""

    drafter: Drafter
    source: StateSource

    @property
    def needs(self) -> frozenset[str]:
        return self.drafter.needs

    @property
    def reads(self) -> tuple[int, ...]:
        return self.source.reads

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        self.source.begin(forest)
        yield from self.drafter.draft(forest, depth, limit, propose)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.source.take(trunk, kept, forest, target.read)
        self.drafter.commit(trunk, kept, forest, target)

    def lacks(self, forest: Forest) -> int:
        return self.source.lacks()

    def share(self, earlier: EarlierAnswers) -> None:
        self.drafter.share(earlier)

    def finish(self, forest: Forest) -> None:
        self.drafter.finish(forest)


def source_of(session: Session, target: Session) -> Source:
    """Draft logits of the model of `session`: a head or an exit over the target's states, or any other model."""
    reads, layers = (getattr(session.model, name, None) for name in ("reads", "layers"))
    if isinstance(session.model, Heads):
        return MedusaSource(target, session, (target.model.n_layers,))
    if isinstance(session, BlockSession) and reads is not None:
        return BlockSource(target, session, tuple(reads))
    if reads is not None:
        kind = AssistantSource if isinstance(session, SharedSession) else HeadSource
        return kind(target, session, tuple(reads))
    if isinstance(layers, int) and not isinstance(session, SharedSession):
        return ExitSource(target, session, (layers,))
    return session


def drafting(make: Callable[[Source], Drafter], session: Session, target: Session) -> Drafter:
    """The drafter that `make` makes of a session's `source_of`."""
    source = source_of(session, target)
    return StateDrafter(make(source), source) if isinstance(source, StateSource) else make(source)
