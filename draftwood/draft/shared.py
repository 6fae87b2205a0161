"""Drafting with a part of the target, on the target's own keys and values (Draft & Verify, Zhang et al. 2023)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.runtime.session import EVICTED, Answer, ForwardJob, Run, Session, TokenRow


@dataclass(slots=True, eq=False)
class SharedSession(Session):
    """A session of a model that reads and writes the target's cache (`models.base.SubModel`): a `Source` of drafts.

    Verified tokens are as the whole target left them. Drafts get their slots here; the keys and values written there
    count as nothing computed, so that the target's forward, which verifies them, overwrites them in all layers.
    """

    target: Session = field(kw_only=True)

    @property
    def context(self) -> int:
        """Positions that it has room for; 0 before the target has read the prompt: there is nothing to draft from."""
        return self.model.context if self.target.cached else 0

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits after nodes, as of any session; where the request was put back, the target first reads it again."""
        run = Run(self, forest, nodes, hidden=(self.model.n_layers,) if hidden else (), needs_cached_state=True)
        while (answer := (yield run)) is EVICTED:
            yield Run(self.target, forest, [trunk_node(len(forest.trunk) - 1)], logits=False)
        return answer

    def rows(self, run: Run) -> list[TokenRow]:
        """The asked nodes and those of their ancestors without slots."""
        return self.target.rows(replace(run, session=self.target, upto=0))

    def allocations(self, run: Run) -> list[tuple[Sequence[int], int]]:
        """Nothing: the extent is the target's."""
        return []

    def unread(self, tokens: int) -> int:
        """Nothing: the target has read it."""
        return 0

    def level(self, slot: int) -> int:
        """Nothing counts as computed."""
        return 0

    def job(self, run: Run, rows: list[TokenRow], start: int, stop: int) -> ForwardJob:
        return replace(self.target.job(run, rows, 0, stop), session=self)

    def store(self, job: ForwardJob, hidden: Tensor | None) -> None:
        """Nothing to note: to the target the slots are as they were, without any layer."""

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Nothing to do: the target's session follows `advance` for both."""

    def bytes(self, slots: int) -> int:
        """Nothing beside the target's."""
        return 0

    def close(self) -> None:
        """Nothing to give back: the extent is the target's."""

    def forget(self) -> None:
        """Nothing to give back: the extent is the target's."""


@dataclass(slots=True, eq=False)
class AssistantSession(SharedSession):
    """A session of an assistant (`models.heads.assistant_head`), whose layers have no keys and values of their own.

    A row reads those of the tokens before it that the target has computed. It lies at the place right behind them: all
    drafts of a round below one verified token lie at one place.
    """

    @property
    def begun(self) -> bool:
        return self.target.begun

    def rows(self, run: Run) -> list[TokenRow]:
        """The asked nodes; their slots, which nothing is written to, are the target's for the first token."""
        forest, rows = run.forest, list[TokenRow]()
        for node in run.nodes:
            if node < TRUNK:
                rows.append(TokenRow(node, forest.trunk[trunk_position(node)], 0, trunk_position(node)))
            else:
                path = self.target.computed(forest.path(node)[:-1])
                rows.append(TokenRow(node, forest.token[node], 0, len(forest.trunk) + len(path), path))
        return rows

    def job(self, run: Run, rows: list[TokenRow], start: int, stop: int) -> ForwardJob:
        job = replace(self.target.job(run, rows, start, stop), session=self)
        of = job.segment
        seen = [max(1, position - len(path)) for position, path in zip(job.positions, of.paths, strict=True)]
        job.segment = replace(of, seen=seen)
        return job
