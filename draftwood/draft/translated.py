"""Drafting with a model of another tokenizer: the request's text in the draft's tokens, its logits in the target's.

The draft has a forest of its own, with the same text. A node of the target's forest stands there for one node, where
both have its token, for a chain of several, or for none. What was drafted is carried over as it is; the prompt alone is
cut anew, as the draft's tokenizer cuts it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.models.text.vocabulary_map import VocabularyMap
from draftwood.runtime.session import Answer, Run, Session


@dataclass(slots=True, eq=False)
class TranslatedSession(Session):
    """A session of a draft model in its own tokens that answers in the target's: a `Source` of drafts.

    q is the draft's distribution over the tokens that both have, renormalised; drafts are drawn from just that, so
    verification needs nothing else to be exact.
    """

    words: VocabularyMap = field(kw_only=True)
    target: Session = field(kw_only=True)
    text: Forest | None = field(init=False, default=None)  # in the draft's tokens; None: nothing was asked yet
    place: dict[int, int] = field(init=False, default_factory=dict)  # target's node -> last node of its text, or TRUNK
    _extra: int = field(init=False, default=0)  # tokens that the trunk is longer by than in the target's tokens
    _ids: tuple[Tensor, Tensor] | None = field(init=False, default=None)

    @property
    def context(self) -> int:
        """Positions, in the target's tokens, that it has room for, as far as the text is known."""
        return self.model.context - self._extra

    def bytes(self, slots: int) -> int:
        """Bytes that so many slots of the target take here."""
        return Session.bytes(self, slots + self._extra)

    def at(self, forest: Forest, node: int) -> int:
        """The node of the draft's forest that a node of the target's ends with; new ones are added."""
        if self.text is None:
            self._begun(forest)
        if node <= TRUNK:
            return TRUNK
        if node not in self.place:
            at = self.at(forest, forest.parent[node])
            for token in self.words.pieces(forest.token[node]):
                at = self.own.add(at, token)
            self.place[node] = at
        return self.place[node]

    @property
    def own(self) -> Forest:
        """The text in the draft's tokens."""
        assert self.text is not None
        return self.text

    def _begun(self, forest: Forest) -> None:
        trunk = self.words.text(forest.trunk)
        self.text, self.place = Forest(trunk), {}
        self._lengthened(forest)

    def _lengthened(self, forest: Forest) -> None:
        self._extra = max(0, len(self.own.trunk) - len(forest.trunk))
        self.own.longest = forest.longest + self._extra

    def readable(self, node: int) -> bool:
        """Whether the model can be asked about a node of its forest: there is text, and it is not too long."""
        return self.own.position(node) < self.model.context if node != TRUNK else bool(self.own.trunk)

    def asked(self, node: int) -> int:
        """The number by which a run names a node of the draft's forest: TRUNK is the trunk's last token."""
        return trunk_node(len(self.own.trunk) - 1) if node == TRUNK else node

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V of the target]; all the same where the draft has no room left."""
        places = [self.at(forest, node) for node in nodes]
        known = list(dict.fromkeys(place for place in places if self.readable(place)))
        layers = (self.model.n_layers,) if hidden else ()
        answer = Answer(torch.zeros(0, self.target.model.vocab_size, device=self.target.model.device))
        if known:
            answer = yield Run(self, self.own, [self.asked(place) for place in known], hidden=layers)
        rows = torch.tensor([known.index(place) if place in known else len(known) for place in places])
        states = {layer: _with_zeros(states)[rows] for layer, states in answer.hidden.items()}
        return Answer(_with_zeros(self._translated(answer.logits) if known else answer.logits)[rows], states)

    def _translated(self, logits: Tensor) -> Tensor:
        """Logits [n, V of the draft] as [n, V of the target]."""
        if self._ids is None:
            pair = self.words.target_ids, self.words.draft_ids
            ours, theirs = (torch.tensor(ids, device=logits.device) for ids in pair)
            self._ids = ours, theirs
        ours, theirs = self._ids
        absent = logits.new_full((len(logits), self.target.model.vocab_size), ABSENT_LOGIT)
        return absent.index_copy_(1, ours, logits[:, theirs])

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance` to the next `forest` of the target."""
        if self.text is None:
            return
        old, place, self.place = self.text, self.place, {}
        seen = max((number for number, node in enumerate(trunk) if node in place), default=-1)
        joined = [] if seen < 0 or place[trunk[seen]] == TRUNK else old.path(place[trunk[seen]])
        tokens = old.trunk + [old.token[node] for node in joined]
        for token in forest.trunk[len(forest.trunk) - len(trunk) + seen + 1 :]:
            tokens += self.words.pieces(token)
        self.text = Forest(tokens)
        nodes: list[int] = []  # of the old forest, by their numbers in the new one
        for number, node in enumerate(kept):
            if node in place:
                self._carried(number, place[node], forest, old, nodes)
        Session.commit(self, joined, nodes, self.text)
        self._lengthened(forest)

    def _carried(self, number: int, end: int, forest: Forest, old: Forest, nodes: list[int]) -> None:
        """Carry the nodes over that node `number` of the next forest stands for, up to `end` in the `old` one."""
        at = self.at(forest, forest.parent[number])
        chain: list[int] = []
        for _ in self.words.pieces(forest.token[number]):
            chain.insert(0, end)
            end = old.parent[end]
        for node in chain:
            at = self.own.add(at, old.token[node])
            nodes += [node] * (at == len(nodes))
        self.place[number] = at


def _with_zeros(rows: Tensor) -> Tensor:
    """Rows [n, X] and one of zeros."""
    return torch.nn.functional.pad(rows, (0, 0, 0, 1))
