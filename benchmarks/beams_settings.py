"""What benchmarks/beams.py compares: settings of methods, the parts they belong to, and the items they run on.

Knows names and options. Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, product
from typing import Any

from draftwood.corpus import Document, documents

WORLD_SEED = 3  # of the held-out documents; training, the model card and other benchmarks use others
PAPER = {"temperature": 1.0, "top_k": 10, "top_p": 0.8}  # DSBD §4.1
LIMITS = {"qa": 24, "sql": 56}  # tokens that an answer may have
MEASURES = {"qa": "exact match", "sql": "execution accuracy"}
HUGGING_FACE = "hugging-face"


@dataclass(frozen=True)
class Setting:
    """One method with its options and sampling. `family` groups settings, `about` says what a report needs of them."""

    part: str
    family: str
    label: str
    method: dict[str, Any]
    sampling: dict[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Says all that decides the output, but for the item."""
        return json.dumps([self.part, self.method, self.sampling, self.ignore_eos], sort_keys=True)


@dataclass(frozen=True, slots=True)
class Item:
    """The n-th held-out document of a task, decoded for the r-th time, at most so many tokens."""

    task: str
    number: int
    repeat: int
    tokens: int

    @property
    def seed(self) -> int:
        """Of sampling."""
        return self.repeat * 1_000_003 + self.number

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.task, self.number, self.repeat, self.tokens

    @property
    def document(self) -> Document:
        return document(self.task, self.number)


@cache
def _first(task: str, count: int) -> tuple[Document, ...]:
    return tuple(islice(documents(task, "held-out", WORLD_SEED), count))


def document(task: str, number: int) -> Document:
    """A held-out document."""
    size = 64
    while size <= number:
        size *= 4
    return _first(task, size)[number]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values of DSBD's options that the Pareto run goes through: the paper's, and gamma 4 and target root weights."""

    draft_widths: Sequence[int] = (2, 3, 4, 5, 6)
    thresholds: Sequence[float] = (0.7, 0.9)
    gammas: Sequence[int] = (2, 3, 4)
    root_weights: Sequence[str] = ("draft", "target")
    min_widths: Sequence[int] = (1,)
    widths: Sequence[int] = (1, 2, 3, 4)  # of beam sampling
    sampling: Mapping[str, Any] = field(default_factory=lambda: PAPER)


def pareto(grid: Grid) -> list[Setting]:
    """Beam sampling by width; DSBD by draft width, threshold, depth and root weights (DSBD §4.2), labelled so."""
    settings = [
        Setting(
            "pareto",
            "beam sampling",
            f"beam sampling, width {width}",
            {"name": "beam-sampling", "width": width},
            dict(grid.sampling),
            about={"width": width},
        )
        for width in grid.widths
    ]
    values = grid.draft_widths, grid.thresholds, grid.gammas, grid.root_weights, grid.min_widths
    for wide, threshold, gamma, weights, least in product(*values):
        if least > wide:
            continue
        options = {"draft_width": wide, "threshold": threshold, "gamma": gamma, "root_weights": weights}
        label = f"dsbd {wide}/{threshold:g}/{gamma} {weights}"
        if least > 1:
            label += f" min {least}"
        method = {"name": "dsbd", "min_width": least, **options}
        settings.append(
            Setting("pareto", "dsbd", label, method, dict(grid.sampling), about={**options, "min_width": least})
        )
    return settings


def table(sampling: Mapping[str, Any] = PAPER) -> list[Setting]:
    """Methods that keep the cache of one sequence (DSBD Table 1)."""
    methods: dict[str, dict[str, Any]] = {
        "multinomial": {"name": "autoregressive"},
        "speculative": {"name": "speculative", "gamma": 3},
        "specinfer": {"name": "specinfer", "expansion": [2, 2, 1]},
        "dsbd, one cache, t 0.9": {"name": "dsbd", "draft_width": 6, "gamma": 3, "threshold": 0.9, "one_cache": True},
        "dsbd, one cache, t 0.7": {"name": "dsbd", "draft_width": 6, "gamma": 3, "threshold": 0.7, "one_cache": True},
    }
    return [Setting("table", name, name, method, dict(sampling)) for name, method in methods.items()]


def search(widths: Sequence[int] = (2, 4, 8), gammas: Sequence[int] = (2, 3, 4)) -> list[Setting]:
    """Beam search, with drafts of as many beams, half as many more and twice as many, and Hugging Face's."""
    settings = []
    for width in widths:
        about = {"width": width}
        plain = {"name": "beam-search", "width": width}
        settings.append(Setting("search", "beam search", f"beam search, width {width}", plain, about=about))
        for wide, gamma in product((width, width * 3 // 2, width * 2), gammas):
            method = {"name": "speculative-beam-search", "width": width, "draft_width": wide, "gamma": gamma}
            label = f"width {width}, {wide} drafted, gamma {gamma}"
            more = {**about, "draft_width": wide, "gamma": gamma}
            settings.append(Setting("search", "speculative beam search", label, method, about=more))
    beams = 4
    method = {"name": HUGGING_FACE, "num_beams": beams}
    label = f"Hugging Face generate(num_beams={beams})"
    return [*settings, Setting("search", "Hugging Face", label, method, about={"width": beams})]


def overhead() -> list[Setting]:
    """W_S = 6, gamma = 3, with top-k 10 and without truncation, and what they are compared with."""
    methods: dict[str, dict[str, Any]] = {
        "dsbd": {"name": "dsbd", "draft_width": 6, "gamma": 3},
        "dsbd, target root weights": {"name": "dsbd", "draft_width": 6, "gamma": 3, "root_weights": "target"},
        "beam sampling": {"name": "beam-sampling", "width": 4},
        "speculative": {"name": "speculative", "gamma": 3},
    }
    cuts: dict[str, dict[str, Any]] = {"top-k 10": {"top_k": 10}, "no truncation": {}}
    settings = [
        Setting("overhead", name, f"{name}, {cut}", method, sampling, True, {"truncation": cut})
        for (name, method), (cut, sampling) in product(methods.items(), cuts.items())
    ]
    method = {"name": "speculative-beam-search", "width": 4, "draft_width": 6, "gamma": 3}
    name = "speculative beam search"
    return [*settings, Setting("overhead", name, name, method, {}, True, {"truncation": "no truncation"})]


def memory() -> list[Setting]:
    """Methods whose caches are counted in slots."""
    methods: dict[str, tuple[dict[str, Any], int]] = {
        "multinomial": ({"name": "autoregressive"}, 1),
        "speculative": ({"name": "speculative", "gamma": 3}, 1),
        "beam sampling, width 2": ({"name": "beam-sampling", "width": 2}, 2),
        "beam sampling, width 4": ({"name": "beam-sampling", "width": 4}, 4),
        "dsbd, width 2": ({"name": "dsbd", "draft_width": 4, "gamma": 3, "width": 2}, 2),
        "dsbd, width 4": ({"name": "dsbd", "draft_width": 6, "gamma": 3, "width": 4}, 4),
        "dsbd, dynamic width": ({"name": "dsbd", "draft_width": 6, "gamma": 3}, 6),
        "dsbd, one cache": ({"name": "dsbd", "draft_width": 6, "gamma": 3, "one_cache": True}, 1),
    }
    return [
        Setting("memory", name, name, method, PAPER, True, {"beams": beams})
        for name, (method, beams) in methods.items()
    ]


# Texts of parts in which no answer is scored: longer than answers, of several kinds.
PROSE = ("stories", "summaries", "sql", "qa")


def items(tasks: Sequence[str], limit: int, repeats: int, tokens: int | None = None) -> list[Item]:
    """Documents and repeats in turns, tasks alternating; without `tokens` an answer's limit."""
    return [
        Item(task, number, repeat, tokens or LIMITS[task])
        for repeat in range(repeats)
        for number in range(limit)
        for task in tasks
    ]


def coarse(grid: Grid) -> Grid:
    """A few values of each option, to see that everything runs."""
    return replace(
        grid,
        draft_widths=grid.draft_widths[::2][:2],
        thresholds=grid.thresholds[-1:],
        gammas=grid.gammas[:1],
        root_weights=grid.root_weights[:1],
    )
