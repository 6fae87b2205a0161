"""What benchmarks/candidates.py compares: k-configurations and forks with their options, and the items they run on.

Knows names and options. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beams_settings import LIMITS, Item, Setting

from draftwood.core.shape import Shape
from draftwood.corpus import DOMAINS

PLAIN = "plain"
TEMPERATURES = (0.7, 1.0)  # MCSD Tables 2 and 3
DEPTH, WIDTHS, BETA = 5, (1, 2, 4, 8, 16), 0.4  # MCSD §4.1, Figures 6 and 8
SCORED = tuple(LIMITS)  # domains whose answers are short and have a score

# MCSD §4.1; the others show what the initial tokens and what the rows do: a target-initialised tree within the rows of
# 4,2,2,1, the lossless tree below 2,4,3,1,1, and both kinds with few rows.
TREES: dict[str, tuple[tuple[int, ...], int]] = {
    "mcsd 4,2,2,1": ((4, 2, 2, 1), 1),
    "target-initialised 2,4,3,1,1": ((4, 3, 1, 1), 2),
    "target-initialised 2,3,2,1,1": ((3, 2, 1, 1), 2),
    "mcsd 4,3,1,1": ((4, 3, 1, 1), 1),
    "mcsd 2,1,1,1": ((2, 1, 1, 1), 1),
    "target-initialised 2,1,1,1,1": ((1, 1, 1, 1), 2),
}
HEADLINE = ("target-initialised 2,4,3,1,1", "mcsd 4,2,2,1")  # the paper says 1.275x
AGAINST = (
    HEADLINE,
    ("target-initialised 2,3,2,1,1", "mcsd 4,2,2,1"),
    ("target-initialised 2,4,3,1,1", "mcsd 4,3,1,1"),
    ("target-initialised 2,1,1,1,1", "mcsd 2,1,1,1"),
)


@dataclass(frozen=True, slots=True)
class DecisionFile:
    """A trained decision model: where it lies, and a digest that says when it is another."""

    path: str
    digest: str


def _setting(
    part: str, family: str, method: Mapping[str, Any], temperature: float, lossy: bool = False, **about: Any
) -> Setting:
    sampling = {"temperature": temperature}
    about = {"temperature": temperature, "lossy": lossy, **about}
    return Setting(part, family, f"{family}, T={temperature:g}", dict(method), sampling, about=about)


def static(temperatures: Sequence[float] = TEMPERATURES, paper_only: bool = False) -> list[Setting]:
    """Figure 3 and Table 2: plain, a chain of 4, and trees from draft and target, at each temperature."""
    settings = []
    for temperature in temperatures:
        settings += [
            _setting("static", PLAIN, {"name": "autoregressive"}, temperature, rows=1),
            _setting("static", "speculative", {"name": "speculative", "gamma": 4}, temperature, rows=5),
        ]
        for name, (tree, initial) in TREES.items():
            if paper_only and name not in HEADLINE:
                continue
            method = {"name": "mcsd", "tree": list(tree), "initial": initial}
            rows = Shape(tree, initial).rows
            settings.append(_setting("static", name, method, temperature, initial > 1, rows=rows, initial=initial))
    return settings


def widths(
    found: Sequence[int] = WIDTHS, temperature: float = 1.0, decision: DecisionFile | None = None
) -> list[Setting]:
    """Figures 5, 6 and 8, Table 3: forks of D = 5 by width, lossless and lossy, with and without a decision model."""
    settings = [
        _setting("widths", PLAIN, {"name": "autoregressive"}, temperature),
        _setting("widths", "speculative", {"name": "speculative", "gamma": DEPTH}, temperature),
        _setting("widths", "mcsd 4,2,2,1,1", {"name": "mcsd", "tree": [4, 2, 2, 1, 1]}, temperature),
    ]
    rules: list[tuple[str, dict[str, str], bool]] = [("widths", {}, False)]
    if decision is not None:  # the digest is in the key, so that another model's runs are other runs
        rules.append((f"widths {decision.digest}", {"depth": f"decision:path={decision.path},threshold={BETA}"}, True))
    for width in found:
        for verify in ("rejection", "longest"):
            for part, depth, decides in rules:
                method = {"name": "mcsd-fork", "width": width, "gamma": DEPTH, "verify": verify, **depth}
                family = f"fork W={width}, {verify}" + (", decision" if decides else "")
                about = {"width": width, "verify": verify, "decision": decision.digest if decides and decision else ""}
                lossy = verify == "longest" and width > 1
                settings.append(_setting(part, family, method, temperature, lossy, **about))
    return settings


def _tokens(domain: str, most: int) -> int:
    return min(most, LIMITS.get(domain, most))


def prompts(limit: int, repeats: int, tokens: int, domains: Sequence[str] = DOMAINS) -> list[Item]:
    """Items of every domain, alternating, as many tokens at most; answers with a score have their own limit."""
    return [
        Item(domain, number, repeat, _tokens(domain, tokens))
        for repeat in range(repeats)
        for number in range(limit)
        for domain in domains
    ]


def judged(limit: int, prose: int, repeats: int, tokens: int, domains: Sequence[str] = DOMAINS) -> list[Item]:
    """Items for quality: many where answers are scored, fewer where only perplexity says something."""
    return [
        Item(domain, number, repeat, _tokens(domain, tokens))
        for repeat in range(repeats)
        for number in range(max(limit, prose))
        for domain in domains
        if number < (limit if domain in SCORED else prose)
    ]
