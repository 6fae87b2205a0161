"""Answers model runs: those of many requests on one model together, in flat forwards.

Knows batching and the clock around a forward. Knows nothing of trees, sampling and what a run is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from draftwood.models.base import Batch, CausalModel
from draftwood.runtime.session import Answer, Job, Row, Run, Session


@dataclass(slots=True)
class Pending:
    """A run that is being answered: the rows that are still to be computed, and what is known so far."""

    run: Run
    rows: list[Row]
    answer: Answer
    levels: dict[int, int]  # slot -> layers computed of its row
    parts: list[tuple[list[int], Answer]] = field(default_factory=list)  # (places in run.nodes, their answers)

    @classmethod
    def of(cls, run: Run) -> Pending:
        """Allots slots: raises RequestError beyond the model's context, OutOfMemory beyond the memory's budget."""
        rows = run.session.rows(run) if run.nodes else []
        levels = {row.slot: run.session.level(row.slot) for row in rows}
        pending = cls(run, rows, Answer(torch.empty(0, run.session.model.vocab_size)), levels)
        pending.rows = pending.below(rows)
        return pending

    @property
    def stop(self) -> int:
        """The layers that the run wants computed."""
        return self.run.session.model.n_layers if self.run.upto is None else self.run.upto

    def below(self, rows: Sequence[Row]) -> list[Row]:
        """Those of some rows that are not computed far enough."""
        levels, stop = self.levels, self.stop
        return [row for row in rows if levels[row.slot] < stop]

    def finish(self) -> Answer:
        """The answer of a run without rows left, one row per node."""
        parts, answer = self.parts, self.answer
        if len(parts) == 1:
            answer.logits, answer.hidden = parts[0][1].logits, parts[0][1].hidden
        elif parts:
            order = torch.tensor([place for places, _ in parts for place in places]).argsort()
            logits = torch.cat([part.logits for _, part in parts])
            answer.logits = logits[order] if len(logits) else logits  # none where lower layers were asked for
            answer.hidden = {
                layer: torch.cat([part.hidden[layer] for _, part in parts])[order] for layer in parts[0][1].hidden
            }
        return answer


def execute(runs: Sequence[Run]) -> list[Answer]:
    """Answer runs that share a model, whatever their layer ranges, in one sweep over its layers."""
    pending = [Pending.of(run) for run in runs]
    with torch.inference_mode():
        sweep(pending)
    return [each.finish() for each in pending]


def sweep(pending: Sequence[Pending], limits: Sequence[int] | None = None) -> None:
    """Compute the rows of runs that share a model, of each run the first ones up to a limit: layers upwards, together.

    Where rows were computed to different layers, the lower ones come first; what another row resumes from or stops at
    ends a forward. A forward's seconds are shared out evenly among the runs in it.
    """
    counts = limits or [len(each.rows) for each in pending]
    chosen = {id(each): each.rows[:count] for each, count in zip(pending, counts, strict=True)}
    while todo := [(each, rows) for each in pending if (rows := each.below(chosen[id(each)]))]:
        levels = sorted({each.levels[row.slot] for each, rows in todo for row in rows})
        low, bounds = levels[0], [*levels[1:], *(each.stop for each, _ in todo)]
        stop = min(bound for bound in bounds if bound > low)
        members, jobs = [], []
        for each, rows in todo:
            if lowest := [row for row in rows if each.levels[row.slot] == low]:
                members.append(each)
                jobs.append(each.run.session.job(each.run, lowest, low, stop))
        order = sorted(range(len(jobs)), key=lambda i: jobs[i].segment.extent.base)
        _forward([members[i] for i in order], [jobs[i] for i in order])
    for each, count in zip(pending, counts, strict=True):
        each.rows = each.rows[count:]


def _forward(pending: Sequence[Pending], jobs: Sequence[Job]) -> None:
    """One forward for jobs of one model and layer range, in the order of their extents."""
    session, start, stop = jobs[0].session, jobs[0].start, jobs[0].stop
    model = session.model
    rows = [row for job in jobs for row in job.rows]
    ends = [each.stop == stop for each in pending]  # whether a run's rows are computed far enough
    asked: list[list[tuple[int, int]]] = []  # of each job (place in run.nodes, row)
    first = 0
    for each, job, done in zip(pending, jobs, ends, strict=True):
        place = {row.node: first + i for i, row in enumerate(job.rows)} if done else {}
        asked.append([(i, place[node]) for i, node in enumerate(each.run.nodes) if node in place])
        first += len(job.rows)
    hidden = None if jobs[0].hidden is None else torch.cat([job.hidden for job in jobs if job.hidden is not None])
    last = stop == model.n_layers
    batch = Batch.of(
        model,
        [row.token for row in rows],
        [row.position for row in rows],
        [job.segment for job in jobs],
        [row for pairs in asked for _, row in pairs] if last else slice(None),
        hidden,
        start=start,
        stop=None if last else stop,
        head=any(each.run.logits for each in pending),
        states=tuple(sorted({layer for each in pending for layer in each.run.hidden if start < layer <= stop})),
    )
    output, seconds = _timed(model, batch, session)
    seconds /= len(jobs)
    row = kept = 0
    for each, job, done, pairs in zip(pending, jobs, ends, asked, strict=True):
        count = len(job.rows)
        each.answer.seconds += seconds
        each.answer.rows += count * (stop - start) / model.n_layers
        each.answer.forwards += 1
        each.levels.update(dict.fromkeys(job.segment.slots, stop))
        job.session.store(job, None if last else output[row : row + count])
        if done and pairs:
            places, places_of = [place for place, _ in pairs], [line for _, line in pairs]
            if last:
                mine = slice(kept, kept + len(pairs))
                part = Answer(output[mine], {layer: batch.kept[layer][mine] for layer in each.run.hidden})
            else:
                part = Answer(each.answer.logits, {stop: output[places_of]})
            each.parts.append((places, part))
        row, kept = row + count, kept + len(pairs)


def _timed(model: CausalModel, batch: Batch, session: Session) -> tuple[Tensor, float]:
    """A forward and its seconds."""
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(model.device)
    began = perf_counter()
    output = model.forward(batch, session.cache)
    if cuda:
        torch.cuda.synchronize(model.device)
    return output, perf_counter() - began
