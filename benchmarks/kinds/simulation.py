"""Replicas behind a router, event by event, without models and without a clock: what very many clients would wait for.

Which replica gets a request is decided by the router's own rule (draftwood/cluster/prefix_routing.py), which rows a
pass computes by the scheduler's own (runtime/policy.py), and what it takes by measured curves
(runtime/cost.py). Decoding is plain.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Self

from draftwood.cluster.prefix_routing import PrefixLocations
from draftwood.runtime.cost import Curve
from draftwood.runtime.policy import Policy, Wanted
from draftwood.runtime.prefix import FEWEST


class Asked(NamedTuple):
    """A request as its client makes it; it begins as the client's request before did."""

    prompt: int  # tokens
    tokens: int  # that are to be made
    blocks: Sequence[int]  # of the prompt, for the router


@dataclass(frozen=True, slots=True)
class Machine:
    """What a pass takes: `curves[k]` are those of a replica while k others compute on the same machine.

    The machine's cores carry out the passes of its replicas, and what server, router and clients do for each token.
    """

    curves: Sequence[Curve]
    cores: int
    threads: int = 1  # cores that a pass uses
    handling: float = 0.0  # processor seconds per token outside of passes
    reach: float = 0.0  # seconds that a request is on its way, there and back

    def seconds(self, rows: int, requests: int, busy: int = 1) -> float:
        """Of a pass while so many replicas are busy here: as measured, or as long as the cores take for all work."""
        alone = self.curves[min(busy, len(self.curves)) - 1].seconds(rows, requests)
        return max(alone, busy * (alone * self.threads + requests * self.handling) / self.cores)


@dataclass(slots=True, eq=False)
class Request:
    """A request on its way; times are seconds since the start."""

    client: int
    of: Asked
    asked: float
    came: float = 0.0  # in the replica's queue
    admitted: float = 0.0
    first: float = 0.0  # its first token
    done: float = 0.0
    reused: int = 0  # tokens of the prompt that the replica has kept
    rows: int = 0  # still to be computed for the next token
    made: int = 0  # tokens


@dataclass(slots=True, eq=False)
class Replica:
    """A scheduler, and what it keeps of each client's last prompt; the last used last."""

    name: str
    waiting: deque[Request] = field(default_factory=deque)
    active: list[Request] = field(default_factory=list)
    computing: list[tuple[Request, int]] = field(default_factory=list)  # the pass that goes on: requests, rows of each
    kept: OrderedDict[int, Request] = field(default_factory=OrderedDict)
    held: int = 0  # tokens of what is kept


class Simulation:
    """So many replicas, all on one machine where it is `shared`, else each on one of its own.

    `running`: requests that share a replica's passes; `room`: tokens of earlier prompts that a replica keeps.
    """

    def __init__(
        self,
        machine: Machine,
        replicas: int,
        running: int = 64,
        room: float = float("inf"),
        shared: bool = False,
        unbalanced: int = 8,
    ) -> None:
        self.machine, self.running, self.room, self.shared = machine, running, room, shared
        self.replicas = {name: Replica(name) for name in map(str, range(replicas))}
        self.queues = dict.fromkeys(self.replicas, 0)  # requests that run or wait
        self.router, self.policy = PrefixLocations(unbalanced), Policy()
        self.now = 0.0
        self.worked = 0.0  # seconds of all passes
        self.waited = 0.0  # requests in queues x seconds
        self.waiting = 0
        self.done: list[Request] = []

    @property
    def times(self) -> list[tuple[float, float]]:
        """Seconds of each request to its first and to its last token."""
        return [(request.first - request.asked, request.done - request.asked) for request in self.done]

    def run(self, clients: Sequence[Sequence[Asked]]) -> Self:
        """All clients at once, each with one request after the other."""
        order, coming = count(), [iter(each) for each in clients]
        events: list[tuple[float, int, Request | Replica]] = []  # a request comes, or a replica's pass ends

        def ask(client: int) -> None:
            if (asked := next(coming[client], None)) is not None:
                heappush(events, (self.now + self.machine.reach, next(order), Request(client, asked, self.now)))

        for client in range(len(clients)):
            ask(client)
        while events:
            at, _, what = heappop(events)
            self.waited += self.waiting * (at - self.now)
            self.now = at
            if isinstance(what, Request):
                replica = self._route(what)
            else:
                replica = what
                for request in self._answer(replica):
                    ask(request.client)
            if not replica.computing and (seconds := self._compute(replica)):
                heappush(events, (at + seconds, next(order), replica))
        return self

    def _route(self, request: Request) -> Replica:
        """A request comes to the replica that the router chooses."""
        name = self.router.ranked(request.of.blocks, self.queues)[0]
        self.router.add(request.of.blocks, name)
        self.queues[name] += 1
        self.waiting += 1
        request.came = self.now
        self.replicas[name].waiting.append(request)
        return self.replicas[name]

    def _compute(self, replica: Replica) -> float:
        """Admit what waits, and begin a pass; its seconds."""
        while replica.waiting and len(replica.active) < self.running:
            request = replica.waiting.popleft()
            self.waiting -= 1
            request.admitted = self.now
            if (before := replica.kept.pop(request.client, None)) is not None:
                replica.held -= _slots(before)
                request.reused = before.of.prompt if before.of.prompt >= FEWEST else 0
            request.rows = request.of.prompt - request.reused
            replica.active.append(request)
        curve, rows = self.machine.curves[0], [Wanted(request.rows, 1, request) for request in replica.active]
        limits = self.policy.limits(rows, curve.seconds, curve.piece)
        replica.computing = [each for each in zip(replica.active, limits, strict=True) if each[1]]
        if not replica.computing:
            return 0.0
        busy = sum(bool(each.computing) for each in self.replicas.values()) if self.shared else 1
        seconds = self.machine.seconds(sum(limits), len(replica.computing), busy)
        self.worked += seconds
        return seconds

    def _answer(self, replica: Replica) -> Iterator[Request]:
        """A pass has ended: a token for each request that has no rows left. Those that are done."""
        for request, rows in replica.computing:
            request.rows -= rows
            if request.rows:
                continue
            request.rows, request.made = 1, request.made + 1
            if request.made == 1:
                request.first = self.now
            if request.made == request.of.tokens:
                request.done = self.now
                self.queues[replica.name] -= 1
                replica.active.remove(request)
                self._keep(replica, request)
                self.done.append(request)
                yield request
        replica.computing = []

    def _keep(self, replica: Replica, request: Request) -> None:
        replica.kept[request.client] = request
        replica.held += _slots(request)
        while replica.held > self.room:
            replica.held -= _slots(replica.kept.popitem(last=False)[1])


def _slots(request: Request) -> int:
    return request.of.prompt + request.of.tokens
