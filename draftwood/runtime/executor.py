"""Answers model runs: one request at a time, or many requests in one padded forward per model.

Knows batching and the clock around a forward. Knows nothing of trees, sampling and what a run is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

import torch

from draftwood.models.base import Batch, CausalModel
from draftwood.runtime.session import Answer, Decoding, Event, Job, Run

LONG = 32  # cells of a job beyond which it has a forward of its own: its matrix products are busy without others


def execute(runs: Sequence[Run]) -> list[Answer]:
    """Answer runs that share a model, from one padded forward per layer range; long jobs, such as prompts, go alone.

    The seconds of a forward are shared out evenly among the runs in it.
    """
    answers = [Answer(torch.empty(0, run.session.model.vocab_size)) for run in runs]
    todo = [i for i, run in enumerate(runs) if len(run.nodes)]
    while todo:
        jobs = {i: runs[i].session.prepare(runs[i]) for i in todo}
        for layers in sorted({(job.start, job.stop) for job in jobs.values()}):
            members = [i for i in todo if (jobs[i].start, jobs[i].stop) == layers]
            long = [i for i in members if len(jobs[i].slots) > LONG]  # nobody is padded to a prompt's length
            short = [i for i in members if len(jobs[i].slots) <= LONG]
            for group in (*([i] for i in long), *([short] if short else ())):
                _forward([jobs[i] for i in group], [runs[i] for i in group], [answers[i] for i in group])
        todo = [i for i in todo if not jobs[i].last]
    return answers


def _forward(jobs: list[Job], runs: list[Run], answers: list[Answer]) -> None:
    """One forward for jobs of one model and layer range, added to the answers of their runs."""
    session = jobs[0].session
    model, cache = session.model, session.cache
    batch, places = (_single(jobs[0]), [0]) if len(jobs) == 1 else _padded(jobs)
    batch.states = tuple(sorted({layer for run in runs for layer in run.hidden}))
    batch.head = any(run.logits for run in runs)
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(model.device)
    began = perf_counter()
    output = model.forward(batch, cache)
    if cuda:
        torch.cuda.synchronize(model.device)
    seconds = (perf_counter() - began) / len(jobs)
    row = 0
    for place, job, run, answer in zip(places, jobs, runs, answers, strict=True):
        answer.seconds += seconds
        answer.rows += job.rows
        answer.forwards += 1
        if batch.stop is not None:
            hidden = output[place, : len(job.slots)]
            job.session.store(job, hidden)
            if job.last:
                answer.hidden[batch.stop] = hidden[job.wanted]
            continue
        job.session.store(job, None)
        asked = slice(row, row + len(job.wanted))
        if job.last:
            answer.logits = output[asked]
            answer.hidden.update((layer, batch.kept[layer][asked]) for layer in run.hidden)
        row += len(job.wanted)


def _single(job: Job) -> Batch:
    """A batch of one job; its last cell is repeated where the model wants more cells."""
    session = job.session
    model, row, n = session.model, session.row, len(job.slots)
    more = model.cells(n) - n
    tokens, positions, slots, mask, hidden = job.tokens, job.positions, job.slots, job.mask, job.hidden
    if more > 0:
        tokens = tokens + tokens[-1:] * more
        positions = positions + positions[-1:] * more
        slots = slots + [session.cache.capacity - 1] * more
        if mask is not None:
            mask = torch.cat((mask, mask[-1:].expand(more, -1)))
        if hidden is not None:
            hidden = torch.cat((hidden, hidden[-1:].expand(more, -1)))
    table = torch.tensor([[tokens], [positions], [slots]], device=model.device)
    last = job.stop == model.n_layers
    count = len(job.wanted)
    tail = n - count
    # mostly the last cells are asked for, or all of them
    ordered = tail >= 0 and job.wanted == list(range(tail, n))
    return Batch(
        table[0],
        table[1],
        table[2],
        slice(row, row + 1),
        job.span,
        None if mask is None else mask[None],
        slice(tail, n) if ordered or not last else torch.tensor(job.wanted, device=table.device),
        job.start,
        None if last else job.stop,
        None if hidden is None else hidden[None],
    )


def _padded(jobs: list[Job]) -> tuple[Batch, list[int]]:
    """One batch over the contiguous cache rows that cover the jobs; idle rows and short jobs are padded."""
    session = jobs[0].session
    model, cache = session.model, session.cache
    device = model.device
    rows = [job.session.row for job in jobs]
    low, high = min(rows), max(rows) + 1
    width = model.cells(max(len(job.slots) for job in jobs))
    span = max(job.span for job in jobs)
    scratch = cache.capacity - 1
    tokens = [[0] * width for _ in range(low, high)]
    positions = [[0] * width for _ in range(low, high)]
    slots = [[scratch] * width for _ in range(low, high)]
    mask = torch.zeros(high - low, width, span, dtype=torch.bool, device=device)
    mask[:, :, 0] = True  # padding attends to something, so that its softmax is finite
    wanted: list[int] = []
    real: list[int] = []
    places: list[int] = []
    hidden = None
    for job, row in zip(jobs, rows, strict=True):
        place, n = row - low, len(job.slots)
        places.append(place)
        tokens[place][:n] = job.tokens
        positions[place][:n] = job.positions
        slots[place][:n] = job.slots
        if job.mask is None:
            mask[place, 0, : job.span] = True
        else:
            mask[place, :n, : job.span] = job.mask
        real.extend(range(place * width, place * width + n))
        wanted.extend(place * width + cell for cell in job.wanted)
        if job.hidden is not None:
            if hidden is None:
                hidden = job.hidden.new_zeros(high - low, width, job.hidden.shape[-1])
            hidden[place, :n] = job.hidden
    table = torch.tensor([tokens, positions, slots], device=device)
    last = jobs[0].stop == model.n_layers
    batch = Batch(
        table[0],
        table[1],
        table[2],
        slice(low, high),
        span,
        mask,
        torch.tensor(wanted, device=device) if last else slice(None),
        jobs[0].start,
        None if last else jobs[0].stop,
        hidden,
        torch.tensor(real, device=device) if len(real) < (high - low) * width else None,
    )
    return batch, places


def drive(decoding: Decoding[Event]) -> Iterator[Event]:
    """Run one request: answer its model runs one by one and pass its events on."""
    try:
        while True:
            with torch.inference_mode():  # never around a yield: it would leak into the caller
                wish = next(decoding)
                while isinstance(wish, Run):
                    wish = decoding.send(execute((wish,))[0])
            yield wish
    except StopIteration:
        return
    finally:
        decoding.close()


def drive_together(decodings: Iterable[Callable[[], Decoding[Event]]], limit: int) -> Iterator[tuple[int, Event]]:
    """Run many requests, at most `limit` at once: yields (index of the request, its event).

    Each step first answers the runs that draft: on draft models, and on the target's first layers; when nobody waits
    for a draft any more, one padded forward of the target serves all. A request that ends makes room for the next one.
    """
    waiting = enumerate(decodings)
    active: dict[int, Decoding[Event]] = {}
    wishes: dict[int, Run] = {}

    def step(index: int, answer: Answer | None) -> Iterator[Event]:
        """Let one request go on until it wishes for a model again."""
        try:
            with torch.inference_mode():
                wish = next(active[index]) if answer is None else active[index].send(answer)
            while not isinstance(wish, Run):
                yield wish
                with torch.inference_mode():
                    wish = next(active[index])
            wishes[index] = wish
        except StopIteration:
            del active[index]

    try:
        while True:
            while len(active) < limit and (entry := next(waiting, None)) is not None:
                index, make = entry
                active[index] = make()
                for event in step(index, None):
                    yield index, event
            if not active:
                return
            drafting = [i for i, run in wishes.items() if run.drafts]
            groups: dict[tuple[CausalModel, int | None], list[int]] = {}  # parts of the target share its cache
            for i in sorted(drafting or list(wishes)):
                groups.setdefault((wishes[i].session.model, wishes[i].upto), []).append(i)
            for members in groups.values():
                with torch.inference_mode():
                    answers = execute([wishes.pop(i) for i in members])
                for i, answer in zip(members, answers, strict=True):
                    for event in step(i, answer):
                        yield i, event
    finally:
        for decoding in active.values():
            decoding.close()
