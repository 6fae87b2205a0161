"""How an answer came about, round by round: each round's forest as an indented tree, every draft with its fate.

Pure functions from rounds to lines of text. Knows what a `Round` records; refuses to know engines, flags and streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.style import Style

from draftwood.core.forest import FINISHED, TRUNK
from draftwood.explain.terminal import DIM, KIND_STYLES, SEPARATOR, paint, percent, shortened
from draftwood.models.tokenizer import INCOMPLETE
from draftwood.results import Layer, Outcome, Round

if TYPE_CHECKING:
    from draftwood.models.tokenizer import Tokenizer

Words = Callable[[Sequence[int]], str]  # the text of tokens
Sequences = list[tuple[int, ...]]  # hypotheses by their tokens after the trunk


class Fate(NamedTuple):
    mark: str
    style: Style
    meaning: str


FATES = {
    "accepted": Fate("+", KIND_STYLES["accepted"], "a draft that was kept"),
    "rejected": Fate("-", Style.parse("red"), "a draft that was thrown away"),
    "corrected": Fate("*", Style.parse("magenta"), "chosen by the target, after rejections"),
    "bonus": Fate("!", KIND_STYLES["bonus"], "chosen by the target, after all drafts were accepted"),
    "plain": Fate("=", KIND_STYLES["plain"], "chosen by the target, without drafts"),
    "stays": Fate("=", KIND_STYLES["plain"], "a beam that has ended and is kept"),
    "discarded": Fate("~", DIM, "not looked at: enough were accepted before it"),
    "unreached": Fate(".", DIM, "not looked at: what it continues was not accepted"),
    "not reached": Fate(".", DIM, "not looked at: the round ended above it"),
    "cut off": Fate(".", DIM, "behind the end of the text"),
}
LOST = {"unreached", "not reached"}
ROOT_STYLE = Style.parse("bold")
LEFT, FATE_WIDTH, NUMBER_WIDTH = 46, 24, 7  # LEFT: of the tree, at most
WHOLE_FORESTS = 24  # in rounds with more drafts, those that were not looked at are counted, not shown
NARROWEST = 76  # legend and numbers need so much


@dataclass(slots=True)
class Draw:
    """One or several draws with the same fate and the same chances (p, q, acceptance; None: not recorded)."""

    fate: str
    chances: tuple[float | None, float | None, float | None] = (None, None, None)
    times: int = 1


@dataclass(slots=True)
class Twig:
    """A node of the drawn tree."""

    token: int
    draws: list[Draw] = field(default_factory=list)
    below: list[Twig] = field(default_factory=list)
    drafted: bool = False  # in this round
    goes_on: bool = False

    def note(self, fate: str, p: float | None = None, q: float | None = None, chance: float | None = None) -> None:
        """One more draw; draws that look the same are one line."""
        new = Draw(fate, (p, q, chance))
        for draw in self.draws:
            if draw.fate == new.fate and _shown(draw.chances) == _shown(new.chances):
                draw.times += 1
                return
        self.draws.append(new)

    @property
    def lost(self) -> bool:
        """Whether nothing here was looked at."""
        return all(draw.fate in LOST for draw in self.draws) and all(twig.lost for twig in self.below)

    @property
    def size(self) -> int:
        return bool(self.draws) + sum(twig.size for twig in self.below)


@dataclass(slots=True)
class Grove:
    """A round's forest: one twig per hypothesis that it began with."""

    round_: Round
    roots: list[Twig] = field(default_factory=list)
    at: dict[int, Twig] = field(default_factory=dict)  # node -> its twig
    below: dict[Outcome, Twig] = field(default_factory=dict)  # (node, token or FINISHED) -> its twig

    @property
    def rest(self) -> str:
        """Fate of what the target chose itself where the round ended."""
        if not self.round_.drafted and not self.round_.draws:
            return "plain"
        if self.round_.layers:
            return "corrected" if self.round_.layers[-1].judged else "bonus"
        last = self.round_.forest_path[-1]
        return "corrected" if last in self.round_.forest_parent else "bonus"

    @property
    def hides(self) -> bool:
        """Whether drafts that were not looked at are only counted."""
        return self.round_.drafted > WHOLE_FORESTS

    def twig(self, outcome: Outcome) -> Twig:
        """The twig of an outcome, made where it was not drafted."""
        if outcome not in self.below:
            self.below[outcome] = Twig(outcome[1])
            self.at[outcome[0]].below.append(self.below[outcome])
        return self.below[outcome]


def planted(round_: Round, hypotheses: Sequences) -> Grove:
    """The forest of a round that began with these hypotheses, without fates."""
    grove = Grove(round_)
    tokens, parents = round_.forest_token, round_.forest_parent
    paths: list[tuple[int, ...]] = []
    begins = set(hypotheses)
    first = len(tokens) - round_.drafted
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        path = (*(paths[parent] if parent != TRUNK else ()), token)
        paths.append(path)
        if path in begins:
            grove.at[node] = Twig(token)
        elif parent in grove.at:
            twig = grove.at[node] = grove.below[parent, token] = Twig(token, drafted=node >= first)
            grove.at[parent].below.append(twig)
    by_path = {path: node for node, path in enumerate(paths)}
    grove.roots = [grove.at[by_path[path]] for path in hypotheses]
    return grove


def grown(round_: Round) -> Sequences:
    """The hypotheses that a round ends with, after its trunk has grown."""
    found = []
    for token, node in zip(round_.roots, round_.root_parents, strict=True):
        path = [] if token == FINISHED else [token]
        while node != TRUNK:
            path.append(round_.forest_token[node])
            node = round_.forest_parent[node]
        found.append(tuple(reversed(path))[len(round_.forest_path) :])
    return found


def judged(round_: Round, hypotheses: Sequences) -> Grove:
    """The forest of a round, every draft with its fate."""
    grove = planted(round_, hypotheses)
    if round_.layers:
        _judge_layers(grove)
    else:
        _judge_path(grove)
    for outcome in zip(round_.root_parents, round_.roots, strict=True):
        twig = grove.twig(outcome)
        if not twig.draws:  # a finished beam of beam search
            twig.note("stays" if outcome[1] == FINISHED else grove.rest)
        twig.goes_on = all(draw.fate != "cut off" for draw in twig.draws)
    for twig in reversed(grove.below.values()):  # children before parents, which may have been drafted a round ago
        twig.drafted |= any(below.drafted for below in twig.below)
        if twig.drafted and not twig.draws:
            twig.note("not reached" if round_.layers else "unreached")
    return grove


def _judge_layers(grove: Grove) -> None:
    for layer in grove.round_.layers:
        for one in layer.judged:
            twig = grove.twig(one.outcome)
            twig.note(one.fate, *((one.p, one.q, one.chance) if one.q else ()))
        for beam in completions(layer):
            grove.twig(beam).note(grove.rest)


def completions(layer: Layer) -> list[Outcome]:
    """The beams of a layer that the target chose itself."""
    if any(one.q for one in layer.judged):
        return layer.beams[layer.accepted :]
    drafts = {one.outcome for one in layer.judged if one.fate == "accepted"}  # beam search orders them by likelihood
    return [beam for beam in layer.beams if beam not in drafts]


def _judge_path(grove: Grove) -> None:
    """Fates of a chain or tree. Of siblings those before the accepted one were rejected, those after it not needed."""
    round_ = grove.round_
    path, said = round_.forest_path, len(round_.tokens)
    following = dict(zip(path, [*path[1:], len(round_.forest_token)], strict=True))
    chances = [math.exp(value) for value in round_.warped_logprobs]
    for place, node in enumerate(path[1:]):
        grove.at[node].note(*(("accepted", chances[place]) if place < said else ("cut off",)))
    for node, parent in enumerate(round_.forest_parent):
        if parent in following and node not in following:
            grove.at[node].note("rejected" if node < following[parent] else "discarded")
    chosen = grove.twig((round_.root_parents[0], round_.roots[0]))
    if len(path) <= said:
        chosen.note(grove.rest, chances[len(path) - 1])
    else:
        chosen.note("cut off")


def spelling(tokenizer: Tokenizer) -> Words:
    """The text of tokens: as behind a letter, since some tokenizers drop a space at the start of a text."""
    letter = tokenizer.encode("a", add_special=False)
    start = len(tokenizer.decode(letter))

    def words(tokens: Sequence[int]) -> str:
        text = tokenizer.decode([*letter, *tokens], skip_special=False)[start:]
        return f"<{tokens[0]}>" if len(tokens) == 1 and (not text or INCOMPLETE in text) else text

    return words


def explain(
    rounds: Sequence[Round],
    prompt: Sequence[int],
    words: Words,
    ends: frozenset[int] = frozenset(),
    width: int = 80,
    colour: bool = False,
) -> list[str]:
    """Lines of at most `width` columns (76 or more): a legend, then every round.

    `prompt` are the tokens before the first round; `ends` are tokens that end a sequence.
    """
    return drawn(groves_of(rounds, prompt), prompt, words, ends, width, colour)


def groves_of(rounds: Sequence[Round], prompt: Sequence[int]) -> list[Grove]:
    """The forest of every round, every draft with its fate."""
    groves: list[Grove] = []
    hypotheses: Sequences = [(prompt[-1],)]
    for round_ in rounds:
        groves.append(judged(round_, hypotheses))
        hypotheses = grown(round_)
    return groves


def drawn(
    groves: Sequence[Grove], prompt: Sequence[int], words: Words, ends: frozenset[int], width: int, colour: bool
) -> list[str]:
    """`explain`, of forests that are there."""
    drawing = Drawing(words, ends, max(width, NARROWEST), colour)
    lines = drawing.legend(groves)
    before = list(prompt)
    for number, grove in enumerate(groves, 1):
        lines += ["", *drawing.round(grove, number, before)]
        before += grove.round_.tokens
    return lines


@dataclass(slots=True)
class Drawing:
    """How groves are written down."""

    words: Words
    ends: frozenset[int]
    width: int
    colour: bool
    columns: int = 0  # of numbers

    def legend(self, groves: Sequence[Grove]) -> list[str]:
        """What the marks mean that these rounds need; decides on the columns of numbers."""
        draws = [draw for grove in groves for twig in _all(grove.roots) for draw in twig.draws]
        self.columns = max(
            (3 if draw.chances[2] is not None else bool(_shown(draw.chances)) for draw in draws), default=0
        )
        seen = {draw.fate for draw in draws}
        lines = [
            "  " + paint(f"{fate.mark} {name:<12}", fate.style, self.colour) + fate.meaning
            for name, fate in FATES.items()
            if name in seen
        ]
        lines.append(f"  > {'':<12}here the next round begins, or the answer ends")
        if any(draw.times > 1 for draw in draws):
            lines.append(f"  {'x2':<14}drawn twice; 'again': once more, with another fate")
        if any(grove.hides for grove in groves):
            lines.append(f"  {'(+2)':<14}two drafts that continue it, not looked at")
        if self.columns == 1:
            lines.append(f"  {'p':<14}probability under the target")
        elif self.columns:
            lines.append(f"  {'p':<14}target's probability; after rejections, of what is left")
            lines.append(f"  {'q, accept':<14}draft's probability; chance to be accepted, min(1, p/q)")
        if any(layer.judged for grove in groves for layer in grove.round_.layers):
            lines.append(f"  {'layer':<14}width asked of its draws (chance to get it) = distinct beams")
        return lines

    def round(self, grove: Grove, number: int, before: Sequence[int]) -> list[str]:
        """A round: what came out, the tree, and for beams a line per layer."""
        round_ = grove.round_
        several = len(grove.roots) > 1
        drafts = f"{round_.drafted} draft{'s' * (round_.drafted != 1)}" if round_.drafted else "no drafts"
        begin = f"Round {number}{SEPARATOR}{drafts}{SEPARATOR}"
        out = "out: " + self._quoted(round_.tokens) if round_.tokens else "nothing yet: the beams differ"
        lines = [paint(begin, ROOT_STYLE, self.colour) + shortened(out, self.width - cell_len(begin))]
        left = self._left
        after = "  after " + shortened(self._quoted(before[-40:]), left - 10, from_left=True)
        heads = ("p", "q", "accept")[: self.columns]
        lines.append((_pad(after, left + FATE_WIDTH) + "".join(head.rjust(NUMBER_WIDTH) for head in heads)).rstrip())
        for place, root in enumerate(grove.roots, 1):
            if several:
                lines.append(self._root(grove, root, place))
            for twig in root.below:
                lines += self._twig(twig, several, grove.hides)
        for place, layer in enumerate(round_.layers, 1):
            lines += self._layer(grove, layer, place)
        return lines

    @property
    def _left(self) -> int:
        return min(LEFT, self.width - FATE_WIDTH - NUMBER_WIDTH * self.columns)

    def _root(self, grove: Grove, root: Twig, place: int) -> str:
        """A hypothesis that the round began with, by what it has beyond the others' common text."""
        node = next(node for node, twig in grove.at.items() if twig is root)
        tokens: list[int] = []
        while node != TRUNK:
            tokens.insert(0, grove.round_.forest_token[node])
            node = grove.round_.forest_parent[node]
        label = f"  beam {place}  "
        over = " (has ended)" if tokens[-1] in self.ends or any(twig.token == FINISHED for twig in root.below) else ""
        room = self.width - len(label) - len(over)
        return paint(label + shortened(self._quoted(tokens), room, from_left=True) + over, ROOT_STYLE, self.colour)

    def _twig(self, twig: Twig, level: int, hides: bool) -> Iterator[str]:
        """The lines of a node and what is below it."""
        hidden = sum(below.size for below in twig.below if below.lost) if hides else 0
        deepest = (self._left - 17) // 2  # so much is left for mark, token and number
        indent = "  " * min(level, deepest) + (f"{level + 1}: " if level >= deepest else "")
        for i, draw in enumerate(twig.draws):
            fate = FATES[draw.fate]
            label = "again" if i else "(has ended)" if twig.token == FINISHED else self._quoted([twig.token])
            times = f" x{draw.times}" if draw.times > 1 else ""
            margin = ("> " if twig.goes_on and not i else "  ") + indent + fate.mark + " "
            label = shortened(label, self._left - len(margin) - len(times) - 1) + times
            said = draw.fate + ", ends" * (not i and twig.token in self.ends)
            if hidden and not i:
                said += f" (+{hidden})"
            text = _pad(_pad(margin + label, self._left) + said, self._left + FATE_WIDTH)
            yield (paint(text.rstrip(), fate.style, self.colour) + text[len(text.rstrip()) :] + _numbers(draw)).rstrip()
        for below in twig.below:
            if not (hidden and below.lost):
                yield from self._twig(below, level + bool(twig.draws), hides)

    def _layer(self, grove: Grove, layer: Layer, place: int) -> list[str]:
        """A layer of beams in a sentence."""
        said = [(sum(one.fate == name for one in layer.judged), name) for name in FATES]
        said.append((len(completions(layer)), grove.rest))
        draws = len(layer.judged)
        asked = f" of {draws} draw{'s' * (draws != 1)}" if draws else ""
        drawn = any(one.q for any_layer in grove.round_.layers for one in any_layer.judged)
        chance = f" ({percent(layer.chance)})" if draws and drawn else ""
        distinct = len(layer.distinct)
        merged = f" = {distinct} beam{'s' * (distinct != 1)}" if distinct < len(layer.beams) else ""
        parts = [f"{count} {name}" for count, name in said if count]
        return _wrapped(
            f"  layer {place}: width {layer.width}{asked}{chance}: ", [*parts[:-1], parts[-1] + merged], self.width
        )

    def _quoted(self, tokens: Sequence[int]) -> str:
        """Text as Python writes it: line ends, tabs and what could steer a terminal are escaped."""
        return repr(self.words(tokens))


def _all(twigs: Sequence[Twig]) -> Iterator[Twig]:
    for twig in twigs:
        yield twig
        yield from _all(twig.below)


def _shown(chances: Sequence[float | None]) -> list[str]:
    """p, q and the acceptance probability as they are shown."""
    texts = [f"{value:.3f}" for value in chances[:2] if value is not None]
    return texts + [percent(value) for value in chances[2:] if value is not None]


def _numbers(draw: Draw) -> str:
    return "".join(text.rjust(NUMBER_WIDTH) for text in _shown(draw.chances))


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
