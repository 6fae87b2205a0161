"""Answers to users' messages by kind of text, whole requests with their prompts: methods in turns, llama.cpp beside.

The messages are those that recipes/shared_prompts.py holds out of training; they lie outside the project, in
`DRAFTWOOD_DATA`. llama.cpp answers the messages of a kind between two turns of ours, in a process of its own, plain and
with its prompt lookup. Texts end where the model ends them. Sampled texts of two arms differ, in length, too: several
`draws` of each message make that matter less, and intervals are drawn by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench, rotated
from benchmarks.experiment import Kind, Rows, data_sets, placed
from benchmarks.kinds.files import THEIRS
from benchmarks.kinds.peers import run_job
from benchmarks.pairs import TRAINED
from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.eval.intervals import quotient, ratio
from recipes.shared_prompts import PER_KIND, read, split

ALL = "all"
SQUAD = "squad"
LOOKUP = "prompt lookup"
Answer = dict[str, Any]  # seconds and tokens; of ours the counts of its metrics, too
COUNTS = ("emitted", "rounds", "accepted", "drafted")


class ChatPrompts(Kind):
    """`arms` are methods with their options, the first is what others are compared with unless they name one in `over`.

    `draft` names a draft model, and what begins with `trained/` lies in benchmarks/trained. An arm without a `name` is
    the default method of a target beside which `trained` lies; a run leaves an arm out by null.
    """

    arms: dict[str, dict[str, Any] | None]
    trained: str | None = None  # a directory of benchmarks/trained
    temperatures: tuple[float, ...] = (0.0, 1.0)
    per_kind: int = PER_KIND
    kinds: tuple[str, ...] | None = None
    draws: int = 1  # answers to each message, of a seed each; llama.cpp gives one
    tokens: int = 64
    llama: bool = True
    limit: float = 1200  # seconds of one process of llama.cpp

    @property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """The arms that are not left out."""
        return {arm: options for arm, options in self.arms.items() if options is not None}

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """`speed`: a row for each temperature, kind of text and arm. `failures`: what was not measured."""
        messages = held_out(self.kinds, self.per_kind)
        rows: Rows = []
        failures: Rows = []
        for temperature in self.temperatures:
            answers: dict[tuple[str, str], list[list[Answer]]] = {}
            for kind, texts in messages.items():
                prompts = [encoded(bench.engine, text) for text in texts]
                answers |= {(kind, arm): one for arm, one in self.ours(bench, temperature, kind, prompts).items()}
                if self.llama:
                    for mode in ("plain", LOOKUP):
                        make = partial(self.theirs, bench, prompts, temperature, mode)
                        result = bench.once([temperature, kind, THEIRS, mode], make)
                        if "error" in result:
                            failures.append({"engine": f"{THEIRS}, {mode}, {kind}", "failure": result["error"]})
                        else:
                            answers[kind, f"{THEIRS}, {mode}"] = [[one] for one in result["answers"]]
            rows += self.rows(temperature, answers, [*messages])
        return {"speed": rows, "failures": failures}

    def ours(
        self, bench: Bench, temperature: float, kind: str, prompts: list[list[int]]
    ) -> dict[str, list[list[Answer]]]:
        """The answers of each arm to the prompts of a kind, [prompt][draw]; the arms take turns at each draw."""
        answers: dict[str, list[list[Answer]]] = {arm: [[] for _ in prompts] for arm in self.chosen}
        for turn in bench.track(range(len(prompts) * self.draws), f"T = {temperature:g}, {kind}"):
            number = turn // self.draws
            for arm in rotated([*self.chosen], turn):
                make = partial(self.answer, bench, arm, prompts[number], temperature, turn)
                answers[arm][number].append(bench.once([temperature, kind, turn, arm], make))
        return answers

    def answer(self, bench: Bench, arm: str, prompt: list[int], temperature: float, seed: int) -> Answer:
        """One answer of ours; before its first one an arm answers a beginning, which is not counted."""
        options = {name: placed(value) for name, value in self.chosen[arm].items() if name != "over"}
        engine = self.engine(bench, options.pop("draft", None), not options)
        method = options or None
        ask = partial(engine.generate, method=method, sampling={"temperature": temperature}, seed=seed)
        if (arm, temperature) not in bench.warm:
            bench.warm.add((arm, temperature))
            ask(prompt[-64:], max_new_tokens=24)
            bench.settle()
        began = perf_counter()
        result = ask(prompt, max_new_tokens=self.tokens)
        seconds = perf_counter() - began
        counts = {name: getattr(result.metrics, name) for name in COUNTS}
        return {"seconds": seconds, "tokens": result.tokens, "method": result.method["name"], **counts}

    def engine(self, bench: Bench, draft: str | None, default: bool) -> Engine:
        """The target alone, with a draft model, or with what was trained for it beside it."""
        target = bench.pair.target
        grown = target.is_dir() and bench.pair.draft is None  # what was grown with it lies beside it
        if draft is None and (grown or not default):
            return bench.engine
        if default and target.is_file():
            target = beside(target, TRAINED / str(self.trained), bench.work)
        key = "default" if default else str(draft)
        if key not in bench.others:
            options: dict[str, Any] = {
                "dtype": bench.run.dtype,
                "quantize": bench.run.quantize,
                "reuse_prefixes": False,
            }
            bench.others[key] = load(target, draft, **options)
        return bench.others[key]

    def theirs(self, bench: Bench, prompts: list[list[int]], temperature: float, mode: str) -> dict[str, Any]:
        """llama.cpp's answers, or the reason why there are none."""
        if bench.llama_python is None:
            return {"error": "give --llama-python PATH, a Python with llama-cpp-python"}
        job: dict[str, Any] = {
            "engine": "file_llama",
            "task": "answers",
            "file": str(bench.pair.target),
            "prompts": prompts,
        }
        job |= {"tokens": self.tokens, "temperature": temperature, "lookup": mode == LOOKUP}
        job["end"] = sorted(bench.engine.end_tokens)
        module = "benchmarks.engines.file_cell"
        return run_job(job, str(bench.llama_python), bench.run.threads, self.limit, module)

    def rows(
        self, temperature: float, answers: dict[tuple[str, str], list[list[Answer]]], kinds: Sequence[str]
    ) -> Rows:
        """Speeds of each kind and of all together, over those of the arm that one is compared with."""
        rows: Rows = []
        first = next(iter(self.chosen))
        arms = dict.fromkeys(arm for _, arm in answers)
        for kind in (*kinds, ALL):
            for arm in arms:
                over = self.chosen.get(arm, {}).get("over", first)
                names = kinds if kind == ALL else (kind,)
                if not all((name, arm) in answers for name in names):
                    continue
                mine, base = ([one for name in names for one in answers[name, each]] for each in (arm, over))
                mine_in, base_in = ([sum(len(one["tokens"]) for one in each) for each in side] for side in (mine, base))
                mine_s, base_s = ([sum(one["seconds"] for one in each) for each in side] for side in (mine, base))
                row: dict[str, Any] = {
                    "temperature": temperature,
                    "kind": kind,
                    "arm": arm,
                    "over": over,
                    "answers": sum(map(len, mine)),
                }
                row["tokens_per_second"] = ratio(mine_in, mine_s)
                row["speed_up"] = quotient(mine_in, mine_s, base_in, base_s)
                same = [a[0]["tokens"] == b[0]["tokens"] for a, b in zip(mine, base, strict=True)]
                row["same_text"] = sum(same) / len(same)
                every = [one for each in mine for one in each]
                if "rounds" in every[0]:
                    emitted, rounds, accepted, drafted = (sum(one[name] for one in every) for name in COUNTS)
                    row |= {"tau": emitted / rounds, "acceptance": accepted / drafted if drafted else None}
                    row["method"] = every[0]["method"]
                rows.append(row)
        return rows


def held_out(kinds: Sequence[str] | None, per_kind: int) -> dict[str, list[str]]:
    """The messages of each kind that nothing was trained on; ConfigurationError where there is no data.

    Trained drafts have learned from questions like those of `squad`, which are asked only where `kinds` names them: of
    drafts that learn nothing.
    """
    data = data_sets()
    messages = dict(split(data)[1])
    if kinds is not None and SQUAD in kinds:
        messages[SQUAD] = [row["prompt"] for row in read(data, SQUAD)]
    return {kind: texts[:per_kind] for kind, texts in messages.items() if kinds is None or kind in kinds}


def encoded(engine: Engine, message: str) -> list[int]:
    """A user's message in the form of the model's chat template."""
    return engine.tokens([{"role": "user", "content": message}])


def beside(target: Path, trained: Path, place: Path) -> Path:
    """The path of a target's file beside which lies what was trained for it: links in a directory of their own."""
    home = place / "target"
    home.mkdir(exist_ok=True)
    for source in (target, *(path for path in trained.iterdir() if path.is_dir())):
        link = home / source.name
        if not link.is_symlink():
            link.symlink_to(source)
    return home / target.name
