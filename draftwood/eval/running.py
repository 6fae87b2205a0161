"""Methods meet tasks: every method, task and seed through one loop, in turns, into a store that survives a kill."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, zip_longest
from time import perf_counter
from typing import Any

import torch

from draftwood.core.records import Round
from draftwood.engine.engine import Engine
from draftwood.engine.engine_map import EngineMap, alone
from draftwood.engine.metrics import ADDED, LATER, Metrics
from draftwood.engine.results import GenerationResult
from draftwood.eval import provenance
from draftwood.eval.energy import Meter
from draftwood.eval.store import CONTENTS, Store, failed, key_of, plain
from draftwood.eval.tasks import Instance, Task
from draftwood.eval.tasks.base import digest
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams
from draftwood.util.jsonl import Record
from draftwood.util.resident import give_back

WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """The measurements of an evaluation. The first method is the baseline."""

    methods: Sequence[Method]
    tasks: Sequence[tuple[Task, Sequence[Instance]]]
    sampling: SamplingParams
    seeds: Sequence[int]
    warmup: int = 1  # runs of each method that do not count, per session

    def configuration(self, engine: Engine) -> dict[str, Any]:
        """All that decides texts and scores, as plain data: what a directory of results belongs to."""
        return {
            "models": {**engine.names, "device": str(engine.target.device)},
            "methods": [method.as_dict() for method in self.methods],
            "lossless": [method.lossless for method in self.methods],
            "tasks": [
                {
                    **task.as_dict(),
                    "metric": task.headline,
                    "items": len(items),
                    "hash": digest([i.hash for i in items]),
                }
                for task, items in self.tasks
            ],
            "sampling": self.sampling.model_dump(mode="json"),
            "seeds": list(self.seeds),
            "seeded": "by item and turn",  # earlier directories: all requests of a seed with it alone
            CONTENTS: provenance.contents(engine, self.methods),
        }

    def extends(self, there: Mapping[str, Any], engine: Engine) -> bool:
        """Whether a configuration is this one with fewer seeds, or fewer of its tasks' first items."""
        sizes = [task.get("items") for task in there.get("tasks", ())]
        if len(sizes) != len(self.tasks):
            return False
        tasks = [(task, items[:size]) for (task, items), size in zip(self.tasks, sizes, strict=True)]
        smaller = replace(self, tasks=tasks, seeds=self.seeds[: len(there.get("seeds", ()))])
        return bool(plain(smaller.configuration(engine)) == there)

    def jobs(self) -> list[EvalJob]:
        """All runs in their order: item by item over all tasks, and for each every method, in an order drawn for it."""
        result = []
        longest = max(len(items) for _, items in self.tasks)
        for place in range(longest):
            for task, items in self.tasks:
                for seed in self.seeds if place < len(items) else ():
                    turn = [
                        EvalJob(task, items[place], place, number, self.methods[number], seed) for number in self.order
                    ]
                    random.Random(f"{items[place].hash} {seed}").shuffle(turn)
                    result += turn
        return result

    @property
    def order(self) -> range:
        return range(len(self.methods))


@dataclass(frozen=True, slots=True)
class EvalJob:
    """One run: a method on an instance with a seed."""

    task: Task
    instance: Instance
    place: int  # of the instance in its task
    number: int  # of the method in the plan
    method: Method
    seed: int

    @property
    def key(self) -> str:
        return key_of(self.instance.hash, self.place, self.method.as_dict(), self.seed)

    def request_seed(self, turn: int) -> int:
        """The seed of a turn's request, the same for all methods.

        Another for each item: with one for all of them, their tokens would be drawn with the same random numbers, so
        that items would not be independent, as the intervals take them to be.
        """
        return int(digest([self.instance.hash, self.seed, turn])[:15], 16)


@dataclass(slots=True)
class Runner:
    """Runs what a store does not have yet."""

    engine: Engine
    plan: EvalPlan
    meter: Meter = field(default_factory=lambda: Meter([]))

    def missing(self, store: Store) -> list[EvalJob]:
        """Runs that are still to be made, and those that failed, which are tried again."""
        return [job for job in self.plan.jobs() if job.key not in store.records or failed(store.records[job.key])]

    def run(
        self, store: Store, on_job: Callable[[EvalJob], None] = lambda job: None, engines: EngineMap | None = None
    ) -> None:
        """Make all missing runs. A run that fails is recorded as such; the others do not notice.

        `engines` share the items, by default it is the one; all methods of an item are run by the same engine.
        """
        todo = self.missing(store)
        turns = [list(turn) for _, turn in groupby(todo, key=lambda job: (job.task.name, job.place, job.seed))]
        if engines is None:
            records = alone(self.engine)(lambda engine: self.ready(todo), turns)
        else:
            records = engines(partial(_elsewhere, self.plan, todo), turns)
        each = chain.from_iterable(records)
        for job in todo:
            on_job(job)
            store.add(job.key, next(each))

    def ready(self, todo: Sequence[EvalJob]) -> Callable[[Sequence[EvalJob]], Iterator[Record]]:
        """Warm up, and return a function that makes the runs of some jobs, one after the other."""
        self._warm_up(todo)

        def records(jobs: Sequence[EvalJob]) -> Iterator[Record]:
            give_back()  # large vocabularies leave free pages, which would add up over hours without a rest
            yield from map(self.record, jobs)

        return records

    def _warm_up(self, todo: Sequence[EvalJob]) -> None:
        """Let caches grow and kernels be chosen on the first prompt of each task; failures will show when it counts."""
        first: dict[tuple[str, int], EvalJob] = {}
        for job in todo:
            first.setdefault((job.task.name, job.number), job)
        for job in first.values():
            for _ in range(self.plan.warmup):
                try:
                    self._decode(job, job.instance.prompt(), WARM_TOKENS)
                except Exception:
                    break

    def record(self, job: EvalJob) -> Record:
        """One run, as a line of the store."""
        instance = job.instance
        record: Record = {
            "task": job.task.name,
            "item": instance.item,
            "place": job.place,
            "group": instance.group,
            "cluster": job.task.cluster(instance),
            "instance": instance.hash,
            "method": job.number,
            "seed": job.seed,
            "request_seeds": [job.request_seed(turn) for turn in range(len(instance.turns))],
        }
        results: list[GenerationResult] = []
        seconds = 0.0
        try:
            self._settle()
            self.meter.start()
            for turn in range(len(instance.turns)):
                answers = [result.text for result in results]
                result, took = self._decode(job, instance.prompt(answers), instance.max_new_tokens, turn)
                results.append(result)
                seconds += took
            record["joules"] = self.meter.stop()
        except Exception as error:  # of whatever kind: one item must not end all others
            return {**record, "status": "failed", "stage": "decode", "error": named(error)}
        answers = [result.text for result in results]
        record |= {
            "prompt_hash": digest([result.prompt_tokens for result in results]),
            "prompt_tokens": sum(len(result.prompt_tokens) for result in results),
            "output": answers[0] if len(answers) == 1 else answers,
            "finish": [result.finish_reason for result in results],
            "tokens": sum(len(result.tokens) for result in results),
            "token_hash": digest([result.tokens for result in results]),
            "nats": -sum(sum(result.logprobs) for result in results),  # under the target's untouched softmax
            "seconds": seconds,
            "rounds": rounds_of([result.metrics for result in results])
            | by_round([round_ for result in results for round_ in result.rounds])
            | {"predicted_layers": sum((each.predicted_layers or 0.0) * each.metrics.rounds for each in results)},
        }
        try:
            scores = job.task.score(instance, answers)
        except Exception as error:
            return {**record, "status": "failed", "stage": "score", "error": named(error)}
        return {**record, "status": "ok", "scores": scores}

    def _decode(
        self, job: EvalJob, prompt: str | list[dict[str, str]], limit: int, turn: int = 0
    ) -> tuple[GenerationResult, float]:
        """A result, and seconds from token ids to token ids."""
        tokens = self.engine.tokens(prompt)
        limit = min(limit, job.instance.max_new_tokens)
        sampling, stop = self.plan.sampling, job.instance.stop
        with self.engine.scheduler.prefixes.off():
            began = perf_counter()
            result = self.engine.generate(tokens, job.method, sampling, limit, job.request_seed(turn), stop=stop)
            self._settle()
            return result, perf_counter() - began

    def _settle(self) -> None:
        """Wait for the device, so that no run pays for another one's work."""
        if self.engine.target.device.type == "cuda":
            torch.cuda.synchronize(self.engine.target.device)


def _elsewhere(
    plan: EvalPlan, todo: Sequence[EvalJob], engine: Engine
) -> Callable[[Sequence[EvalJob]], Iterator[Record]]:
    """`Runner.ready` in another process, where energy is not measured: others work at the same time."""
    return Runner(engine, plan).ready(todo)


def named(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


BY_POSITION = ("attempted_at", "accepted_at")
HISTOGRAMS = ("width_counts", "depth_counts")


def rounds_of(metrics: Sequence[Metrics]) -> dict[str, Any]:
    """The rounds of one item in sums, over its turns; field names are those of `draftwood.engine.metrics.Metrics`."""
    result: dict[str, Any] = {name: sum(getattr(each, name) for each in metrics) for name in (*ADDED, *LATER)}
    for name in BY_POSITION:
        result[name] = added([getattr(each, name) for each in metrics])
    result["peak_slots"] = max(each.peak_slots for each in metrics)
    return result


def by_round(rounds: Sequence[Round]) -> dict[str, Any]:
    """Counts that need single rounds.

    Entry n of `width_counts`: layers of n beams, all hypotheses counted; of `depth_counts`: rounds n drafts deep.
    """
    return {
        "width_counts": counted([layer.width for round_ in rounds for layer in round_.layers]),
        "depth_counts": counted([round_.depth_accepted for round_ in rounds]),
    }


def counted(values: Sequence[int]) -> list[int]:
    """Count the values that are 0, 1, ..."""
    return [values.count(value) for value in range(max(values, default=-1) + 1)]


def added(lists: Sequence[Sequence[int]]) -> list[int]:
    """Sums by place of lists of different lengths."""
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


def grouped(records: Mapping[str, Record]) -> Iterator[tuple[tuple[str, int], list[Record]]]:
    """Records by task and method, in the order of items and seeds, whatever the order in which they were made."""
    result: dict[tuple[str, int], list[Record]] = {}
    for record in records.values():
        result.setdefault((record["task"], record["method"]), []).append(record)
    for key, group in result.items():
        yield key, sorted(group, key=lambda record: (record["place"], record["seed"]))
