"""A training run that processes on Ray share: each computes its part of every step, gradients are averaged."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator, Iterator
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from draftwood.cluster.sharing import actor_error
from draftwood.cluster.spec import EngineSpec
from draftwood.train.runs import MakeRun, StepReport, Trainer, train
from draftwood.train.settings import Saving

log = logging.getLogger(__name__)

MAX_RETRIES = 3  # in a row that get no further

Address = tuple[str, int]


class TrainingProcess:
    """An actor: one process of a run, which works in the directory where the command was started."""

    def __init__(self, place: str, threads: int) -> None:
        os.chdir(place)
        torch.set_num_threads(threads)

    def address(self) -> Address:
        """An address on this machine at which the processes can meet."""
        with socket.socket() as trial:
            trial.bind(("", 0))
            return ray.util.get_node_ip_address(), trial.getsockname()[1]

    def join(self, rank: int, count: int, address: Address, make: MakeRun, saving: Saving) -> None:
        """Be one process of `count`."""
        host, port = address
        meeting = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in meeting.items()})
        self.run = train(make, saving)

    def next_report(self) -> StepReport | None:
        """Train up to the run's next report; None: the run is over."""
        return next(self.run, None)


def on_ray(spec: EngineSpec, replicas: int) -> Trainer:
    """Processes in actors of the Ray that was started. Where one dies, all go on from the last save."""

    def trained(make: MakeRun, saving: Saving) -> Generator[StepReport, None, None]:
        left, reached = MAX_RETRIES, -1
        while True:
            try:
                for report in _together(spec, replicas, make, saving):
                    if report.step > reached:
                        left, reached = MAX_RETRIES, report.step
                    yield report
                return
            except RayError as error:
                why, left = actor_error(error, "a process of the run stopped"), left - 1
                if not left or why is getattr(error, "cause", None):
                    raise why from None
                log.warning("%s; all go on from the last save", why)

    return trained


def _together(spec: EngineSpec, replicas: int, make: MakeRun, saving: Saving) -> Iterator[StepReport]:
    """The reports of a run's first process, until all have ended. Raises RayError where one of them fails."""
    how: dict[str, Any] = {**spec.resources, "max_restarts": 0}
    actors = [ray.remote(TrainingProcess).options(**how).remote(os.getcwd(), spec.threads) for _ in range(replicas)]
    try:
        address = ray.get([actor.address.remote() for actor in actors])[0]  # when all are there
        for rank, actor in enumerate(actors):
            actor.join.remote(rank, replicas, address, make, saving)
        running = {actor.next_report.remote(): actor for actor in actors}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            actor = running.pop(ready)
            if (report := ray.get(ready)) is not None:
                running[actor.next_report.remote()] = actor
                yield report
    finally:
        for actor in actors:
            ray.kill(actor)
