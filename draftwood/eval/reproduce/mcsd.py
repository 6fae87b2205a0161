"""Improved multi-candidate decoding (Lu et al. 2024): its exhibits from our evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.eval.experiments.learned import Learned, Places, Recorded
from draftwood.eval.intervals import Interval
from draftwood.eval.reproduce import showing
from draftwood.eval.reproduce.comparison import Comparison, Order
from draftwood.eval.reproduce.experiment import PLAIN, Evaluation, Experiment, Shown, Size
from draftwood.eval.reproduce.paper import Exhibit
from draftwood.eval.reproduce.results import Measured, Results
from draftwood.eval.reproduce.showing import ACCEPTED, ALPHA, PERPLEXITY, RATE, SCORE, SPEED_UP, TAU

STATIC, FORKS, GREEDY = "trees", "forks", "forks-greedy"
TASKS = {"stories": "MT-Bench", "qa": "TriviaQA", "summaries": "Alpaca"}  # ours -> what it stands for
SIZES = {
    "small": Size(items=16, seeds=1, tokens=64),
    "full": Size(items=80, seeds=3, tokens=200, whole=True),
}
TEMPERATURE, BETA, DEPTH = 0.7, 0.4, 5  # §4.1 and Appendix A
CHAIN, TREE = "speculative, gamma=4", "mcsd 4,2,2,1"
INITIALISED = {2: "target-init. 2,4,3,1,1", 3: "target-init. 3,4,3,1,1"}
EXACT = "mcsd 4,3,1,1"  # the lossless tree below 2,4,3,1,1
DRAFTS = {"Baseline SD": CHAIN, "MCSD": TREE, "Target-initialised": INITIALISED[2]}
LONG_CHAIN, LONG_TREE = "speculative, gamma=5", "mcsd 4,2,2,1,1"


def fork(width: int, verify: str, decides: bool = False) -> str:
    how = "longest" if verify == "longest" else "exact"
    return f"fork W={width}, {how}" + (", decision model" if decides else "")


def widths(size: Size) -> tuple[int, ...]:
    """Of forks: around the places where the paper's curves level off and fall."""
    return (1, 2, 4, 6, 8, 10, 12, 16, 21) if size.whole else (1, 4, 10, 16, 21)


def decided(size: Size) -> tuple[int, ...]:
    """Widths at which the decision model is compared."""
    return (1, 2, 4, 8, 16) if size.whole else (4, 16)


def trees() -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {
        PLAIN: {"name": "autoregressive"},
        CHAIN: {"name": "speculative", "gamma": 4},
        TREE: {"name": "mcsd", "tree": [4, 2, 2, 1]},
        EXACT: {"name": "mcsd", "tree": [4, 3, 1, 1]},
    }
    return found | {
        name: {"name": "mcsd", "tree": [4, 3, 1, 1], "initial": initial} for initial, name in INITIALISED.items()
    }


def forks(size: Size, made: Places, chosen: Sequence[int], greedy: bool = False) -> dict[str, Mapping[str, Any]]:
    """Forks by width: the paper's form and the exact one, and both with the decision model where there is one."""
    found: dict[str, Mapping[str, Any]] = {
        PLAIN: {"name": "autoregressive"},
        LONG_CHAIN: {"name": "speculative", "gamma": DEPTH},
        LONG_TREE: {"name": "mcsd", "tree": [4, 2, 2, 1, 1]},
    }
    for width in chosen:
        for verify in ("rejection",) if greedy else ("longest", "rejection"):
            base = {"name": "mcsd-fork", "width": width, "gamma": DEPTH, "verify": verify}
            found[fork(width, verify)] = base
            if made.places.get("decision") and not greedy and width in decided(size):
                depth = f"decision:path={made.places['decision']},threshold={BETA}"
                found[fork(width, verify, True)] = {**base, "depth": depth}
    return found


def learn(size: Size) -> Learned:
    """A decision model for the draft."""
    return Learned(decision=Recorded(prompts=280, tokens=96) if size.whole else Recorded(prompts=56, tokens=48))


def evaluations(size: Size, made: Places) -> list[Evaluation]:
    every = tuple(TASKS)
    return [
        Evaluation(STATIC, trees(), every, size, {"temperature": TEMPERATURE}),
        Evaluation(FORKS, forks(size, made, widths(size)), every, size, {"temperature": 1.0}),
        Evaluation(GREEDY, forks(size, made, (16,), greedy=True), every, size, {"temperature": 0.0}),
    ]


def _alphas(found: Measured, task: str, names: Mapping[str, str]) -> dict[str, Interval | None]:
    rows = {paper: found.row(task, ours) for paper, ours in names.items()}
    return {paper: None if row is None else ALPHA.of(row) for paper, row in rows.items()}


def _compared(exhibit: Exhibit, found: Measured, names: Mapping[str, str]) -> list[Comparison | Order]:
    """Acceptance rates of each method, over all tasks and models of the paper, and their order."""
    made: list[Comparison | Order] = []
    for task, data in TASKS.items():
        ours = _alphas(found, task, names)
        for paper in names:
            values = exhibit.number("alpha", Data_set=data, Method=paper)
            what, ends = f"{task}: alpha of {names[paper]}", (min(values), max(values))
            made.append(Comparison(what, ends, ours[paper], "", None, main=paper == list(names)[-1]))
        theirs = {paper: sum(v := exhibit.number("alpha", Data_set=data, Method=paper)) / len(v) for paper in names}
        made.append(Order(f"{task}: alpha", theirs, ours))
    return made


NEAR = (
    "The embedded draft is far closer to its target than a 68M model is to a 7B one, so acceptance is higher "
    "throughout where this page is about the embedded pair."
)


def acceptance(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 2."""
    found = results[STATIC]
    if found is None:
        return Shown()
    names = [CHAIN, TREE, EXACT, *INITIALISED.values()]
    figure = showing.groups(found, exhibit.id, "Acceptance rate alpha", ALPHA, names)
    table = showing.table(found, [ALPHA, TAU, ACCEPTED], names)
    return Shown([figure], [table], _compared(exhibit, found, DRAFTS), [NEAR])


def speed(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 3."""
    found = results[STATIC]
    if found is None:
        return Shown()
    best = INITIALISED[2]
    comparisons: list[Comparison | Order] = []
    for range_, other, digits in (("speed-up", PLAIN, 2), ("target-initialised over MCSD", TREE, 3)):
        for tasks in (found.tasks, *([task] for task in found.tasks)):
            where = tasks[0] if len(tasks) == 1 else "all tasks"
            what, ours = f"{where}: speed of {best} over {other}", found.faster(best, other, tasks)
            whole = len(tasks) > 1
            comparisons.append(Comparison(what, exhibit.ends(range_), ours, most=True, digits=digits, main=whole))
    notes = []
    ratio = found.faster(best, EXACT)
    if (value := showing.value(ratio)) is not None and ratio is not None:
        interval = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        notes.append(
            f"Against the lossless tree of the same shape, {EXACT}, the target-initialised one is "
            f"{value:.2f}{interval} times as fast over all tasks."
        )
    notes.append("'The baseline' of the paper's 1.90 is taken as plain decoding, which its figure divides by.")
    figure = showing.groups(found, exhibit.id, "Speed-up over plain decoding", SPEED_UP, list(found.methods)[1:])
    return Shown([figure], [showing.table(found, [RATE, SPEED_UP, TAU])], comparisons, notes)


def quality(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 1: what initial tokens cost."""
    found = results[STATIC]
    if found is None:
        return Shown()
    names = [PLAIN, EXACT, *INITIALISED.values()]
    figures = [
        showing.groups(found, f"{exhibit.id}-{m.title}", m.title, m, names, tasks)
        for m, tasks in ((SCORE, ["qa", "summaries"]), (PERPLEXITY, None))
    ]
    paper = {
        initial: exhibit.number("score, Llama-68M", Initial_tokens=str(initial))[0] - 6.29 for initial in INITIALISED
    }
    comparisons: list[Comparison | Order] = []
    for task in ("qa", "summaries"):
        ours: dict[str, Interval | None] = {}
        for name in INITIALISED.values():
            row = found.row(task, name)
            ours[name] = None if row is None or row["paired"] is None else row["paired"]["score_difference"]
        theirs = {name: paper[initial] for initial, name in INITIALISED.items()}
        comparisons.append(Order(f"{task}: score that is kept", theirs, ours))
    notes = []
    for task in found.tasks:
        rows = {name: found.row(task, name) for name in names}
        said = [
            f"{name} {value:.2f}"
            for name, row in rows.items()
            if row is not None and (value := showing.value(PERPLEXITY.of(row))) is not None
        ]
        notes.append(f"{task}, perplexity of the answers under the target: {', '.join(said)}.")
    notes.append(
        "A perplexity below plain decoding's is not better sampling: it says that the method prefers likely text, "
        "which is what being lossy means here."
    )
    return Shown(figures, [showing.table(found, [SCORE, PERPLEXITY], names)], comparisons, notes)


def fork_acceptance(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 3."""
    found = results[FORKS]
    if found is None:
        return Shown()
    names = {"Baseline SD": LONG_CHAIN, "MCSD": LONG_TREE, "Fork": fork(16, "longest")}
    shown = [*names.values(), fork(16, "rejection")]
    figure = showing.groups(found, exhibit.id, "Acceptance rate alpha", ALPHA, shown)
    table = showing.table(found, [ALPHA, TAU, SPEED_UP], shown)
    return Shown([figure], [table], _compared(exhibit, found, names), [NEAR])


def greedy(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Table 4: the fork at temperature 0 and 1."""
    cold, warm = results[GREEDY], results[FORKS]
    if cold is None:
        return Shown()
    exact = fork(16, "rejection")
    figures = [
        showing.groups(
            cold, f"{exhibit.id}-0", "Acceptance rate alpha, temperature 0", ALPHA, [LONG_CHAIN, LONG_TREE, exact]
        )
    ]
    tables = [showing.table(cold, [ALPHA, TAU, SPEED_UP], [LONG_CHAIN, LONG_TREE, exact])]
    comparisons: list[Comparison | Order] = []
    for temperature, found, name in (("0", cold, exact), ("1", warm, fork(16, "longest"))):
        if found is None:
            continue
        for task, data in TASKS.items():
            both = ("alpha, Llama 2-7B Chat", "alpha, Vicuna-7B")
            values = [v for model in both for v in exhibit.number(model, Data_set=data, Temperature=temperature)]
            row = found.row(task, name)
            ours = None if row is None else ALPHA.of(row)
            what = f"{task}, temperature {temperature}: alpha of {name}"
            ends, new = (min(values), max(values)), temperature == "0"  # Table 3 has the others
            comparisons.append(Comparison(what, ends, ours, "", None, main=new))
    if warm is not None:
        longest = fork(16, "longest")
        figures.append(
            showing.groups(warm, f"{exhibit.id}-1", "Acceptance rate alpha, temperature 1", ALPHA, [longest, exact])
        )
    return Shown(figures, tables, comparisons)


def width(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 6: alpha and speed over the width."""
    found = results[FORKS]
    if found is None:
        return Shown()
    lines = {
        how: {float(w): fork(w, verify) for w in widths(size)}
        for how, verify in (("longest (lossy)", "longest"), ("exact", "rejection"))
    }
    figures = [
        showing.curves(found, f"{exhibit.id}-{title}", title, "width W", measure, lines, task)
        for title, measure in (("alpha", ALPHA), ("Tokens per second", RATE))
        for task in ([*TASKS] if size.whole else ["stories"])
    ]
    notes = []
    for task in found.tasks:
        for how, line in lines.items():
            rates = {
                w: value
                for w, name in line.items()
                if (row := found.row(task, name)) and (value := showing.value(RATE.of(row)))
            }
            if rates:
                best = max(rates, key=lambda w: rates[w])
                notes.append(f"{task}, {how}: fastest at W = {best:g} of {', '.join(f'{w:g}' for w in rates)}.")
    names = [name for line in lines.values() for name in line.values()]
    return Shown(figures, [showing.table(found, [ALPHA, RATE, SPEED_UP], names)], (), notes)


def decision(exhibit: Exhibit, results: Results, size: Size, made: Places) -> Shown:
    """Figure 8: forks with and without the decision model."""
    found = results[FORKS]
    if "decision" not in made.places:
        return Shown(notes=[made.missing.get("decision", "There is no decision model, so nothing was measured.")])
    if found is None:
        return Shown()
    lines = {
        f"{how}, {what}": {float(w): fork(w, verify, decides) for w in decided(size)}
        for how, verify in (("longest", "longest"), ("exact", "rejection"))
        for what, decides in (("without", False), ("with decision model", True))
    }
    figures = [
        showing.curves(found, f"{exhibit.id}-{title}", title, "width W", measure, lines, "stories")
        for title, measure in (("alpha", ALPHA), ("Tokens per second", RATE))
    ]
    notes = []
    for w in decided(size):
        for verify in ("longest", "rejection"):
            ratio = found.faster(fork(w, verify, True), fork(w, verify))
            if ratio is not None and ratio["value"] is not None:
                interval = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
                low, high = ratio["low"] or ratio["value"], ratio["high"] or ratio["value"]
                what = "faster" if low > 1 else "slower" if high < 1 else "no clear difference"
                notes.append(f"{fork(w, verify)}, with over without: {ratio['value']:.2f}{interval} times ({what}).")
    names = list(dict.fromkeys(name for line in lines.values() for name in line.values()))
    return Shown(figures, [showing.table(found, [ALPHA, RATE, SPEED_UP], names)], (), notes)


EXPERIMENT = Experiment(
    "mcsd",
    SIZES,
    learn,
    evaluations,
    {
        "table-2": acceptance,
        "figure-3": speed,
        "table-1": quality,
        "table-3": fork_acceptance,
        "table-4": greedy,
        "figure-6": width,
        "figure-8": decision,
    },
)
