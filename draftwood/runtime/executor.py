"""Answers model runs: those of many requests on one model together, in flat forwards.

Knows batching and the clock around a forward. Knows nothing of trees, sampling and what a run is for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from time import perf_counter

import torch
from torch import Tensor

from draftwood.core.row_tops import RowTops
from draftwood.models.base import Batch, CausalModel
from draftwood.runtime import threads
from draftwood.runtime.session import Answer, ForwardJob, Run, Session, TokenRow


@dataclass(slots=True)
class PartialRun:
    """A run that is being answered: the rows that are still to be computed, and what is known so far."""

    run: Run
    rows: list[TokenRow]
    levels: dict[int, int]  # slot -> layers computed of its row
    stop: int  # layers that the run wants computed
    answer: Answer
    parts: list[tuple[list[int], Answer]] = field(default_factory=list)  # (places in run.nodes, their answers)
    recorded: list[tuple[int, Sequence[int], Tensor]] = field(default_factory=list)  # see `LayerOutputs`

    @classmethod
    def of(cls, run: Run) -> PartialRun:
        """Allots slots: raises RequestError beyond the model's context, OutOfMemory beyond the memory's budget."""
        session, model = run.session, run.session.model
        rows = session.rows(run) if run.nodes else []
        levels = {row.slot: session.level(row.slot) for row in rows}
        stop = model.n_layers if run.upto is None else run.upto
        return cls(run, rows if stop else [], levels, stop, Answer(_nothing(model.vocab_size)))

    def record_output(self, layer: int, nodes: Sequence[int], output: Tensor, first: int) -> None:
        """Note a layer's output at some nodes, from row `first` on; memory of others' rows is not held."""
        if output.shape[0] != len(nodes):
            output = output[first : first + len(nodes)].clone()
        self.recorded.append((layer, nodes, output))

    def output(self, layer: int, nodes: Sequence[int]) -> Tensor:
        """The noted output [n, D] of a layer at some nodes."""
        rows = dict(chain.from_iterable(zip(*part, strict=True) for at, *part in self.recorded if at == layer))
        return torch.stack([rows[node] for node in nodes])

    def finish(self) -> Answer:
        """The answer of a run without rows left, one row per node."""
        parts, answer = self.parts, self.answer
        if len(parts) == 1:
            part = parts[0][1]
            answer.logits, answer.hidden, answer.tops = part.logits, part.hidden, part.tops
        elif parts:
            order = torch.tensor([place for places, _ in parts for place in places]).argsort()
            answer.tops = _joined([part.tops for _, part in parts if part.tops is not None], order.tolist())
            logits = torch.cat([part.logits for _, part in parts])
            answer.logits = logits[order] if len(logits) else logits  # none where lower layers were asked for
            answer.hidden = {
                layer: torch.cat([part.hidden[layer] for _, part in parts])[order] for layer in parts[0][1].hidden
            }
        answer.read = self.recorded
        return answer


def _joined(parts: Sequence[RowTops], order: Sequence[int]) -> RowTops | None:
    """Those of all parts, in an order; None where some part has none."""
    names = ("best", "log_sums", "leading")
    best, log_sums, leading = ([each for part in parts for each in getattr(part, name)] for name in names)
    if len(best) != len(order):
        return None
    return RowTops(best, log_sums, leading if len(leading) == len(best) else ()).of(order)


@cache
def _nothing(width: int) -> Tensor:
    """[0, width]: the logits of a run that has none."""
    return torch.empty(0, width)


def execute(runs: Sequence[Run]) -> list[Answer]:
    """Answer runs that share a model, whatever their layer ranges, in one run_layers over its layers."""
    pending = [PartialRun.of(run) for run in runs]
    with torch.inference_mode():
        run_layers(pending, [len(each.rows) for each in pending])
    return [each.finish() for each in pending]


def run_layers(pending: Sequence[PartialRun], limits: Collection[int]) -> float:
    """Compute the rows of runs that share a model, of each run the first ones up to a limit: layers upwards, together.

    Where rows were computed to different layers, the lower ones come first; what another row resumes from or stops at
    ends a forward. A forward's seconds are shared out evenly among the runs in it. Returns the rows that were computed,
    those of layer ranges by their share.
    """
    todo = [(each, rows) for each, limit in zip(pending, limits, strict=True) if (rows := each.rows[:limit])]
    computed = 0.0
    while todo:
        levels = {each.levels[row.slot] for each, rows in todo for row in rows}
        low, bounds = min(levels), levels.union(each.stop for each, _ in todo)
        stop = min([bound for bound in bounds if bound > low])
        jobs: list[tuple[PartialRun, ForwardJob]] = []
        for each, rows in todo:
            lowest = rows if len(levels) == 1 else [row for row in rows if each.levels[row.slot] == low]
            if lowest:
                jobs.append((each, each.run.session.job(each.run, lowest, low, stop)))
        computed += _forward(sorted(jobs, key=_base))
        todo = [member for member in todo if member[0].stop > stop]
    for each, limit in zip(pending, limits, strict=True):
        each.rows = each.rows[limit:]
    return computed


def _base(member: tuple[PartialRun, ForwardJob]) -> int:
    return member[1].segment.extent.base


def _forward(members: Sequence[tuple[PartialRun, ForwardJob]]) -> float:
    """One forward for jobs of one model and layer range, in the order of their extents; its rows, by their share."""
    job = members[0][1]
    session, start, stop, model = job.session, job.start, job.stop, job.session.model
    last, share = stop == model.n_layers, (stop - start) / model.n_layers
    tokens: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []  # rows whose logits or states are asked for
    places_of: list[tuple[list[int], int]] = []  # of each job: their places in run.nodes, and its first row
    layers: set[int] = set()  # whose output is asked for, at nodes that were
    reads: set[int] = set()  # whose output at all rows is asked for
    head, leading = False, 0
    for each, job in members:
        run, first, places = each.run, len(tokens), []
        if each.stop == stop:  # computed far enough
            row_of = {row.node: i for i, row in enumerate(job.rows, first)}
            for place, node in enumerate(run.nodes):
                if node in row_of:
                    places.append(place)
                    wanted.append(row_of[node])
        places_of.append((places, first))
        tokens += job.tokens
        positions += job.positions
        head |= run.logits
        leading = max(leading, run.leading)
        layers.update(run.hidden)
        reads.update(run.reads)
    hidden = job.hidden
    if hidden is not None and len(members) > 1:
        hidden = torch.cat([job.hidden for _, job in members if job.hidden is not None])
    batch = Batch.of(
        model,
        tokens,
        positions,
        [job.segment for _, job in members],
        wanted if last else slice(None),
        hidden,
        start=start,
        stop=None if last else stop,
        head=head,
        leading=leading,
        states=tuple(sorted([layer for layer in layers if start < layer <= stop])),
        reads=tuple(sorted([layer for layer in reads if start < layer <= stop])),
    )
    output, seconds = _timed(model, batch, session)
    kept = 0
    for (each, job), (places, first) in zip(members, places_of, strict=True):
        count, answer = len(job.rows), each.answer
        answer.seconds += seconds / len(members)
        answer.rows += count * share
        answer.forwards += 1
        job.session.store(job, None if last else output[first : first + count])
        for layer in each.run.reads:
            if start < layer <= stop:
                each.record_output(layer, [row.node for row in job.rows], batch.read[layer], first)
        if not last:  # what the run asks for of these layers is kept
            each.levels.update(dict.fromkeys(job.segment.slots, stop))
            for layer in each.run.hidden:
                if start < layer <= stop:
                    each.record_output(layer, [row.node for row in job.rows], batch.kept[layer], first)
        if places:
            end = kept + len(places)
            if last:
                whole = end - kept == output.shape[0]
                logits = output if whole else output[kept:end]
                if not each.run.logits:  # they were made for others
                    logits = logits[:, :0]
                states = {
                    layer: batch.kept[layer][kept:end]
                    if layer > start
                    else each.output(layer, [each.run.nodes[place] for place in places])
                    for layer in each.run.hidden
                }
                part = Answer(logits, states)
                part.tops = None if batch.tops is None else batch.tops.of(slice(kept, end))
            else:
                part = Answer(answer.logits, {stop: output[wanted[kept:end]]})
            each.parts.append((places, part))
            kept = end
    return len(tokens) * share


def _timed(model: CausalModel, batch: Batch, session: Session) -> tuple[Tensor, float]:
    """A forward and its seconds."""
    device = session.cache.device
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
    began = perf_counter()
    with threads.together():
        output = model.forward(batch, session.cache)
    if on_cuda:
        torch.cuda.synchronize(device)
    return output, perf_counter() - began
