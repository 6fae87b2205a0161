"""The forms of a method that are enumerated: small ones, and the method as it is on tables with few choices.

Among these are what small random tables seldom come to: copies of the text, and rows of the target that are used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from draftwood.certify.rules import (
    COPY_OUTCOMES,
    DRAFT_BEHIND_COPY,
    DRAFTED_ROUNDS,
    KEPT_REUSED,
    ROOT_REUSED,
    looks,
    required,
)
from draftwood.certify.small import Case
from draftwood.certify.tables import PROMPT, VOCAB, forked_table, window_table
from draftwood.depth import parse_depth
from draftwood.methods import Lookup, Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod, DynamicWidth

COPIED_PROMPT = [4, 1, 2, 3, 4]  # of windows where lookup drafts: what follows 4 in it is certain behind it
WIDTH_THRESHOLD = 0.3  # a threshold at which dynamic widths are of several sizes
DRAFT_COST = 0.1  # of a draft in target forwards, where a depth controller would measure it: clocks cannot be replayed
MAX_DEPTH, MAX_WIDTH = 6, 6  # layers and siblings of windows

PERIODIC = [1, 2, 3, 4] * 9 + [1, 2]  # what comes next is plain
AFTER_PERIODIC = (3, 4, 1, 2)
PHRASE = [1, 2, 3]  # plain to its end, where each time something else came next
PARTING = [*PHRASE, 2, *PHRASE, 3, *PHRASE, 4] * 2 + [0]  # and what follows 0 has never been seen
TAIL_TOKENS = 5  # certain tokens behind those that have a choice, so that copies are worth their rows


def windows(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Cases of one round of the method as it is, each with smaller ones to take where there are too many choices.

    One token after the other has several values, of chains and trees the token after it too. Beams are drafted up to
    that token only, and once over two layers, so that some parents are not accepted.
    """
    values = capped(method.as_dict(), MAX_WIDTH, MAX_DEPTH)
    beams = isinstance(method, BeamMethod)
    tree = values.get("tree") or values.get("expansion") or ()
    layers = len(tree) or (3 if "heads" in values else values.get("gamma", 1))
    forms: list[tuple[str, list[tuple[dict[str, Any], tuple[int, ...]]]]] = []  # with the warp of the second case
    for place in range(layers):
        form = capped(values, MAX_WIDTH, place + 1) if beams else values
        certain = (1,) * (place + ("heads" in values))
        sizes = [(count, after) for count in (5, 4, 3, 2) for after in ((1,) if beams else (2, 1))]
        forms.append((("penalties", "top-k", "top-p")[place % 3], [(form, (*certain, *size)) for size in sizes]))
    if layers > 1 and "draft_width" in values:
        options = {"min_width": 2} if "min_width" in values else {}
        wide, narrow = ({**capped(values, draws, 2), **options} for draws in (3, 2))
        two = [(wide, 3, 2), (wide, 2, 2), (narrow, 2, 2), (wide, 2, 1), (narrow, 2, 1)]
        forms.append(("all", [(form, (first, second, 1)) for form, first, second in two]))
    prompt, aim = COPIED_PROMPT if looks(method) else PROMPT, DRAFTED_ROUNDS & required(method)
    varying = {"threshold": min(values["threshold"], WIDTH_THRESHOLD)} if "threshold" in values else {}
    for number, (other, shapes) in enumerate(forms):
        for warp in ("plain", other):
            if warp != "plain":  # where widths vary; where the token after matters most
                shapes = sorted(shapes, key=lambda one: -one[1][-1])
                shapes = [({**form, **varying}, shape) for form, shape in shapes]
            yield (
                window(form, shape, warp, seed + 10 * number, drafts, len(shape) + (not beams), prompt, aim)
                for form, shape in shapes
            )


def window(
    form: Mapping[str, Any],
    shape: Sequence[int],
    warp: str,
    seed: int,
    drafts: int,
    tokens: int,
    prompt: list[int],
    aim: frozenset[str] = frozenset(),
    rounds: int = 1,
    **options: Any,
) -> Case:
    """A form where the draft's n-th token has `shape[n]` values, on `window_table` with its `options`; see `Case`."""
    table = partial(window_table, seed, possible=shape, prompt=prompt, **options)
    about = f"{','.join(map(str, shape))} values"
    return Case(Method.parse(form), VOCAB, tokens, warp, seed, drafts, None, table, rounds, prompt, aim, about)


def occasions(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Cases, each with smaller ones to take where there are too many choices."""
    if looks(method):
        yield from copies(method, seed, drafts)
    if isinstance(method, DynamicWidth) and method.lossless and method.gamma > 1 and method.widest > 1:
        yield from kept_rows(method, seed, drafts)


def copies(method: Method, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Rounds that copy what followed before, and a whole text; of mixed methods also with models behind a copy."""
    form = capped(method.as_dict(), MAX_WIDTH, MAX_DEPTH)
    more: dict[str, Any] = {"sure": AFTER_PERIODIC, "copied": True, "aim": COPY_OUTCOMES}
    for place, warp in ((0, "plain"), (1, "plain"), (2, "plain"), (0, "penalties"), (1, "top-k"), (2, "top-p")):
        shapes = [(*(1,) * place, count, *after) for count in (4, 3, 2) for after in ((3, 3), (3, 2), (2, 1), (1, 1))]
        yield (
            window(form, one, warp, seed + place, drafts, len(one) + TAIL_TOKENS, PERIODIC, **more) for one in shapes
        )
    shapes = [(3, 3, 3, 3), (3, 3, 3), (2, 2, 2, 2), (2, 2, 2), (2, 2)]
    yield (window(form, one, "plain", seed, drafts, len(one), PERIODIC, rounds=0, **more) for one in shapes)
    if isinstance(method, Lookup):
        return
    form, more = {**form, "depth": "fixed"}, {"copied": True, "aim": DRAFT_BEHIND_COPY}
    for warp in ("plain", "top-k"):
        shapes = [(copied, *after) for copied in (3, 2) for after in ((4, 2), (3, 2), (2, 2), (2, 1))]
        yield (
            window(
                form,
                one,
                warp,
                seed,
                drafts,
                len(one) + 1,
                PARTING + PHRASE[:begun],
                sure=PHRASE[begun:],
                **more,
            )
            for begun in (2, 0)  # some methods' models draft nothing in the first round
            for one in ((*(1,) * (2 - begun), *shape) for shape in shapes)
        )


def kept_rows(method: DynamicWidth, seed: int, drafts: int) -> Iterator[Iterable[Case]]:
    """Two rounds of two beams, of which the first accepts one draft and keeps the drafts below it."""
    values = method.as_dict() | {"draft_width": 2, "gamma": 2}
    values["width" if method.width else "min_width"] = 2
    for number, warp in enumerate(("plain", "top-p")):
        for tokens, aim in ((2, ROOT_REUSED), (3, KEPT_REUSED)):
            yield (
                Case(
                    Method.parse(values),
                    VOCAB,
                    certain + tokens,
                    warp,
                    seed + number,
                    drafts,
                    table=partial(forked_table, seed + number, certain),
                    rounds=2,
                    aim=aim,
                    about="a draft and another token everywhere",
                )
                for certain in (0, 1)  # heads draft nothing in the first round
            )


def capped(values: Mapping[str, Any], widest: int, deepest: int) -> dict[str, Any]:
    """A method's options, narrower and shallower where they were not already."""
    values = dict(values)
    if "gamma" in values:
        values["gamma"] = deepest if values["gamma"] is None else min(values["gamma"], deepest)
    for name in ("tree", "expansion"):
        if values.get(name):
            values[name] = [min(wide, widest) for wide in values[name][:deepest]]
    for name in ("width", "min_width", "draft_width"):
        if values.get(name):
            values[name] = min(values[name], widest)
    if "heads" in values:
        values |= {"tree": values["tree"] or [3, 2, 1], "paths": None}
    if "min_ngram" in values:
        values["min_ngram"] = 1
    if values.get("depth"):
        values["depth"] = _repeatable(values["depth"])
    if "n_best" in values:
        values["n_best"] = 1
    return values


def variants(method: Method) -> list[Method]:
    """`shrunk` in the forms that have different things to get wrong, and few enough choices.

    Several rounds of one beam, and one of two; a dynamic width also with a threshold at which widths vary.
    """
    small = shrunk(method)
    values = small.as_dict()
    if not isinstance(method, BeamSamplingMethod) or "draft_width" not in values:
        return [small]
    if values["width"] is None:
        return (
            [small] if values["threshold"] <= WIDTH_THRESHOLD else [small, _changed(values, threshold=WIDTH_THRESHOLD)]
        )
    wide = _changed(values, gamma=1)
    return [_changed(values, width=1, draft_width=2, n_best=1), *([wide] if values["width"] > 1 else [])]


def shrunk(method: Method, beams_only: bool = False) -> Method:
    """The same rule with few drafts, so that all of its choices can be enumerated; all beams are returned.

    With `beams_only` just the number of beams becomes small, so that the law of their sets can be written down.
    """
    values = method.as_dict()
    if not beams_only:
        values = capped(values, 2, 2)
        if "heads" in values:
            values["tree"] = [2, 1]
        if values.get("initial", 1) > 1:
            values |= {"initial": 2, "tree": [1]}
    elif isinstance(method, BeamMethod):
        few = {name: min(values[name], 2) for name in ("width", "min_width") if values.get(name)}
        if values.get("draft_width"):
            max_draws = 4 if values.get("width") else 3
            few["draft_width"] = max(min(values["draft_width"], max_draws), few.get("width") or few.get("min_width", 2))
        values |= few
    if values.get("depth"):
        values["depth"] = _repeatable(values["depth"])
    if isinstance(method, BeamMethod):
        values["n_best"] = 1
        values["n_best"] = Method.parse(values).widest  # type: ignore[attr-defined]
    return Method.parse(values)


def _changed(values: Mapping[str, Any], **changes: Any) -> Method:
    return Method.parse({**values, **changes})


def _repeatable(depth: str) -> str:
    """The depth controller without a clock, and without a model trained for one draft."""
    try:
        settings = parse_depth(depth)
    except ValueError:
        return "fixed"
    if "cost" in type(settings).model_fields:
        given = settings.model_dump(exclude_defaults=True)
        rest = ",".join(f"{key}={value}" for key, value in {"cost": DRAFT_COST, **given}.items())
        return f"{settings.name}:{rest}"
    if any(isinstance(value, str) for value in settings.model_dump().values()):
        return "fixed"  # a file of learned weights
    return depth
