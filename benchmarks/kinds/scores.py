"""Scores of methods beside those of plain decoding: a lossless method answers as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.bench import Bench
from benchmarks.experiment import Rows, data_sets
from benchmarks.kinds.methods import ALL, Methods, expanded, together
from benchmarks.papers.settings import files
from draftwood.eval.summary import mean, paired, scored
from draftwood.eval.tasks import TASKS, Instance, Task, parse
from draftwood.util.jsonl import Record

POINTS = 100.0  # hundredths of a score


class MethodScores(Methods):
    """Each part's methods, the first of them plain decoding, on the same items with the same seeds.

    With `real` tasks are data sets, which lie outside the project, in `DRAFTWOOD_DATA`; a chat model is asked.
    """

    real: bool = False

    def items(self, names: Sequence[str]) -> list[tuple[Task, list[Instance]]]:
        if not self.real:
            return super().items(names)
        chosen = [parse(name, {"max_new_tokens": self.tokens, "path": str(files(name, data_sets()))}) for name in names]
        return [(task, task.instances(self.limit, chat=True)) for task in chosen]

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """A row for each method: its score on all items, each task weighing alike, and how far it is above plain's."""
        rows: Rows = []
        for name, part in self.parts.items():
            settings = expanded(part.methods)
            for number, sampling in enumerate(part.sampling):
                groups = self.groups(bench, f"{name}-{number}", part, settings, sampling)
                for i, setting in enumerate(settings):
                    mine, base = (
                        together([with_score(group[k], TASKS[task].metric) for task, group in groups.items()])
                        for k in (i, setting.base)
                    )
                    rows.append({"method": setting.label, "task": ALL, **sampling, **compared(mine, base)})
        return {"scores": rows}


def with_score(group: Sequence[Record], metric: str) -> list[Record]:
    """The runs that could be scored, each with its score."""
    return [{**record, "score": score} for record in group if (score := scored(record, metric)) is not None]


def compared(group: Sequence[Record], base: Sequence[Record]) -> dict[str, Any]:
    """The mean score, and in points how far it is above the baseline's on the same items with the same seeds."""
    pairs = paired(group, base)
    return {
        "runs": len(pairs),
        "score": mean([(mine, mine["score"]) for mine, _ in pairs]),
        "points": mean([(mine, POINTS * (mine["score"] - other["score"])) for mine, other in pairs]),
    }
