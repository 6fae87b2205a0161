"""How an answer came about, round by round: each round's forest as an indented tree, every draft with its fate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.style import Style

from draftwood.core.forest import FINISHED
from draftwood.core.records import BeamLayer
from draftwood.explain.terminal import SEPARATOR, paint, percent, shortened
from draftwood.explain.tree import FATES, RoundTree, TreeNode, completions, numbers

if TYPE_CHECKING:
    from draftwood.models.text.tokenizer import Tokenizer

TextOf = Callable[[Sequence[int]], str]  # the text of tokens
ROOT_STYLE = Style.parse("bold")
TREE_WIDTH, FATE_WIDTH, NUMBER_WIDTH = 46, 24, 7  # TREE_WIDTH: of the tree, at most
WHOLE_FORESTS = 24  # in rounds with more drafts, those that were not judged are counted, not shown
MIN_WIDTH = 76  # legend and numbers need so much


def spelling(tokenizer: Tokenizer | None) -> TextOf:
    """The text of tokens: as behind a letter, since some tokenizers drop a space at the start of a text."""
    if tokenizer is None:
        return lambda tokens: "".join(f"<{token}>" for token in tokens)

    def words(tokens: Sequence[int]) -> str:
        if len(tokens) == 1:
            known = tokenizer.known(tokens[0])
            return f"<{tokens[0]}>" if known.part is not None or not known.text else known.text
        stream = tokenizer.stream(tokenizer.letter, special=True)
        return "".join([*map(stream.step, tokens), stream.rest()])

    return words


def lines(
    trees: Sequence[RoundTree],
    prompt: Sequence[int],
    words: TextOf,
    ends: frozenset[int] = frozenset(),
    width: int = 80,
    colour: bool = False,
) -> list[str]:
    """Lines of at most `width` columns (76 or more): a legend, then every round.

    `prompt` are the tokens before the first round; `ends` are tokens that end a sequence.
    """
    drawing = Drawing(words, ends, max(width, MIN_WIDTH), colour)
    rows = drawing.legend(trees)
    before = list(prompt)
    for number, tree in enumerate(trees, 1):
        rows += ["", *drawing.round(tree, number, before)]
        before += tree.round_.tokens
    return rows


@dataclass(slots=True)
class Drawing:
    """How trees are written down."""

    words: TextOf
    ends: frozenset[int]
    width: int
    colour: bool
    columns: int = 0  # of numbers

    def legend(self, trees: Sequence[RoundTree]) -> list[str]:
        """Lines that explain the marks of these rounds; also decides how many columns of numbers there are."""
        draws = [draw for tree in trees for root in tree.roots for node in root.walk() for draw in node.draws]
        self.columns = max((len(numbers(draw.chances)) for draw in draws), default=0)
        seen = {draw.fate for draw in draws}
        lines = [
            "  " + paint(f"{fate.mark} {name:<12}", fate.style, self.colour) + fate.meaning
            for name, fate in FATES.items()
            if name in seen
        ]
        lines.append(f"  > {'':<12}where the next round begins, or the answer ends")
        if any(draw.times > 1 for draw in draws):
            lines.append(f"  {'x2':<14}drawn twice; 'again': once more, with another fate")
        if any(map(_hides, trees)):
            lines.append(f"  {'(+2)':<14}two drafts below it, not judged")
        if self.columns:
            lines.append(
                f"  {'p':<14}target's probability{'; after rejections, in the residual' * (self.columns == 3)}"
            )
        if self.columns > 1:
            accept = "; P(accept) = min(1, a p/q)" if self.columns == 3 else ""
            lines.append(f"  {'q, accept' if accept else 'q':<14}draft's probability{accept}")
            if accept:
                lines.append(f"  {'a':<14}acceptance of the path before it (traversal), 1 (rejection)")
        if any(layer.judged for tree in trees for layer in tree.round_.layers):
            lines.append(f"  {'layer':<14}width asked of its draws (chance to get it) = distinct beams")
        return lines

    def round(self, tree: RoundTree, number: int, before: Sequence[int]) -> list[str]:
        """A round: what came out, the tree, and for beams a line per layer."""
        round_ = tree.round_
        several = len(tree.roots) > 1
        drafts = f"{round_.drafted} draft{'s' * (round_.drafted != 1)}" if round_.drafted else "no drafts"
        drafts += f" + {round_.forced} forced" * bool(round_.forced)
        begin = f"Round {number}{SEPARATOR}{drafts}{SEPARATOR}"
        out = "out: " + self._quoted(round_.tokens) if round_.tokens else "nothing yet: the beams differ"
        lines = [paint(begin, ROOT_STYLE, self.colour) + shortened(out, self.width - cell_len(begin))]
        left = self._left
        after = "  after " + shortened(self._quoted(before[-40:]), left - 10, from_left=True)
        heads = ("p", "q", "accept")[: self.columns]
        lines.append((_pad(after, left + FATE_WIDTH) + "".join(head.rjust(NUMBER_WIDTH) for head in heads)).rstrip())
        for place, root in enumerate(tree.roots, 1):
            if several:
                lines.append(self._root(tree, root, place))
            for node in root.children:
                lines += self._node(node, several, _hides(tree))
        for place, layer in enumerate(round_.layers, 1):
            lines += self._layer(tree, layer, place)
        return lines

    @property
    def _left(self) -> int:
        return min(TREE_WIDTH, self.width - FATE_WIDTH - NUMBER_WIDTH * self.columns)

    def _root(self, tree: RoundTree, root: TreeNode, place: int) -> str:
        """A hypothesis that the round began with, by what it has beyond the others' common text."""
        node = next(place for place, one in tree.nodes.items() if one is root)
        tokens = tree.round_.path(node)
        label = f"  beam {place}  "
        over = (
            " (has ended)" if tokens[-1] in self.ends or any(child.token == FINISHED for child in root.children) else ""
        )
        room = self.width - len(label) - len(over)
        return paint(label + shortened(self._quoted(tokens), room, from_left=True) + over, ROOT_STYLE, self.colour)

    def _node(self, node: TreeNode, level: int, hides: bool) -> Iterator[str]:
        """The lines of a node and what is below it."""
        hidden = sum(child.size for child in node.children if child.unreached) if hides else 0
        deepest = (self._left - 17) // 2  # so much is left for mark, token and number
        indent = "  " * min(level, deepest) + (f"{level + 1}: " if level >= deepest else "")
        for i, draw in enumerate(node.draws):
            fate = FATES[draw.fate]
            label = "again" if i else "(has ended)" if node.token == FINISHED else self._quoted([node.token])
            times = f" x{draw.times}" if draw.times > 1 else ""
            margin = ("> " if node.goes_on and not i else "  ") + indent + fate.mark + " "
            label = shortened(label, self._left - len(margin) - len(times) - 1) + times
            words = draw.fate + ("" if i else ", ends" * (node.token in self.ends) + f" (+{hidden})" * bool(hidden))
            text = _pad(_pad(margin + label, self._left) + words, self._left + FATE_WIDTH)
            columns = "".join(number.rjust(NUMBER_WIDTH) for number in numbers(draw.chances))
            yield (paint(text.rstrip(), fate.style, self.colour) + text[len(text.rstrip()) :] + columns).rstrip()
        for child in node.children:
            if not (hidden and child.unreached):
                yield from self._node(child, level + bool(node.draws), hides)

    def _layer(self, tree: RoundTree, layer: BeamLayer, place: int) -> list[str]:
        """A layer of beams in a sentence."""
        counts = [(sum(one.fate == name for one in layer.judged), name) for name in FATES]
        counts.append((len(completions(layer)), tree.chosen))
        draws = len(layer.judged)
        of_draws = f" of {draws} draw{'s' * (draws != 1)}" if draws else ""
        drawn = any(one.q for any_layer in tree.round_.layers for one in any_layer.judged)
        chance = f" ({percent(layer.chance)})" if draws and drawn else ""
        distinct = len(layer.distinct)
        merged = f" = {distinct} beam{'s' * (distinct != 1)}" if distinct < len(layer.beams) else ""
        parts = [f"{count} {name}" for count, name in counts if count]
        return _wrapped(
            f"  layer {place}: width {layer.width}{of_draws}{chance}: ", [*parts[:-1], parts[-1] + merged], self.width
        )

    def _quoted(self, tokens: Sequence[int]) -> str:
        """Text as Python writes it: line ends, tabs and what could steer a terminal are escaped."""
        return repr(self.words(tokens))


def _hides(tree: RoundTree) -> bool:
    """Whether drafts that were not judged are only counted."""
    return tree.round_.drafted > WHOLE_FORESTS


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _wrapped(head: str, parts: Sequence[str], width: int) -> list[str]:
    """`head` and parts with commas between; a line ends behind a comma, the next one is indented."""
    lines = [head]
    for i, part in enumerate(parts):
        text = part + ", " * (i < len(parts) - 1)
        if len(lines[-1]) + len(text.rstrip()) > width:
            lines.append(" " * 11)
        lines[-1] += text
    return [line.rstrip() for line in lines]
