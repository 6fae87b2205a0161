"""The certificate of a method: all checks, one verdict.

Knows the order of the checks and what each may cost. Refuses to know terminals and files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.certify.checks import Check, Verdict
from draftwood.certify.exactness import CELLS, rule_check, sampled_check
from draftwood.certify.pair import greedy_check, position_check, uncertain
from draftwood.engine import Engine
from draftwood.errors import DraftwoodError
from draftwood.methods import Method
from draftwood.sampling import SamplingParams

Begin = Callable[[str, int | None], None]  # a check and its steps, None where they are not known
Advance = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much each check does."""

    runs: int = 2000  # generations per combination of warp and batch, on tabular models
    replays: int = 3000  # outcomes of one enumerated case
    identities: int = 200  # texts compared with those of a reference
    pair_runs: int = 600  # sampled generations of the pair
    max_new_tokens: int = 64  # of greedy text
    position: int = 2  # the last generated token whose law is checked
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is certified of a method."""

    method: dict[str, Any]
    lossless: bool
    checks: Sequence[Check]

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
        return {
            "method": self.method,
            "lossless": self.lossless,
            "verdict": self.verdict,
            "checks": [check.as_dict() for check in self.checks],
        }


def certify(
    method: Method,
    engine: Engine | None = None,
    prompts: Sequence[Sequence[int]] = (),
    budget: Budget | None = None,
    params: SamplingParams | None = None,
    begin: Begin = lambda name, steps: None,
    advance: Advance = lambda: None,
) -> Certificate:
    """Every check of a method; those on a real pair where an `engine` and `prompts` (token ids) are given.

    `params` are for the sampled tokens of the pair. A check that the method cannot take part in, such as tabular
    models for one that needs trained parts, is N/A with the reason.
    """
    budget = budget or Budget()
    params = params or SamplingParams()
    checks: list[Check] = []

    def check(name: str, steps: int | None, run: Callable[[], Check]) -> None:
        begin(name, steps)
        try:
            checks.append(run())
        except DraftwoodError as error:
            checks.append(Check(name, "N/A", str(error)))

    check(
        "small cases, exact",
        None,
        lambda: rule_check(method, budget.seed, budget.replays, budget.identities, advance),
    )
    check(
        "whole outputs, sampled",
        len(CELLS) * budget.runs,
        lambda: sampled_check(method, budget.seed, budget.runs, advance),
    )
    if engine is not None and prompts:
        check(
            "greedy text of the pair",
            len(prompts),
            lambda: greedy_check(engine, method, prompts, budget.max_new_tokens, advance),
        )
        check(
            "sampled tokens of the pair",
            budget.pair_runs,
            lambda: position_check(
                engine,
                method,
                uncertain(engine, prompts, params, budget.pair_runs),
                budget.position,
                budget.pair_runs,
                params,
                advance,
            ),
        )
    return Certificate(method.as_dict(), method.lossless, checks)
