"""Certificates: all checks of a method with one verdict, and of several methods a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from draftwood.certify.checks import Budget, Check, Verdict
from draftwood.certify.exactness import CELLS, rule_check, sampled_check
from draftwood.certify.pair import Pair, greedy_check, position_check
from draftwood.engine import Engine
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.eval import provenance
from draftwood.explain.terminal import method_label
from draftwood.methods import METHODS, Method
from draftwood.params import SamplingParams

Watch = Callable[[str, int, int | None], bool]  # (method and check, steps done, of how many) -> whether to go on


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
    return _certified(method, pair, budget, watch)


def _certified(method: Method, pair: Pair | None, budget: Budget, watch: Watch | None) -> Certificate:
    checks: list[Check] = []
    done = 0

    def advance(count: int = 1) -> None:
        nonlocal done
        done += count
        if watch is not None and not watch(f"{method.name}: {name}", done, steps):
            raise Cancelled

    seed = budget.seed
    work: list[tuple[str, int | None, Callable[[], Check]]] = [
        ("small cases, exact", None, lambda: rule_check(method, seed, budget.replays, budget.identities, advance)),
        ("whole outputs, sampled", len(CELLS) * budget.runs, lambda: sampled_check(method, seed, budget.runs, advance)),
    ]
    if pair is not None:
        models = pair
        work += [
            ("greedy text of the pair", len(pair.prompts), lambda: greedy_check(models, method, advance)),
            ("sampled tokens of the pair", budget.pair_runs, lambda: position_check(models, method, advance)),
        ]
    for number, one in enumerate(work):
        name, steps, run = one
        done = 0
        try:
            advance(0)
            checks.append(run())
        except Cancelled:
            return Certificate(method.as_dict(), method.lossless, checks, complete=False)
        except Exception as error:
            fitting = number < 2 or not isinstance(error, DraftwoodError)
            failed = Check(name, "FAIL", f"{type(error).__name__}: {error}")
            checks.append(failed if fitting else Check(name, "N/A", str(error)))
    return Certificate(method.as_dict(), method.lossless, checks)


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
) -> Report:
    """`certify` of several methods; those that need other draft models than the engine has are checked without it.

    `watch` is told of every step; where it stops the work, the report holds what was finished.
    """
    budget = budget or Budget()
    pair = Pair(engine, prompts, params or SamplingParams(), budget) if engine is not None and prompts else None
    place = (torch.device("cpu"),) if engine is None else (engine.target.device, engine.names.get("backend"))
    environment = provenance.session(*place)
    found: list[Certificate] = []
    for method in methods:
        found.append(_certified(method, pair if _fits(engine, method) else None, budget, watch))
        if not found[-1].complete:
            break
    models = None if engine is None else engine.names
    return Report(found, models, environment, all(one.complete for one in found))


def _fits(engine: Engine | None, method: Method) -> bool:
    try:
        return engine is not None and bool(engine.method(method))
    except ConfigurationError:
        return False
