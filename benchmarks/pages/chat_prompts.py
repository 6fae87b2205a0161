"""The section of docs/results.md on answers of a real model, with what was trained for it."""

from __future__ import annotations

from statistics import harmonic_mean

import pandas as pd

from benchmarks.kinds.chat_prompts import ALL
from benchmarks.kinds.files import THEIRS
from benchmarks.pages.tables import documents, frame, markdown, pivoted, rate, sources, span, times, value
from benchmarks.pairs import GROWN_REAL

ASKED = "Messages a kind, answers to each and most new tokens"
SQUAD = "`squad`: questions from which the head, but not the memory, has learned"
LEARNED = "2026-11-30T03"  # when the head's last run of training was over
NAMED = {"lookup": "drafts from the memory alone", "EAGLE head": "of the head, mixed with the memory's"}
KINDS = ("chat", "maths", "code", "summary", ALL)


def section() -> str:
    """A table for single answers and one for beams; empty where nothing was measured."""
    if not documents("chat-prompts"):
        return ""
    speed = frame("chat-prompts", "speed")
    default = speed[speed["arm"] == "default"]
    real = default[~default["pair"].isin(GROWN_REAL)]
    tau = span(lost(real[real["kind"] != ALL]))
    asked = f"{ASKED}: {amounts('chat-prompts')}"
    return f"""## A real model with what was trained for it

SmolLM2-135M-Instruct in the bits of its file answers messages that nothing was trained on, alone, prompts included:
tokens per second and, in parentheses, over plain decoding, tau, and the share of drafts accepted. The default finds the
EAGLE head beside the file. llama.cpp answers the same prompts, its ratio is to our plain decoding. In the runs `grown`
the same functions cost what 1.7 billion weights do in bfloat16, and 7.2 billion in int8. {asked}.

{table(speed)}

How many times as fast as plain decoding the default is, by kind of text and over all: {gains(default)}.
{together(speed)}At the file's own size tau is {tau} times that: drafts, rows, prompts take the rest.

{sources("chat-prompts")}{earlier()}{elsewhere()}{beams()}"""


def gains(default: pd.DataFrame) -> str:
    """What the default comes to in each run: `greedy`, T = 0: 1.10 to 1.35, over all 1.16x (1.10 to 1.21, n=80); ..."""
    result = []
    for (run, temperature), rows in default.groupby(["run", "temperature"], sort=False):
        by_kind, (over_all,) = (rows[(rows["kind"] == ALL) == whole]["speed_up"] for whole in (False, True))
        result.append(f"`{run}`, T = {temperature:g}: {span(by_kind)}, over all {times(over_all, True)}")
    return "; ".join(result)


def together(speed: pd.DataFrame) -> str:
    """The default over both temperatures, as many tokens of each; empty where one was not measured."""
    runs = ("greedy", "sampled")
    rows = speed[(speed["kind"] == ALL) & speed["run"].isin(runs)]
    plain, default = (
        [value(each) for each in rows.loc[rows["arm"] == arm, "tokens_per_second"]] for arm in ("plain", "default")
    )
    if len(default) < len(runs):
        return ""
    return (
        f"Over {' and '.join(f'`{run}`' for run in runs)} together, as many tokens of each: "
        f"{times(harmonic_mean(default) / harmonic_mean(plain))}. "
    )


def lost(default: pd.DataFrame) -> list[float]:
    """How many times the speed-up tau is: what rounds with drafts take more, and what prompts take."""
    return [value(row["tau"]) / value(row["speed_up"]) for _, row in default.iterrows()]


def amounts(experiment: str) -> str:
    """How much each run of an experiment has measured: `greedy` 20, 1, 256; ..."""
    known = [(document["run"], document["settings"]) for document in documents(experiment)]
    return "; ".join(f"`{run}` {made['per_kind']}, {made.get('draws', 1)}, {made['tokens']}" for run, made in known)


def earlier() -> str:
    """Which runs had the head as it was before its last run of training; empty where none had."""
    runs = before_learning("chat-prompts")
    return f" The head has learned more, and is held in four bits, since {', '.join(runs)}." if runs else ""


def before_learning(experiment: str) -> list[str]:
    """The runs that began before the head's last run of training was over."""
    return [f"`{each['run']}`" for each in documents(experiment) if each["environment"]["began"] < LEARNED]


def elsewhere() -> str:
    """The default on another processor."""
    if not documents("chat-prompts-amx"):
        return ""
    speed = frame("chat-prompts-amx", "speed")
    told, asked = gains(speed[speed["arm"] == "default"]), amounts("chat-prompts-amx")
    head = ", with the head as it was before" if before_learning("chat-prompts-amx") else ""
    return f" On a processor with AMX{head}: {told}. {ASKED}: {asked}. " + sources("chat-prompts-amx")


def beams() -> str:
    """Four beams with drafts over four without; a table leaves out the runs of short answers and of one kind."""
    if not documents("chat-beams"):
        return ""
    speed = frame("chat-beams", "speed")
    said = "; ".join(f"{NAMED[arm]}: {gains(speed[speed['arm'] == arm])}" for arm in NAMED)
    asked = f"{ASKED}: {amounts('chat-beams')}"
    return f"""

Four beams in the same way, over plain ones; {SQUAD}. {asked}. By kind of text and over all, {said}.

{table(speed[~speed["run"].str.contains("-short|-squad")])}

{sources("chat-beams")}"""


def table(rows: pd.DataFrame) -> str:
    """A row for each run and arm, a column for each kind of text."""
    rows = rows.assign(cell=[cell(row) for row in rows.to_dict("records")], T=rows["temperature"].map("{:g}".format))
    wide = pivoted(rows, ["run", "T", "arm"], "kind")
    return markdown(wide[["run", "T", "arm", *(kind for kind in KINDS if kind in wide)]])


def cell(row: dict[str, object]) -> str:
    """Tokens per second, the ratio, tau and acceptance."""
    tau, accepted = value(row.get("tau")), value(row.get("acceptance"))
    parts = [times(row["speed_up"])]
    parts += [f"{tau:.2f}"] if tau == tau and not str(row["arm"]).startswith(THEIRS) else []
    parts += [f"{accepted:.0%}"] if accepted == accepted else []
    return f"{rate(row['tokens_per_second'])} ({', '.join(parts)})"
