"""Certificates: all checks of a method with one verdict, and of several methods a report."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any, TypeAlias

import torch

from draftwood.certify.checks import Advance, Budget, Check, CheckVerdict
from draftwood.certify.constrained import CHECK_NAME, constrained_check
from draftwood.certify.exactness import SAMPLED_CELLS, rule_check, sampled_check
from draftwood.certify.pair import ModelPair, greedy_check, position_check
from draftwood.certify.streams import stream_check
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.eval import provenance
from draftwood.explain.terminal import method_label
from draftwood.methods import METHODS, Method
from draftwood.sampling.params import SamplingParams

Watch = Callable[[str, int, int | None], bool]  # (method and check, steps done, of how many) -> whether to go on
POLL_SECONDS = 0.2  # seconds between looks at whether the work of other processes is still wanted
_unwanted: Event  # in such a process


class Cancelled(Exception):
    """The caller's progress function asked to stop."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The checks of a method and their results; not `complete` where it was stopped between checks."""

    method: dict[str, Any]
    lossless: bool
    checks: Sequence[Check]
    complete: bool = True

    @property
    def verdict(self) -> CheckVerdict:
        """FAIL where any check fails; LOSSY of a method that does not claim to be exact; N/A if nothing was done."""
        verdicts = [check.verdict for check in self.checks]
        if "FAIL" in verdicts:
            return "FAIL"
        if not self.lossless:
            return "LOSSY"
        return "PASS" if "PASS" in verdicts else "N/A"

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
    def verdict(self) -> CheckVerdict:
        """The worst; LOSSY and N/A only where there is nothing else."""
        verdicts = [certificate.verdict for certificate in self.certificates]
        order: tuple[CheckVerdict, ...] = ("FAIL", "PASS", "LOSSY")
        return next((verdict for verdict in order if verdict in verdicts), "N/A")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "environment": self.environment,
            "models": self.models,
            "verdict": self.verdict,
            "complete": self.complete,
            "certificates": [certificate.as_dict() for certificate in self.certificates],
        }


def _pair(
    engine: Engine | None, prompts: Sequence[Sequence[int]], params: SamplingParams | None, budget: Budget
) -> ModelPair | None:
    return None if engine is None or not prompts else ModelPair(engine, prompts, params or SamplingParams(), budget)


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
    return _certificate(method, *_in_turn(method, _pair(engine, prompts, params, budget), budget, watch, []))


Checked: TypeAlias = tuple[list[Check], bool]  # some checks of a method; whether all were done
CheckJob: TypeAlias = tuple[str, int | None, Callable[[Advance], Check]]  # name, steps where they are known
Jobs: TypeAlias = dict[str, Callable[[Method, Budget, Advance], Check]]

OF_A_METHOD: Jobs = {
    "small cases, exact": lambda method, b, advance: rule_check(method, b.seed, b.replays, b.identities, advance),
    "whole outputs, sampled": lambda method, b, advance: sampled_check(method, b.seed, b.runs, advance),
    CHECK_NAME: lambda method, b, advance: constrained_check(method, b.seed, b.replays, b.identities, advance),
}
OF_ALL: Jobs = {"random numbers": lambda method, b, advance: stream_check(b.seed, b.seeds, advance)}  # done once


def _tabular(method: Method, budget: Budget, watch: Watch | None, names: Iterable[str] = tuple(OF_A_METHOD)) -> Checked:
    steps = {"whole outputs, sampled": len(SAMPLED_CELLS) * budget.runs}
    every = OF_A_METHOD | OF_ALL
    jobs = [(name, steps.get(name), partial(every[name], method, budget)) for name in names]
    return _checked(method, jobs, watch, DraftwoodError)


def _paired(method: Method, pair: ModelPair | None, watch: Watch | None) -> Checked:
    if pair is None:
        return [], True
    jobs: list[CheckJob] = [
        ("greedy text of the pair", len(pair.prompts), partial(greedy_check, pair, method)),
        ("sampled tokens of the pair", pair.budget.pair_runs, partial(position_check, pair, method)),
    ]
    return _checked(method, jobs, watch)


def _checked(method: Method, jobs: Sequence[CheckJob], watch: Watch | None, faults: type | tuple[()] = ()) -> Checked:
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


def _in_turn(
    method: Method, pair: ModelPair | None, budget: Budget, watch: Watch | None, numbers: list[Checked]
) -> tuple[Checked, ...]:
    """The checks of a method; `numbers` holds that of random numbers once it was done."""
    tabular = _tabular(method, budget, watch)
    if tabular[1] and not numbers:
        numbers.append(_tabular(method, budget, watch, OF_ALL))
    before = [tabular, *(numbers if tabular[1] else ())]
    return *before, _paired(method, pair if all(done for _, done in before) else None, watch)


def _certificate(method: Method, *parts: Checked) -> Certificate:
    checks = [check for some, _ in parts for check in some]
    return Certificate(method.as_dict(), method.lossless, checks, all(done for _, done in parts))


def _begin(unwanted: Event) -> None:
    """A process that shares the work: it has one core, and ends when its parent says so, not with Ctrl-C."""
    global _unwanted
    torch.set_num_threads(1)
    gc.freeze()  # libraries and this package stay
    gc.set_threshold(50_000)  # generations leave few cycles
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _unwanted = unwanted
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End this process when the one that it works for was killed: nothing else would."""
    parent.join()
    os._exit(1)


def _shared(method: Method, budget: Budget, name: str) -> Checked:
    return _tabular(method, budget, lambda *_: not _unwanted.is_set(), (name,))


def _side_by_side(
    methods: Sequence[Method],
    pairs: Sequence[ModelPair | None],
    budget: Budget,
    watch: Watch | None,
    processes: int,
) -> Iterator[tuple[Checked, ...]]:
    """The checks of every method: tabular ones by other processes, those of the pair here meanwhile, on one thread.

    Enumerations, which differ most in length, are begun first: no process waits for long in the end. What a process did
    not do since it was killed is done here.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        context = get_context("spawn")
        unwanted = context.Event()
        pool = stack.enter_context(ProcessPoolExecutor(processes, context, _begin, (unwanted,)))
        stack.callback(unwanted.set)
        parts = [[pool.submit(_shared, method, budget, name) for method in methods] for name in OF_A_METHOD]
        parts += [[pool.submit(_shared, methods[0], budget, name)] * len(methods) for name in OF_ALL]

        def result(part: Future[Checked], method: Method, name: str) -> Checked:
            try:
                while not part.done():
                    if watch is not None and not watch(f"{method.name}: small cases, whole outputs", 0, None):
                        unwanted.set()
                    wait([part], POLL_SECONDS)
                return part.result()
            except BrokenProcessPool:
                return _tabular(method, budget, watch, (name,))

        paired = [_paired(method, pair, watch) for method, pair in zip(methods, pairs, strict=True)]
        for method, own, *others in zip(methods, paired, *parts, strict=True):
            names = *OF_A_METHOD, *OF_ALL
            yield *(result(part, method, name) for part, name in zip(others, names, strict=True)), own


RULES: tuple[dict[str, Any], ...] = (
    {"name": "speculative", "verify": "rejection"},
    {"name": "speculative", "verify": "coupled"},
    {"name": "speculative", "lookup": True},
    {"name": "mcsd", "verify": "rejection"},
    {"name": "mcsd", "verify": "coupled"},
    {"name": "mcsd", "verify": "kseq", "replacement": True},
    {"name": "mcsd", "draws": "greedy"},
    {"name": "mcsd", "lookup": True},
    {"name": "specinfer", "lookup": True},
    {"name": "eesd", "lookup": True},
    {"name": "self-spec", "lookup": True},
    {"name": "eagle", "lookup": True},
    {"name": "eagle", "width": 3},
    {"name": "eagle", "width": 3, "drafts": "best"},
    {"name": "dflash", "width": 3},
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
    pair = _pair(engine, prompts, params, budget)
    place = (torch.device("cpu"),) if engine is None else (engine.target.device, engine.names.get("backend"))
    environment = provenance.session(*place)
    methods, certificates = list(methods), list[Certificate]()
    pairs = [pair if _fits(engine, method) else None for method in methods]
    numbers: list[Checked] = []
    every = (
        _side_by_side(methods, pairs, budget, watch, processes)
        if processes
        else (_in_turn(method, one, budget, watch, numbers) for method, one in zip(methods, pairs, strict=True))
    )
    for method, parts in zip(methods, every, strict=True):
        one = _certificate(method, *parts)
        if one.checks or not certificates or certificates[-1].complete:
            certificates.append(one)
        if not one.complete and not processes:
            break
    models = None if engine is None else engine.names
    return Report(certificates, models, environment, all(one.complete for one in certificates))


def _fits(engine: Engine | None, method: Method) -> bool:
    try:
        return engine is not None and bool(engine.method(method))
    except ConfigurationError:
        return False
