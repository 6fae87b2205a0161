"""Drafting with an exit of the target itself (EESD §3.1): its first N layers, then a trained layer, norm and head.

Drafting and verification share the first N layers: each is computed once for each token, when the token is first asked
for, and verification resumes above them. What drafting did not ask for, as the last drafts and all of a round without
any, verification computes from the first layer on; the exit reads what came of it after layer N.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.draft.states import StateSource
from draftwood.runtime.session import Answer, Run


@dataclass(slots=True)
class ExitSource(StateSource):
    """Draft logits from an exit, `reader`, after the first N layers of the target, the only one of `reads`."""

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] of the exit after each node: a run of the first layers, then one of the exit."""
        return (yield from self.ask(forest, nodes, (self.reader.model.n_layers,) if hidden else ()))

    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        return {**self._trunk, **self._nodes}

    def lacks(self) -> int:
        """Rows through all layers that take as long as the missing ones through the first layers."""
        return -(-StateSource.lacks(self) * self.reads[0] // self.target.model.n_layers)

    def read(self, forest: Forest, nodes: Sequence[int]) -> Generator[Run, Answer, None]:
        """Run the first layers over `nodes` and what lies before, as far as that was not done yet."""
        paths = chain.from_iterable(forest.path(node) if node >= 0 else (node,) for node in nodes)
        wanted = sorted({*self.missing(len(forest.trunk)), *paths} - self._trunk.keys() - self._nodes.keys())
        if wanted:
            (layer,) = self.reads
            answer = yield Run(self.target, forest, wanted, upto=layer, logits=False)
            for node, state in zip(wanted, answer.hidden[layer], strict=True):
                self._keep(node, state)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`. What joins the trunk waits there: the exit, which never saw the leaves, lags behind."""
        self.reader.commit(trunk, kept, forest)
