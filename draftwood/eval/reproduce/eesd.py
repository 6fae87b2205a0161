"""Early-exiting speculative decoding (Liu et al. 2024): its exhibits from our evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from draftwood.eval.experiments.learned import Exit, Places
from draftwood.eval.intervals import Interval
from draftwood.eval.report.charts import Figure, Stack, Stacks
from draftwood.eval.report.figures import PARTS, SHARES, file_name
from draftwood.eval.report.tables import METHOD, Column, Table
from draftwood.eval.reproduce import showing
from draftwood.eval.reproduce.comparison import Comparison, Order
from draftwood.eval.reproduce.eesd_methods import (
    BETA,
    CALI,
    CONTROL,
    EXITS,
    METHODS,
    NO_EXIT,
    NO_MODEL,
    NO_SAMPLES,
    ROWS,
    SIZES,
    TASKS,
    TREE,
    VANILLA,
    controllers,
    evaluations,
    fixed,
    learn,
    sweep,
)
from draftwood.eval.reproduce.experiment import Experiment, Shown, Size
from draftwood.eval.reproduce.paper import Exhibit
from draftwood.eval.reproduce.results import Measured, Results
from draftwood.eval.reproduce.showing import ACCEPTED, HM, RATE, SHARE, SPEED_UP, TAU


def tables(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Tables 1 to 3."""
    found = results[METHODS]
    if found is None:
        return Shown()
    names = list(found.methods)[1:]
    figures = [
        showing.groups(found, exhibit.id, "Speed-up over plain decoding", SPEED_UP, names),
        showing.groups(found, exhibit.id, "Harmonic mean of accepted/drafted and accepted/output", HM, names),
    ]
    comparisons: list[Comparison | Order] = []
    for task, data in TASKS.items():
        for paper in ("EESD + Beta-TS", "EESD + Cali-TS"):
            values = exhibit.number("Speed-up", Data_set=data, Method=paper)
            what = f"{task}: speed-up of {ROWS[paper]}"
            comparisons.append(Comparison(what, (min(values), max(values)), _of(found, task, ROWS[paper], SPEED_UP)))
        for measure, what in ((SPEED_UP, "speed-up"), (HM, "HM")):
            column = "Speed-up" if measure is SPEED_UP else "HM, %"
            theirs = {ours: fmean(exhibit.number(column, Data_set=data, Method=name)) for name, ours in ROWS.items()}
            vanilla = [
                float(exhibit.value(row, column))
                for row in exhibit.rows
                if exhibit.value(row, "Data set") == data and str(exhibit.value(row, "Method")).startswith("Vanilla")
            ]
            theirs[VANILLA] = fmean(vanilla)
            ours = {name: _of(found, task, name, measure) for name in theirs}
            comparisons.append(Order(f"{task}: {what}", theirs, ours, main=measure is SPEED_UP))
    notes = [sentence for name, sentence in made.missing.items() if name in ("draft", "medusa", "calibration")]
    notes.append(
        "The paper's values for the order are means over its models. speedup-ts and optimal-stopping are ours."
    )
    return Shown(figures, [showing.table(found, [HM, ACCEPTED, SHARE, SPEED_UP, TAU])], comparisons, notes)


def _of(found: Measured, task: str, method: str, measure: showing.Measure) -> Interval | None:
    row = found.row(task, method)
    return None if row is None else measure.of(row)


def _slower(exhibit: Exhibit, part: str, whole: str) -> tuple[float, float]:
    """Ends of the paper's speed-ups of a row over those of another, GSM8K and XSum."""
    columns = ("GSM8K, speed-up", "XSum, speed-up")
    ratios = [exhibit.number(c, Method=part)[0] / exhibit.number(c, Method=whole)[0] for c in columns]
    return min(ratios), max(ratios)


def ablation(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 4."""
    found, short = results[CONTROL], results[EXITS]
    if found is None:
        return Shown()
    asked = [
        ("without the exit layer", "EESD + Beta-TS", NO_EXIT, BETA),
        ("without sampling prediction", "EESD + Cali-TS", NO_SAMPLES, CALI),
        ("without model prediction", "EESD + Cali-TS", NO_MODEL, CALI),
        ("without Thompson sampling, K = 10", "EESD + Beta-TS", fixed(10), BETA),
    ]
    comparisons: list[Comparison | Order] = [
        Comparison(f"speed of {mine} over {ours}", _slower(exhibit, part, whole), found.faster(mine, ours))
        for part, whole, mine, ours in asked
    ]
    notes = [sentence for name, sentence in made.missing.items() if name in ("calibration", "exits")]
    if short is not None:
        texts = [one for one in made.exits if not one.distilled]
        pair = next(((a, b) for a in texts for b in made.exits if b == replace(a, distilled=True, place=b.place)), None)
        if pair is not None:
            text, distilled = pair
            ends = _slower(exhibit, "without self-distillation", "EESD + Beta-TS")
            what = f"speed of {text.label} over {distilled.label}"
            comparisons.append(Comparison(what, ends, short.faster(text.label, distilled.label)))
    notes.append(
        "Without the exit layer: the target's first layers and its own head draft, untrained; the paper trains a head. "
        "Without sampling or model prediction: that part's deviation is so large that it counts for nothing."
    )
    names = [BETA, NO_EXIT, CALI, NO_SAMPLES, NO_MODEL, fixed(10)]
    figure = showing.groups(found, exhibit.id, "Speed-up over plain decoding", SPEED_UP, names)
    return Shown([figure], [showing.table(found, [SPEED_UP, HM], names)], comparisons, notes)


def depths(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 3."""
    found = results[CONTROL]
    if found is None:
        return Shown()
    line = {float(k): fixed(k) for k in sweep(size)}
    levels = [name for name in controllers(made) if name in found.methods]
    figures = [
        showing.curves(found, exhibit.id, "Fixed K and controllers", "K", SPEED_UP, {"fixed K": line}, task, levels)
        for task in found.tasks
    ]
    notes = []
    for task in found.tasks:
        rates = {name: value for name in line.values() if (value := showing.value(_of(found, task, name, RATE)))}
        if not rates:
            continue
        best = max(rates, key=lambda name: rates[name])
        said = [
            f"{name} {value:.2f}"
            for name in levels
            if (value := showing.value(found.faster(name, best, [task]))) is not None
        ]
        notes.append(f"{task}: the best fixed depth is {best}. Speed over it: {', '.join(said)}.")
    notes.append("The best fixed K is chosen after the fact, on the same items, which favours it.")
    return Shown(figures, [showing.table(found, [SPEED_UP, HM], [*line.values(), *levels])], (), notes)


def generality(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 5."""
    found = results[CONTROL]
    if found is None:
        return Shown()
    comparisons = [
        Comparison(f"{task}: speed of {name} + beta-ts over {name}, K=10", exhibit.ends("Beta-TS over fixed K"), ours)
        for task in found.tasks
        for name in ("vanilla", "self-spec")
        if (ours := found.faster(f"{name} + beta-ts", f"{name}, K=10", [task])) is not None
    ]
    names = [f"{name}{end}" for name in ("vanilla", "self-spec") for end in (", K=10", " + beta-ts", " + speedup-ts")]
    figure = showing.groups(found, exhibit.id, "Speed-up over plain decoding", SPEED_UP, names)
    notes = [sentence for name, sentence in made.missing.items() if name == "draft"]
    return Shown([figure], [showing.table(found, [SPEED_UP, HM], names)], comparisons, notes)


def trees(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 7."""
    found = results[CONTROL]
    if found is None:
        return Shown()
    comparisons = [
        Comparison(f"{task}: speed of {name}, tree over chain", exhibit.ends("tree over chain"), ours)
        for task in found.tasks
        for name in (BETA, CALI)
        if (ours := found.faster(f"{name}, tree", name, [task])) is not None
    ]
    names = [name for each in (BETA, CALI) for name in (each, f"{each}, tree")]
    figure = showing.groups(found, exhibit.id, "Speed-up over plain decoding", SPEED_UP, names)
    note = f"The tree here has {', '.join(map(str, TREE))} children per node, layer by layer."
    return Shown([figure], [showing.table(found, [SPEED_UP, TAU, HM], names)], comparisons, [note])


def times(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 8."""
    found = results[CONTROL]
    if found is None:
        return Shown()
    stacks, shares = [], []
    for task in found.tasks:
        for name in (BETA, CALI):
            row = found.row(task, name)
            if row is None or not row["decoding"]["tokens"]:
                continue
            timing, tokens = row["timing"], row["decoding"]["tokens"]
            milliseconds = 1000 * timing["round_seconds"] / tokens
            stacks.append(Stack(f"{task}, {name}", [timing["time_shares"][part] * milliseconds for part in SHARES]))
            shares.append((task, name, timing["time_shares"]))
    chart = Stacks("milliseconds per token", PARTS[: len(SHARES)], stacks)
    totals = {
        (target, method): [
            float(exhibit.value(row, column))
            for row in exhibit.rows
            if (exhibit.value(row, "Target"), exhibit.value(row, "Method")) == (target, method)
            for column in exhibit.stacks
        ]
        for target in ("LLaMA-2-70B", "LLaMA-2-13B")
        for method in ("EESD + Beta-TS", "EESD + Cali-TS")
    }
    ratios = [
        sum(totals[target, "EESD + Beta-TS"]) / sum(totals[target, "EESD + Cali-TS"])
        for target in ("LLaMA-2-70B", "LLaMA-2-13B")
    ]
    comparisons = []
    if "calibration" in made.places:
        ours = found.faster(CALI, BETA)
        comparisons.append(Comparison("speed of cali-ts over beta-ts", (min(ratios), max(ratios)), ours))
    for place, part in enumerate(("drafting", "verification", "sampling")):
        theirs = [100 * total[place] / sum(total) for total in totals.values()]
        for task, name, share in shares:
            if name == BETA:
                value = Interval(value=100 * share[SHARES[place]], low=None, high=None, n=0)
                what = f"{task}: share of {part} in the time of {name}"
                ends = min(theirs), max(theirs)
                comparisons.append(Comparison(what, ends, value, " %", None, digits=1, main=False))
    figure = Figure(file_name(exhibit.id, "time"), "Where the time goes", "", chart)
    note = (
        "Sampling here includes warping the target's distributions and judging drafts; the prompt's forward counts as "
        "verification."
    )
    return Shown([figure] if stacks else [], (), comparisons, [note])


def _exits(exhibit: Exhibit, results: Results, made: Places, axis: str, chosen: Mapping[float, Exit]) -> Shown:
    """Figures 4 and 5."""
    found = results[EXITS]
    if not made.exits:
        return Shown(notes=[made.missing.get("exits", "No exits were trained.")])
    if found is None:
        return Shown()
    line = {x: shape.label for x, shape in chosen.items()}
    figures = [
        showing.curves(found, f"{exhibit.id}-{m.title}", m.title, axis, m, {"eesd + beta-ts": line}, task)
        for m in (SPEED_UP, HM)
        for task in found.tasks
    ]
    return Shown(figures, [showing.table(found, [SPEED_UP, HM], list(line.values()))])


def layers(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 4: N."""
    chosen = {float(shape.layers): shape for shape in made.exits if shape.depth == 1 and shape.distilled}
    return _exits(exhibit, results, made, "layers before the exit, N", chosen)


def exit_layers(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 5: layers of the exit."""
    first = min((shape.layers for shape in made.exits), default=0)
    chosen = {float(shape.depth): shape for shape in made.exits if shape.layers == first and shape.distilled}
    return _exits(exhibit, results, made, "layers of the exit", chosen)


def training(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 6: what training the exits took."""
    if not made.rows:
        return Shown(notes=[made.missing.get("exits", "No exits were trained.")])
    columns = [METHOD, Column("Trained", "Weights that training changes."), Column("Steps", "Steps of training.")]
    columns.append(Column("Seconds/batch", "Wall time of training over its steps."))
    rows = []
    for row in made.rows:
        seconds = f"{row['seconds_per_step']:.2f}" if "seconds_per_step" in row else "–"
        rows.append([row["exit"], f"{row['parameters'] / 1e6:.2f}M", str(row["steps"]), seconds])
    note = "Batches here are smaller than the paper's 64, and Medusa and draft models are not trained for this page."
    return Shown((), [Table(columns, rows)], (), [note])


EXPERIMENT = Experiment(
    "eesd",
    SIZES,
    learn,
    evaluations,
    {
        "tables-1-3": tables,
        "table-4": ablation,
        "figure-3": depths,
        "table-5": generality,
        "figure-4": layers,
        "figure-5": exit_layers,
        "table-6": training,
        "table-7": trees,
        "table-8": times,
    },
)
