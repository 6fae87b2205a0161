"""A round as a tree: every draft with its fate, and with p, q and its chance to be accepted where they were recorded.

Pure functions of what a `Round` holds and what a recorder saw; the text, the page and the picture are drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rich.style import Style

from draftwood.core.forest import FINISHED, TRUNK
from draftwood.core.records import BeamLayer, Outcome, Round
from draftwood.explain.terminal import DIM, KIND_STYLES

if TYPE_CHECKING:
    from draftwood.explain.judging import RoundJudgement

Sequences = list[tuple[int, ...]]  # hypotheses by their tokens after the trunk
Chances = tuple[float | None, float | None, float | None]  # p, q, acceptance; None: not recorded


class Fate(NamedTuple):
    mark: str
    style: Style
    meaning: str


FATES = {
    "accepted": Fate("+", KIND_STYLES["accepted"], "a draft that the target accepted"),
    "rejected": Fate("-", Style.parse("red"), "a draft that the target rejected"),
    "outrun": Fate("~", DIM, "accepted, but another path of accepted drafts was chosen"),
    "corrected": Fate("*", Style.parse("magenta"), "chosen by the target after rejections"),
    "forced": Fate("^", KIND_STYLES["forced"], "the only token that the grammar allowed"),
    "bonus": Fate("!", KIND_STYLES["bonus"], "chosen by the target after all drafts were accepted"),
    "plain": Fate("=", KIND_STYLES["plain"], "chosen by the target without drafts"),
    "stays": Fate("=", KIND_STYLES["plain"], "a beam that has ended and is kept"),
    "discarded": Fate("~", DIM, "not judged: enough were accepted before it"),
    "unreached": Fate(".", DIM, "not judged: the token before it was not accepted"),
    "not reached": Fate(".", DIM, "not judged: the round ended above it"),
    "cut off": Fate(".", DIM, "after the end of the text"),
}
UNREACHED = {"unreached", "not reached"}


@dataclass(slots=True)
class Draw:
    """One or several draws with the same fate and the same chances."""

    fate: str
    chances: Chances = (None, None, None)
    times: int = 1


@dataclass(slots=True)
class TreeNode:
    """A token of the tree: drafted in this round or before, or chosen by the target."""

    token: int
    draws: list[Draw] = field(default_factory=list)
    children: list[TreeNode] = field(default_factory=list)
    drafted: bool = False  # in this round
    goes_on: bool = False  # the next round begins here, or the answer ends

    def add(self, fate: str, p: float | None = None, q: float | None = None, chance: float | None = None) -> None:
        """One more draw; draws that look the same are counted as one."""
        new = Draw(fate, (p, q, chance))
        for draw in self.draws:
            if draw.fate == fate and numbers(draw.chances) == numbers(new.chances):
                draw.times += 1
                return
        self.draws.append(new)

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def unreached(self) -> bool:
        """Whether nothing here was looked at."""
        return all(draw.fate in UNREACHED for node in self.walk() for draw in node.draws)

    @property
    def size(self) -> int:
        """Nodes of this round, this one included."""
        return sum(bool(node.draws) for node in self.walk())


@dataclass(slots=True)
class RoundTree:
    """A round's forest: one root per hypothesis that it began with."""

    round_: Round
    roots: list[TreeNode] = field(default_factory=list)
    nodes: dict[int, TreeNode] = field(default_factory=dict)  # by place in the round's forest
    outcomes: dict[Outcome, TreeNode] = field(default_factory=dict)  # by (place of the parent, token or FINISHED)

    @property
    def chosen(self) -> str:
        """Fate of what the target chose itself where the round ended."""
        if not self.round_.drafted and not self.round_.draws:
            return "plain"
        if self.round_.layers:
            return "corrected" if self.round_.layers[-1].judged else "bonus"
        return "corrected" if self.round_.forest_path[-1] in self.round_.forest_parent else "bonus"

    def outcome(self, outcome: Outcome) -> TreeNode:
        """The node of an outcome, made where it was not drafted."""
        if outcome not in self.outcomes:
            self.outcomes[outcome] = TreeNode(outcome[1])
            self.nodes[outcome[0]].children.append(self.outcomes[outcome])
        return self.outcomes[outcome]


def trees_of(
    rounds: Sequence[Round], prompt: Sequence[int], judgements: Sequence[RoundJudgement] = ()
) -> list[RoundTree]:
    """The tree of every round after the prompt, with the numbers that a recorder noted for it, if there was one."""
    grower = Grower([(prompt[-1],)])
    return [grower.tree(round_, judgement) for round_, judgement in zip_longest(rounds, judgements)]


@dataclass(slots=True)
class Grower:
    """Makes the trees of a request's rounds, one after the other."""

    hypotheses: Sequences  # that the next round begins with

    def tree(self, round_: Round, judgement: RoundJudgement | None = None) -> RoundTree:
        """The tree of the next round, with the numbers that a recorder noted for it."""
        tree = tree_of(round_, self.hypotheses)
        if judgement is not None:
            _annotate(tree, judgement)
        self.hypotheses = hypotheses_after(round_)
        return tree


def hypotheses_after(round_: Round) -> Sequences:
    """The hypotheses that a round ends with, after its trunk has advanced."""
    paths = (round_.path(node, token) for token, node in zip(round_.roots, round_.root_parents, strict=True))
    return [tuple(path[len(round_.forest_path) :]) for path in paths]


def tree_of(round_: Round, hypotheses: Sequences) -> RoundTree:
    """The tree of a round that began with these hypotheses, every draft with its fate."""
    tree = _unjudged(round_, hypotheses)
    (_judge_layers if round_.layers else _judge_path)(tree)
    for outcome in zip(round_.root_parents, round_.roots, strict=True):
        node = tree.outcome(outcome)
        if not node.draws:  # a finished beam of beam search
            node.add("stays" if outcome[1] == FINISHED else tree.chosen)
        node.goes_on = all(draw.fate != "cut off" for draw in node.draws)
    for node in reversed(tree.outcomes.values()):  # children before parents, which may have been drafted a round ago
        node.drafted |= any(child.drafted for child in node.children)
        if node.drafted and not node.draws:
            node.add("not reached" if round_.layers else "unreached")
    return tree


def _unjudged(round_: Round, hypotheses: Sequences) -> RoundTree:
    tree = RoundTree(round_)
    paths: list[tuple[int, ...]] = []
    first = len(round_.forest_token) - round_.drafted - round_.forced
    for place, (token, parent) in enumerate(zip(round_.forest_token, round_.forest_parent, strict=True)):
        paths.append((*(paths[parent] if parent != TRUNK else ()), token))
        if paths[-1] in hypotheses:
            tree.nodes[place] = TreeNode(token)
        elif parent in tree.nodes:
            tree.nodes[place] = tree.outcome((parent, token))
            tree.nodes[place].drafted = place >= first
    places = {path: place for place, path in enumerate(paths)}
    tree.roots = [tree.nodes[places[path]] for path in hypotheses]
    return tree


def _judge_layers(tree: RoundTree) -> None:
    for layer in tree.round_.layers:
        for one in layer.judged:
            tree.outcome(one.outcome).add(one.fate, *((one.p, one.q, one.chance) if one.q else ()))
        for beam in completions(layer):
            tree.outcome(beam).add(tree.chosen)


def completions(layer: BeamLayer) -> list[Outcome]:
    """The beams of a layer that the target chose itself."""
    if any(one.q for one in layer.judged):
        return layer.beams[layer.accepted :]
    drafts = {one.outcome for one in layer.judged if one.fate == "accepted"}  # beam search orders them by likelihood
    return [beam for beam in layer.beams if beam not in drafts]


def _judge_path(tree: RoundTree) -> None:
    """Fates of a chain or tree. Of siblings those before the accepted one were rejected, those after it not needed."""
    round_ = tree.round_
    path, emitted = round_.forest_path, len(round_.tokens)
    following = dict(zip(path, [*path[1:], len(round_.forest_token)], strict=True))
    chances = [math.exp(value) for value in round_.warped_logprobs]
    for place, node in enumerate(path[1:]):
        kept = "forced" if round_.kinds[place : place + 1] == ["forced"] else "accepted"
        tree.nodes[node].add(*((kept, chances[place]) if place < emitted else ("cut off",)))
    for node, parent in enumerate(round_.forest_parent):
        if parent in following and node not in following:
            tree.nodes[node].add("rejected" if node < following[parent] else "discarded")
    last = tree.outcome((round_.root_parents[0], round_.roots[0]))
    last.add(*((tree.chosen, chances[len(path) - 1]) if len(path) <= emitted else ("cut off",)))


def _annotate(tree: RoundTree, judgement: RoundJudgement) -> None:
    """Give the drafts of a round the numbers that were recorded for them."""
    seen: set[Outcome] = set()
    for one in judgement.drafts:
        node = tree.outcome(one.outcome)
        if any(draw.fate in ("cut off", "forced") for draw in node.draws):
            continue
        if one.outcome not in seen:
            node.draws.clear()
            seen.add(one.outcome)
        chance = None if math.isnan(one.chance) else one.chance
        node.add(one.fate, *(() if one.fate == "discarded" else (one.p, one.q, chance)))
    if judgement.greedy and judgement.chosen is not None:
        outcome, p = judgement.chosen
        for draw in tree.outcome(outcome).draws:
            if draw.chances[0] is not None:
                draw.chances = (p, None, None)


def numbers(chances: Chances) -> list[str]:
    """p, q and the acceptance probability as they are shown."""
    p, q, chance = chances
    return [f"{value:.3f}" for value in (p, q) if value is not None] + ([] if chance is None else [f"{chance:.0%}"])
