"""`draftwood batch`: a file of requests into a file of answers."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from draftwood.cli.groups import OUTPUT, MethodOptions, ModelOptions, OutputOptions
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress
from draftwood.cli.scaling import RayOptions, needed

if TYPE_CHECKING:
    from draftwood.methods import Method
    from draftwood.serve.batch import Answerer

REQUESTS = "Requests"


def batch(
    *,
    source: Path = flag(..., "Requests, one per line, or a Parquet file.", "FILE", argument=True),
    out: Path = flag(..., "File of answers; the same command resumes.", "FILE", panel=OUTPUT),
    default: list[str] = flag(
        [], "A field for requests that lack it, such as max_tokens=64. Repeatable.", "KEY=VALUE", panel=REQUESTS
    ),
    concurrency: int | None = flag(
        None, "Requests at once.", panel=REQUESTS, usual="--max-running, of each engine", ge=1
    ),
    parts: Literal["jsonl", "parquet"] | None = flag(
        None, "Make --out a directory of files of this kind with 1,000 answers each.", panel=OUTPUT
    ),
    models: ModelOptions,
    decoding: MethodOptions,
    scaling: RayOptions,
    output: OutputOptions,
) -> None:
    """Run a file of requests in OpenAI's batch format; resumable.

    A line is {"custom_id": ..., "url": "/v1/chat/completions", "body": {...}}, or a
    body alone, such as {"prompt": ..., "max_tokens": 40}. Answers are written as
    they finish, with the custom_id of the request (line-N if it has none). An
    invalid request is answered with an error, and the exit code is then 1.
    --replicas 4 --ray uses four engines.
    """
    from draftwood.util import config

    with needed("batches need", "serve"):
        from draftwood.serve.batch import BatchProgress, by_engine, complete
    fields = config.assignments(default, "--default")
    if parts is None:
        check_writable(out)
    method = decoding.chosen(models.drafts)
    answerer = _on_ray(models, method, scaling, concurrency) if scaling.wanted else None
    answerer = answerer or by_engine(partial(models.load, method), method, concurrency)
    outcome = BatchProgress(0, 0, 0, 0)
    interrupted = False
    with progress(output.color, "answering") as update:

        def report(now: BatchProgress) -> None:
            nonlocal outcome
            outcome = now
            update(completed=now.answered, total=now.requests)

        try:
            complete(answerer, source, out, fields, report, parts)
        except KeyboardInterrupt:
            interrupted = True
    output.give(
        {"out": str(out), **asdict(outcome)},
        f"{out}: {outcome.answered} of {outcome.requests} requests answered, {outcome.made} of them now, "
        f"{outcome.failed} with an error",
    )
    if interrupted:
        sys.exit(130)
    if outcome.failed:
        sys.exit(1)


def _on_ray(models: ModelOptions, method: Method | None, scaling: RayOptions, concurrency: int | None) -> Answerer:
    from draftwood.util import config

    with needed("batches on Ray need", "scale"):
        from draftwood.cluster.batch import by_ray
        from draftwood.cluster.spec import EngineSpec
    spec = config.parse(EngineSpec, scaling.engine(models, method), "batch")
    return by_ray(spec, scaling.replicas, concurrency, scaling.ray_address)
