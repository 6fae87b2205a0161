"""Cases for what small random tables seldom come to: copies of the text, and rows of the target that are used again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from draftwood.certify.forms import DEEPEST, WIDEST, capped, window
from draftwood.certify.rules import COPY_OUTCOMES, DRAFT_BEHIND_COPY, KEPT_REUSED, ROOT_REUSED, looks
from draftwood.certify.small import Case
from draftwood.certify.tables import VOCAB, forked_table
from draftwood.methods import Lookup, Method
from draftwood.methods.beams import DynamicWidth

PERIOD = [1, 2, 3, 4] * 9 + [1, 2]  # what comes next is plain
AFTER_PERIOD = (3, 4, 1, 2)
PHRASE = [1, 2, 3]  # plain to its end, where each time something else came next
PARTED = [*PHRASE, 2, *PHRASE, 3, *PHRASE, 4] * 2 + [0]  # and what follows 0 has never been seen
TAIL = 5  # certain tokens behind those that have a choice, so that copies are worth their rows


def occasions(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Cases, each with smaller ones to take where there are too many choices."""
    if looks(method):
        yield from copies(method, seed, drafts)
    if isinstance(method, DynamicWidth) and method.lossless and method.gamma > 1 and method.widest > 1:
        yield from kept_rows(method, seed, drafts)


def copies(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Rounds that copy what followed before, and a whole text; of mixed methods also with models behind a copy."""
    form = capped(method.as_dict(), WIDEST, DEEPEST)
    more: dict[str, Any] = {"sure": AFTER_PERIOD, "copied": True, "aim": COPY_OUTCOMES}
    for place, warp in ((0, "plain"), (1, "plain"), (2, "plain"), (0, "penalties"), (1, "top-k"), (2, "top-p")):
        shapes = [(*(1,) * place, count, *after) for count in (4, 3, 2) for after in ((3, 3), (3, 2), (2, 1), (1, 1))]
        yield (window(form, one, warp, seed + place, drafts, len(one) + TAIL, PERIOD, **more) for one in shapes)
    shapes = [(3, 3, 3, 3), (3, 3, 3), (2, 2, 2, 2), (2, 2, 2), (2, 2)]
    yield (window(form, one, "plain", seed, drafts, len(one), PERIOD, rounds=0, **more) for one in shapes)
    if isinstance(method, Lookup):
        return
    form, more = {**form, "depth": "fixed"}, {"copied": True, "aim": DRAFT_BEHIND_COPY}
    for warp in ("plain", "top-k"):
        shapes = [(copied, *after) for copied in (3, 2) for after in ((4, 2), (3, 2), (2, 2), (2, 1))]
        yield (
            window(form, one, warp, seed, drafts, len(one) + 1, PARTED + PHRASE[:begun], sure=PHRASE[begun:], **more)
            for begun in (2, 0)  # some methods' models draft nothing in the first round
            for one in ((*(1,) * (2 - begun), *shape) for shape in shapes)
        )


def kept_rows(method: DynamicWidth, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Two rounds of two beams, of which the first accepts one draft and keeps the drafts below it."""
    values = method.as_dict() | {"draft_width": 2, "gamma": 2}
    values["width" if method.width else "min_width"] = 2
    for number, warp in enumerate(("plain", "top-p")):
        table = partial(forked_table, seed + number)
        for tokens, aim in ((2, ROOT_REUSED), (3, KEPT_REUSED)):
            yield [
                Case(
                    Method.parse(values),
                    VOCAB,
                    tokens,
                    warp,
                    seed + number,
                    drafts,
                    table=table,
                    rounds=2,
                    aim=aim,
                    about="a draft and another token everywhere",
                )
            ]
