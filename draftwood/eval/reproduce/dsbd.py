"""Dynamic-width speculative beam decoding (Qin et al. 2025): its exhibits from our evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from draftwood.eval.experiments.learned import Learned, Places
from draftwood.eval.reproduce import showing
from draftwood.eval.reproduce.comparison import Comparison, Order
from draftwood.eval.reproduce.experiment import PLAIN, Evaluation, Experiment, Shown, Size
from draftwood.eval.reproduce.paper import Exhibit
from draftwood.eval.reproduce.results import Measured, Results
from draftwood.eval.reproduce.showing import JOULES, LAYERS, PERPLEXITY, RATE, SCORE, SLOTS, SPEED_UP, TAU, WIDTH

BEAMS = "beams"
TASKS = {"figure-4": "qa", "figure-5": "sql"}
SAMPLING = {"temperature": 1.0, "top_k": 10, "top_p": 0.8}  # §4.1
SIZES = {
    "small": Size(items=30, seeds=2),
    "full": Size(items=200, seeds=3, whole=True),
}
BEAM_WIDTHS = (2, 3, 4)  # width 1 is plain decoding
Setting = tuple[int, float, int]  # W_S, t, gamma
SINGLE: dict[str, Mapping[str, Any]] = {
    "speculative": {"name": "speculative", "gamma": 3},
    "specinfer": {"name": "specinfer", "expansion": [2, 2, 1]},
}
KEPT = {f"dsbd, one beam kept, t={t:g}": t for t in (0.9, 0.7)}
TABLE = {"Multinomial": PLAIN, "SpecDecode": "speculative", "SpecInfer": "specinfer", "DSBD": next(iter(KEPT))}


def settings(size: Size) -> list[Setting]:
    """Values of W_S, t and gamma: the paper's (§4.2), or enough of them to see what each does."""
    if size.whole:
        return list(product((2, 3, 4, 5, 6), (0.7, 0.9), (2, 3)))
    return [(2, 0.9, 2), (3, 0.9, 2), (4, 0.9, 2), (6, 0.9, 2), (3, 0.7, 2), (6, 0.7, 2), (6, 0.9, 3)]


def beam_sampling(width: int) -> str:
    return f"beam sampling, W={width}"


def dsbd(setting: Setting) -> str:
    return "dsbd, W_S={}, t={:g}, gamma={}".format(*setting)


def methods(size: Size) -> dict[str, Mapping[str, Any]]:
    """All of them by name."""
    found: dict[str, Mapping[str, Any]] = {PLAIN: {"name": "autoregressive"}, **SINGLE}
    found |= {beam_sampling(width): {"name": "beam-sampling", "width": width} for width in BEAM_WIDTHS}
    for draft_width, threshold, gamma in settings(size):
        found[dsbd((draft_width, threshold, gamma))] = {
            "name": "dsbd",
            "draft_width": draft_width,
            "threshold": threshold,
            "gamma": gamma,
        }
    for name, threshold in KEPT.items():
        found[name] = {"name": "dsbd", "draft_width": 6, "gamma": 3, "threshold": threshold, "one_cache": True}
    return found


def evaluations(size: Size, made: Places) -> list[Evaluation]:
    return [Evaluation(BEAMS, methods(size), tuple(TASKS.values()), size, SAMPLING)]


def front(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figures 4 to 6: quality over speed."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    task = TASKS[exhibit.id]
    families = {
        "beam sampling, by width W": {PLAIN: "W=1", **{beam_sampling(w): f"W={w}" for w in BEAM_WIDTHS}},
        "DSBD, by W_S / t / gamma": {dsbd(each): "{}/{:g}/{}".format(*each) for each in settings(size)},
        "one sequence": {name: name for name in SINGLE},
    }
    figures = [
        showing.scatter(found, exhibit.id, "Quality over speed", task, families, SCORE),
        showing.scatter(found, f"{exhibit.id}-perplexity", "Perplexity over speed", task, families, PERPLEXITY),
    ]
    if found.energy:
        figures.append(
            showing.scatter(found, f"{exhibit.id}-energy", "Quality over energy", task, families, SCORE, JOULES)
        )
    measures = [SCORE, PERPLEXITY, RATE, SPEED_UP, TAU, WIDTH, JOULES][: None if found.energy else -1]
    matched = {width: at_equal_quality(found, task, width, size) for width in BEAM_WIDTHS}
    reached = [width for width, name in matched.items() if name] or BEAM_WIDTHS
    best = max(reached, key=lambda width: (_score(found, task, beam_sampling(width)), width))
    notes = [
        f"As good as {beam_sampling(width)} or better, and fastest: {match or 'no setting of DSBD here'}."
        for width, match in matched.items()
    ]
    notes.append("The fastest setting is chosen after the fact, so the ratio at equal quality leans upwards.")
    match = matched[best]
    comparisons = [
        Comparison(
            f"{task}: speed of DSBD over {beam_sampling(best)}, at no less quality",
            exhibit.ends("speed at equal quality"),
            found.faster(match, beam_sampling(best), [task]) if match else None,
            absent="no setting is as good here",
        )
    ]
    if not found.energy:
        notes.append("Energy: this machine has no counter that can be read, so nothing is compared.")
    return Shown([each for each in figures if each], [showing.table(found, measures, tasks=[task])], comparisons, notes)


def at_equal_quality(found: Measured, task: str, width: int, size: Size) -> str | None:
    """The fastest DSBD setting whose score is no worse than beam sampling's."""
    wanted = _score(found, task, beam_sampling(width))
    good = [name for name in map(dsbd, settings(size)) if _score(found, task, name) >= wanted]
    return max(good, key=lambda name: _rate(found, task, name), default=None)


def _score(found: Measured, task: str, method: str) -> float:
    row = found.row(task, method)
    value = None if row is None else showing.value(SCORE.of(row))
    return -1.0 if value is None else value


def _rate(found: Measured, task: str, method: str) -> float:
    row = found.row(task, method)
    value = None if row is None else showing.value(RATE.of(row))
    return 0.0 if value is None else value


def one_cache(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 1: methods that keep one sequence."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    names = [PLAIN, *SINGLE, *KEPT]
    measures = [SCORE, PERPLEXITY, RATE, SPEED_UP, SLOTS, JOULES][: None if found.energy else -1]
    mine = TABLE["DSBD"]
    comparisons: list[Comparison | Order] = []
    for task, data in zip(TASKS.values(), ("SQuAD", "Spider"), strict=True):
        for other, what in (("Multinomial", "plain decoding"), ("SpecDecode", "speculative decoding")):
            ends = _ratios(exhibit, data, "DSBD", other)
            comparisons.append(
                Comparison(f"{task}: speed of {mine} over {what}", ends, found.faster(mine, TABLE[other], [task]))
            )
        row = found.row(task, mine)
        gains = _gains(exhibit, data)
        difference = None if row is None or row["paired"] is None else row["paired"]["score_difference"]
        comparisons.append(
            Comparison(
                f"{task}: score of {mine} above plain decoding's",
                gains,
                showing.scaled(difference, 100),
                " points",
                0.0,
                digits=0,
            )
        )
        order = {name: fmean(exhibit.number("Tokens/s", Data_set=data, Method=name)) for name in TABLE}
        ours = {name: None if (r := found.row(task, TABLE[name])) is None else RATE.of(r) for name in TABLE}
        comparisons.append(Order(f"{task}: tokens per second", order, ours))
    figures = [
        showing.groups(found, f"{exhibit.id}-rate", "Tokens per second", RATE, names),
        showing.groups(found, f"{exhibit.id}-score", "Score", SCORE, names),
    ]
    easy = [task for task in found.tasks if _score(found, task, PLAIN) > 0.99]
    notes = [f"{task}: plain decoding makes hardly a mistake here, so no method can be much better." for task in easy]
    return Shown(figures, [showing.table(found, measures, names)], comparisons, notes)


def _ratios(exhibit: Exhibit, data: str, method: str, other: str) -> tuple[float, float]:
    """Ends of the paper's ratios of tokens per second over its models."""
    pairs = zip(
        exhibit.number("Tokens/s", Data_set=data, Method=method),
        exhibit.number("Tokens/s", Data_set=data, Method=other),
        strict=True,
    )
    ratios = [a / b for a, b in pairs]
    return min(ratios), max(ratios)


def _gains(exhibit: Exhibit, data: str) -> tuple[float, float]:
    pairs = zip(
        exhibit.number("EM/EA, %", Data_set=data, Method="DSBD"),
        exhibit.number("EM/EA, %", Data_set=data, Method="Multinomial"),
        strict=True,
    )
    gains = [a - b for a, b in pairs]
    return min(gains), max(gains)


def widths(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 7: the width that came about, beside quality and speed."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    task = TASKS["figure-5"]
    names = [dsbd(each) for each in settings(size)]
    families = {"DSBD, by W_S / t / gamma": {dsbd(each): "{}/{:g}/{}".format(*each) for each in settings(size)}}
    title = "Mean width and {}"
    figures = [
        showing.scatter(found, f"{exhibit.id}-{y.title}", title.format(y.title.lower()), task, families, y, WIDTH)
        for y in (SCORE, RATE)
    ]
    notes = [_trend(found, task, names, y) for y in (SCORE, RATE)]
    measures = [WIDTH, LAYERS, SCORE, PERPLEXITY, RATE]
    return Shown([each for each in figures if each], [showing.table(found, measures, names, [task])], (), notes)


def _trend(found: Measured, task: str, names: Sequence[str], y: showing.Measure) -> str:
    """Whether a measure rises with the width, as a rank correlation."""
    rows = [row for name in names if (row := found.row(task, name)) is not None]
    points = [(showing.value(WIDTH.of(row)), showing.value(y.of(row))) for row in rows]
    known = [(a, b) for a, b in points if a is not None and b is not None]
    if len(known) < 3:
        return f"{y.title} over width: too few settings to tell."
    ranks = [sorted(values).index(each) for values in zip(*known, strict=True) for each in values]
    first, second = ranks[: len(known)], ranks[len(known) :]
    pairs = [(i, j) for i in range(len(known)) for j in range(i)]
    sign = [(first[i] - first[j]) * (second[i] - second[j]) for i, j in pairs]
    tau = (sum(s > 0 for s in sign) - sum(s < 0 for s in sign)) / len(pairs)
    words = "rises with" if tau > 0.3 else "falls with" if tau < -0.3 else "shows no clear trend with"
    return f"{y.title} {words} the width over these {len(known)} settings (Kendall's tau {tau:.2f})."


def thresholds(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 8: t = 0.7 and 0.9 at the same W_S and gamma."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    task, chosen = TASKS["figure-5"], settings(size)
    both = [(w, gamma) for w, t, gamma in chosen if t == 0.7 and (w, 0.9, gamma) in chosen]
    names = [dsbd((w, t, gamma)) for w, gamma in both for t in (0.7, 0.9)]
    families = {f"t = {t:g}": {dsbd((w, t, g)): f"{w}/{t:g}/{g}" for w, g in both} for t in (0.7, 0.9)}
    figure = showing.scatter(found, exhibit.id, "Two thresholds", task, families, SCORE)
    faster = [found.faster(dsbd((w, 0.9, g)), dsbd((w, 0.7, g)), [task]) for w, g in both]
    known = [value for each in faster if (value := showing.value(each)) is not None]
    notes = (
        [f"t = 0.9 over t = 0.7, tokens per second: {', '.join(f'{value:.2f}' for value in known)}."] if known else []
    )
    measures = [SCORE, PERPLEXITY, RATE, WIDTH, LAYERS]
    return Shown([figure] if figure else [], [showing.table(found, measures, names, [task])], (), notes)


def draft_widths(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 9: speed and quality by W_S."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    task = TASKS["figure-5"]
    lines: dict[str, dict[float, str]] = {}
    for w, t, gamma in settings(size):
        lines.setdefault(f"t={t:g}, gamma={gamma}", {})[w] = dsbd((w, t, gamma))
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    figures = [
        showing.curves(found, exhibit.id, f"{measure.title} by number of draft beams", "W_S", measure, lines, task)
        for measure in (RATE, SCORE)
    ]
    names = [name for line in lines.values() for name in line.values()]
    return Shown(figures, [showing.table(found, [SCORE, PERPLEXITY, RATE, WIDTH], names, [task])])


def memory(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """§3.4: slots of the one cache."""
    found = results[BEAMS]
    if found is None:
        return Shown()
    names = [PLAIN, "speculative", *map(beam_sampling, BEAM_WIDTHS), *map(dsbd, settings(size)), *KEPT]
    figure = showing.groups(found, exhibit.id, "Most cache slots in use", SLOTS, names)
    notes = []
    for task in found.tasks:
        rows = [found.row(task, name) for name in (PLAIN, beam_sampling(BEAM_WIDTHS[-1]))]
        plain, beams = (showing.value(SLOTS.of(row)) if row else None for row in rows)
        if plain and beams:
            notes.append(
                f"{task}: {BEAM_WIDTHS[-1]} beams take {beams / plain:.2f} times the slots of one sequence here; "
                f"as many caches would take {BEAM_WIDTHS[-1]} times."
            )
    return Shown([figure], [], (), notes)


EXPERIMENT = Experiment(
    "dsbd",
    SIZES,
    lambda size: Learned(),
    evaluations,
    {
        "figure-4": front,
        "figure-5": front,
        "table-1": one_cache,
        "figure-7": widths,
        "figure-8": thresholds,
        "figure-9": draft_widths,
        "section-3.4": memory,
    },
)
