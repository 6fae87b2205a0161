"""Drafting with an exit of the target itself (EESD §3.1): its first N layers, then a trained layer, norm and head.

Drafting and verification share the first N layers: each is computed once for each token, when the token is first asked
for, and verification resumes above them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.depth import DepthController
from draftwood.draft.base import Drafter, Proposer
from draftwood.draft.suffix import EarlierAnswers
from draftwood.runtime.session import LOST, Answer, Run, Session
from draftwood.sampling import Distributions


@dataclass(slots=True)
class ExitSource:
    """Draft logits from an exit after the first `layers` layers of the target; a `Source` over two sessions.

    `target` runs layers [0, N) for the tokens that it has not seen, `exit` reads the hidden states that come out.
    """

    target: Session
    exit: Session
    layers: int
    _state: dict[int, Tensor] = field(init=False, default_factory=dict)  # node -> [D] after N layers
    _read: int = field(init=False, default=0)  # leading tokens of the trunk that the exit has read

    @property
    def context(self) -> int:
        return min(self.target.context, self.exit.context)

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] of the exit after each node: a run of the first layers, then one of the exit.

        At first, and after the request was put back, the exit takes what others with the same tokens left.
        """
        run = Run(
            self.exit,
            forest,
            nodes,
            given=self._state,
            hidden=(self.exit.model.n_layers,) if hidden else (),
            leans=True,
        )
        answer = LOST
        while answer is LOST:
            if not self.exit.begun:
                yield Run(self.exit, forest, nodes, upto=0)
                self._read = self.exit.reused
            yield from self.read(forest, nodes)
            if self.exit.begun:
                answer = yield run
        last = max(0, len(forest.trunk) - 1)  # beams may ask for the end of the trunk once more
        self._state = {
            node: state for node, state in self._state.items() if node > TRUNK or trunk_position(node) >= last
        }
        self._read = last
        return answer

    def read(self, forest: Forest, nodes: Sequence[int]) -> Generator[Run, Answer, None]:
        """Run the first layers over the trunk, `nodes` and what lies between, as far as that was not done before."""
        wanted = {node for node in nodes if node >= 0}
        for node in tuple(wanted):
            while (node := forest.parent[node]) != TRUNK and node not in wanted and node not in self._state:
                wanted.add(node)
        trunk = [trunk_node(position) for position in range(self._read, len(forest.trunk))]
        cells = [node for node in (*trunk, *sorted(wanted)) if node not in self._state]
        if cells:
            answer = yield Run(self.target, forest, cells, upto=self.layers, logits=False)
            self._state.update(zip(cells, answer.hidden[self.layers], strict=True))

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`. What joins the trunk waits there: the exit, which never saw the leaves, lags behind."""
        before = self._state
        self._state = {node: state for node, state in before.items() if node < TRUNK}
        first = len(forest.trunk) - len(trunk)
        self._state.update((trunk_node(first + place), before[node]) for place, node in enumerate(trunk))
        self._state.update((new, before[node]) for new, node in enumerate(kept) if node in before)  # none: it had ended
        self.exit.commit(trunk, kept, forest)


@dataclass(slots=True)
class ExitDrafter(Drafter):
    """Any drafter that drafts from an exit: what it leaves unread is read at the end.

    Verification would compute the first layers of the last tokens too, but then the exit could never read them.
    """

    drafter: Drafter
    source: ExitSource

    @property
    def needs(self) -> frozenset[str]:
        return self.drafter.needs

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        yield from self.drafter.draft(forest, depth, limit, propose)
        yield from self.source.read(forest, range(forest.fresh, len(forest)))

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.drafter.commit(trunk, kept, forest, target)

    def share(self, earlier: EarlierAnswers) -> None:
        self.drafter.share(earlier)

    def finish(self, forest: Forest) -> None:
        self.drafter.finish(forest)
