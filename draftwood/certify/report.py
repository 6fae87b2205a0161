"""Certificates: all checks of a method with one verdict, and of several methods a report."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

import torch

from draftwood.certify.checks import Budget, Check, Verdict
from draftwood.certify.exactness import CELLS, Advance, rule_check, sampled_check
from draftwood.certify.pair import Pair, greedy_check, position_check
from draftwood.engine import Engine
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.eval import provenance
from draftwood.explain.terminal import method_label
from draftwood.methods import METHODS, Method
from draftwood.params import SamplingParams

Watch = Callable[[str, int, int | None], bool]  # (method and check, steps done, of how many) -> whether to go on


POLL = 0.2  # seconds between looks at whether the work of other processes is still wanted
_unwanted: Event  # in such a process


class Cancelled(Exception):
    """Whoever looks on wants no more."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is certified of a method; not `complete` where it was stopped between checks."""

    method: dict[str, Any]
    lossless: bool
    checks: Sequence[Check]
    complete: bool = True

    @property
    def verdict(self) -> Verdict:
        """FAIL where any check fails; LOSSY of a method that does not claim to be exact; N/A if nothing was done."""
        found = [check.verdict for check in self.checks]
        if "FAIL" in found:
            return "FAIL"
        if not self.lossless:
            return "LOSSY"
        return "PASS" if "PASS" in found else "N/A"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"label": method_label(self.method), **asdict(self), "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Report:
    """Certificates of methods on the same models; not `complete` where it was stopped before the end."""

    certificates: Sequence[Certificate]
    models: dict[str, Any] | None
    environment: dict[str, Any]  # program, machine and moment
    complete: bool

    @property
    def verdict(self) -> Verdict:
        """The worst; LOSSY and N/A only where there is nothing else."""
        found = [certificate.verdict for certificate in self.certificates]
        order: tuple[Verdict, ...] = ("FAIL", "PASS", "LOSSY")
        return next((verdict for verdict in order if verdict in found), "N/A")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "environment": self.environment,
            "models": self.models,
            "verdict": self.verdict,
            "complete": self.complete,
            "certificates": [certificate.as_dict() for certificate in self.certificates],
        }


def certify(
    method: Method,
    engine: Engine | None = None,
    prompts: Sequence[Sequence[int]] = (),
    budget: Budget | None = None,
    params: SamplingParams | None = None,
    watch: Watch | None = None,
) -> Certificate:
    """Every check of a method; those on a real pair where an `engine` and `prompts` (token ids) are given.

    `params` are for the sampled tokens of the pair. A check of the pair that the method cannot take part in, such as
    for want of trained parts, is N/A with the reason. A method that raises an error on tabular models fails.
    """
    budget = budget or Budget()
    pair = Pair(engine, prompts, params or SamplingParams(), budget) if engine is not None and prompts else None
    return _certificate(method, _tabular(method, budget, watch), pair, watch)


Part: TypeAlias = tuple[list[Check], bool]  # some checks of a method; whether all were done
Job: TypeAlias = tuple[str, int | None, Callable[[Advance], Check]]  # name, steps where they are known


def _tabular(method: Method, budget: Budget, watch: Watch | None = None) -> Part:
    seed, runs = budget.seed, budget.runs
    jobs: list[Job] = [
        ("small cases, exact", None, partial(rule_check, method, seed, budget.replays, budget.identities)),
        ("whole outputs, sampled", len(CELLS) * runs, partial(sampled_check, method, seed, runs)),
    ]
    return _checked(method, jobs, watch, DraftwoodError)


def _paired(method: Method, pair: Pair, watch: Watch | None = None) -> Part:
    jobs: list[Job] = [
        ("greedy text of the pair", len(pair.prompts), partial(greedy_check, pair, method)),
        ("sampled tokens of the pair", pair.budget.pair_runs, partial(position_check, pair, method)),
    ]
    return _checked(method, jobs, watch)


def _checked(method: Method, jobs: Sequence[Job], watch: Watch | None, faults: type | tuple[()] = ()) -> Part:
    """A check that raises fails; one that the pair cannot take part in is N/A, unless such errors are `faults`."""
    checks: list[Check] = []
    for name, steps, run in jobs:
        done = 0

        def advance(count: int = 1) -> None:
            nonlocal done
            done += count
            if watch is not None and not watch(f"{method.name}: {name}", done, steps):  # noqa: B023
                raise Cancelled

        try:
            advance(0)
            checks.append(run(advance))
        except Cancelled:
            return checks, False
        except Exception as error:
            failed = isinstance(error, faults) or not isinstance(error, DraftwoodError)
            text = f"{type(error).__name__}: {error}" if failed else str(error)
            checks.append(Check(name, "FAIL" if failed else "N/A", text))
    return checks, True


def _certificate(method: Method, tabular: Part, pair: Pair | None, watch: Watch | None) -> Certificate:
    paired: Part = _paired(method, pair, watch) if pair is not None and tabular[1] else ([], True)
    return Certificate(method.as_dict(), method.lossless, [*tabular[0], *paired[0]], tabular[1] and paired[1])


def _begin(unwanted: Event) -> None:
    """A process that shares the work: it has one core, and ends when its parent says so, not with Ctrl-C."""
    global _unwanted
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _unwanted = unwanted


def _shared(method: Method, budget: Budget) -> Part:
    return _tabular(method, budget, lambda *_: not _unwanted.is_set())


def _waited(part: Future[Part], method: Method, budget: Budget, watch: Watch | None, unwanted: Event) -> Part:
    """What another process does, as far as it is wanted; done here where that process was killed."""
    try:
        while not part.done():
            if watch is not None and not watch(f"{method.name}: small cases, whole outputs", 0, None):
                unwanted.set()
            wait([part], POLL)
        return part.result()
    except BrokenProcessPool:
        return _tabular(method, budget, watch)


RULES: tuple[dict[str, Any], ...] = (
    {"name": "speculative", "verify": "rejection"},
    {"name": "speculative", "verify": "coupled"},
    {"name": "speculative", "lookup": True},
    {"name": "mcsd", "verify": "rejection"},
    {"name": "mcsd", "verify": "coupled"},
    {"name": "mcsd", "verify": "kseq", "replacement": True},
    {"name": "mcsd", "draws": "greedy"},
    {"name": "eagle", "lookup": True},
    {"name": "eagle", "width": 3},
    {"name": "eagle", "width": 3, "drafts": "best"},
)


def every_method() -> list[Method]:
    """Every method with its usual options, then `RULES`: other rules and draws, once each on trees or chains."""
    return [*map(Method.parse, METHODS), *map(Method.parse, RULES)]


def certify_each(
    methods: Iterable[Method],
    engine: Engine | None = None,
    prompts: Sequence[Sequence[int]] = (),
    budget: Budget | None = None,
    params: SamplingParams | None = None,
    watch: Watch | None = None,
    processes: int = 0,
) -> Report:
    """`certify` of several methods; those that need other draft models than the engine has are checked without it.

    `watch` is told of every step; where it stops the work, the report holds what was finished. So many `processes`
    beside this one, which checks the engine's models, do what needs only tabular ones; they are spawned, so a program
    that asks for them keeps its own work under `if __name__ == "__main__"`.
    """
    budget = budget or Budget()
    pair = Pair(engine, prompts, params or SamplingParams(), budget) if engine is not None and prompts else None
    place = (torch.device("cpu"),) if engine is None else (engine.target.device, engine.names.get("backend"))
    environment = provenance.session(*place)
    methods, found = list(methods), list[Certificate]()
    with ExitStack() as stack:
        parts: list[Future[Part]] = []
        if processes:
            context = get_context("spawn")
            unwanted = context.Event()
            pool = stack.enter_context(ProcessPoolExecutor(processes, context, _begin, (unwanted,)))
            stack.callback(unwanted.set)
            parts = [pool.submit(_shared, method, budget) for method in methods]
        for number, method in enumerate(methods):
            tabular = (
                _waited(parts[number], method, budget, watch, unwanted) if parts else _tabular(method, budget, watch)
            )
            if tabular[0] or not found or found[-1].complete:
                found.append(_certificate(method, tabular, pair if _fits(engine, method) else None, watch))
            if not found[-1].complete and not parts:
                break
    models = None if engine is None else engine.names
    return Report(found, models, environment, all(one.complete for one in found))


def _fits(engine: Engine | None, method: Method) -> bool:
    try:
        return engine is not None and bool(engine.method(method))
    except ConfigurationError:
        return False
