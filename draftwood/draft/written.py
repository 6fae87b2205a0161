"""Drafting as text: what a draft of another tokenizer writes, cut by the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.core.forest import Forest
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import Drafter, Drafting, Proposer
from draftwood.draft.suffix import EarlierAnswers, SuffixLookup
from draftwood.draft.translated import TranslatedSession
from draftwood.models.text.vocabulary_map import TAIL
from draftwood.runtime.session import Run
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import largest


@dataclass(slots=True)
class TextDrafter(Drafter):
    """A chain of point masses: the draft writes its most probable token again and again, which needs no shared tokens.

    The text depends on verified tokens alone, so every rule for drafts without chance is exact. The depth controller
    is asked before each of the draft's own tokens. A special token of the draft ends the text: it is drafted too, where
    both have it.
    """

    source: TranslatedSession
    lookup: SuffixLookup | None = None  # what it finds goes before what the draft writes, where that is worth more

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        if not depth.rests:
            (node,) = propose.certain(forest, forest.roots)
            if not self._copied(forest, depth, limit, propose, node):
                yield from self._written(forest, depth, limit, propose, node)
        propose.complete(forest)

    def _copied(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer, node: int) -> bool:
        """Append what lookup finds below a node; False where that is nothing, or worth less than the draft's text."""
        if self.lookup is None or not forest.grows(node):
            return False
        copies = self.lookup.continuation(forest, limit, forest.path(node))
        chances = [chance for _, chance in copies]
        count = depth.copies(chances) if copies else 0
        for layer, (token, _) in enumerate(copies[:count]):
            before = chances[layer - 1 : layer] if layer else ()
            if not depth.deeper(DraftState(layer, chances=before, ahead=chances[layer:count])):
                break
            children = propose.follow(forest, node, token)
            if not children or not forest.grows(children[0]):
                break
            (node,) = children
        return count > 0

    def _written(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer, node: int) -> Drafting:
        source, words = self.source, self.source.words
        at, state, count, text = source.at(forest, node), DraftState(0), 0, b""
        ends = [(0, at)]  # (bytes, node of the draft's forest) after each of its tokens
        special: list[int] = []
        hidden = (source.model.n_layers,) if "hidden" in depth.needs else ()
        while count < limit and forest.grows(node) and source.readable(at) and depth.deeper(state):
            answer = yield Run(source, source.own, [source.asked(at)], hidden=hidden)
            ((token,),) = largest(answer.logits, 1)
            spelled = words.draft.spelled(token)
            if not spelled:
                special = words.shared(token)
                break
            at, count, text = source.own.add(at, token), count + 1, text + spelled
            ends.append((len(text), at))
            state = DraftState(count)
            if depth.needs - LOAD:
                read = next(iter(answer.hidden.values()), None)
                state = DraftState(count, [], answer.logits, [(0, token)], read)
        whole, length = dict(ends), 0
        for token in words.cut_by_target(forest.tail(node, TAIL), text) + special:
            spelled = words.target.spelled(token)
            length += len(spelled)
            children = propose.follow(forest, node, token, copied=False) if forest.grows(node) else []
            if not children or forest.token[children[0]] != token:
                break
            (node,) = children
            if spelled and length in whole:
                source.place[node] = whole[length]

    def share(self, earlier: EarlierAnswers) -> None:
        if self.lookup is not None:
            self.lookup.share(earlier)

    def finish(self, forest: Forest) -> None:
        if self.lookup is not None:
            self.lookup.finish(forest)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.source.commit(trunk, kept, forest)
