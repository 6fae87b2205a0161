"""Batches on Ray: requests are mapped by actors with an engine each, and answers are kept here as they come."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import RayError

from draftwood.cluster.sharing import actor_error
from draftwood.cluster.spec import EngineSpec
from draftwood.cluster.starting import started
from draftwood.serve.batch import Answerer, BatchEntry, Keep, answer, application

ROWS_PER_CALL = 4  # requests that travel together; their answers come back together


class AnsweringActor:
    """An actor's engine, and the event loop in which its requests share the forwards."""

    def __init__(self, spec: dict[str, Any]) -> None:
        made = EngineSpec.model_validate(spec)
        self.app = application(made.engine(), made.method)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """Answer some requests; called by several threads at once."""
        entries = [BatchEntry(**json.loads(row)) for row in rows["request"]]

        async def together() -> list[str]:
            return [json.dumps(one) for one in await asyncio.gather(*(answer(self.app, one) for one in entries))]

        return {"answer": asyncio.run_coroutine_threadsafe(together(), self.loop).result()}


def by_ray(spec: EngineSpec, replicas: int, concurrency: int | None, address: str | None) -> Answerer:
    """Engines in actors, `concurrency` requests at once in each. An actor that dies is replaced, its requests go on."""

    def answerer(entries: Iterable[BatchEntry], keep: Keep) -> None:
        rows = [{"request": json.dumps(asdict(entry))} for entry in entries]
        threads = math.ceil((concurrency or int(spec.models.get("max_running", 64))) / ROWS_PER_CALL)
        with started(address, replicas * spec.resources["num_cpus"] + 1, replicas * spec.gpus):
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            context.print_on_execution_start = False
            pool = ray.data.ActorPoolStrategy(
                size=replicas,
                max_tasks_in_flight_per_actor=2 * threads,
                max_concurrent_calls_per_actor=threads,
                enable_true_multi_threading=True,
            )
            dataset = ray.data.from_items(rows, override_num_blocks=math.ceil(len(rows) / ROWS_PER_CALL)).map_batches(
                AnsweringActor,
                fn_constructor_args=(spec.model_dump(mode="json"),),
                batch_size=None,
                compute=pool,
                **spec.resources,
            )
            try:
                for row in dataset.iter_rows():
                    keep(json.loads(row["answer"]))
            except RayError as error:
                raise actor_error(error, "the batch stopped") from None

    return answerer
