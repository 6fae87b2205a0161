"""Exact laws of whole generations: what each method emits follows plain decoding, every random choice enumerated."""

from typing import Any, NamedTuple

import pytest
from enumeration import EnumeratedRandomness
from tabular import ParallelHead, SequentialBlock, exact_law, follows

from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.certify.tables import StandInBlock

END = frozenset({0})
WARPED = SamplingParams(temperature=1.5, top_k=2, presence_penalty=0.5)


class Case(NamedTuple):
    """A method on tables: its draft models, the size of the vocabulary and the number of tokens."""

    method: dict[str, Any]
    drafts: int
    vocab: int
    length: int
    long: str = ""  # slow where the sampling is named here: thousands of replays


def both(name: str, *size: int, long: str = "", **options: Any) -> list[Case]:
    """The usual rule, and rejection, whose laws are long where nothing is truncated."""
    method = {"name": name, **options}
    return [
        Case(method, *size, long=long),  # type: ignore[misc]
        Case({**method, "verify": "rejection"}, *size, long=long or "plain"),  # type: ignore[misc]
    ]


ALWAYS = "plain, warped"
CONTROLLERS = ["confidence:0.3", "beta-ts", "adaptive-confidence:0.3", "optimal-stopping:cost=0.1"]
CASES = [
    Case({"name": "autoregressive"}, 0, 4, 5),
    *both("speculative", 1, 4, 4, long="plain", gamma=2),
    *both("speculative", 1, 3, 5, gamma=3),
    *both("specinfer", 1, 4, 3, expansion=[2, 1]),
    *both("specinfer", 1, 3, 4, long="plain", expansion=[2, 2]),
    *both("specinfer", 2, 3, 3, expansion=[1, 1]),
    *both("specinfer", 2, 3, 3, long="plain", expansion=[2, 1]),
    *both("mcsd", 1, 3, 3, tree=[3, 1], replacement=True),
    *both("mcsd", 1, 3, 4, tree=[2, 2], replacement=False),
    *both("mcsd", 1, 3, 3, tree=[3, 2], replacement=False),
    *both("mcsd", 1, 3, 4, tree=[4, 1], replacement=False),
    *both("mcsd", 1, 3, 4, tree=[2, 1], draws="greedy"),
    *both("mcsd", 1, 4, 3, long="plain", tree=[3, 1], draws="greedy"),
    Case({"name": "mcsd", "tree": [2, 2], "replacement": True, "verify": "kseq"}, 1, 3, 3, "plain"),
    Case({"name": "specinfer", "expansion": [1, 1], "verify": "kseq"}, 2, 3, 3),
    Case({"name": "specinfer", "expansion": [2, 1], "verify": "kseq"}, 2, 3, 3, "plain"),
    Case({"name": "lookup", "gamma": 6}, 0, 4, 5),
    Case({"name": "lookup"}, 0, 4, 5),
    Case({"name": "lookup", "drafts": "drawn", "gamma": 2}, 0, 3, 4),
    Case({"name": "lookup", "drafts": "drawn", "gamma": 2, "verify": "rejection"}, 0, 3, 4, ALWAYS),
    Case({"name": "lookup", "drafts": "drawn"}, 0, 3, 3),
    *both("speculative", 1, 3, 4, gamma=2, lookup=True),
    *both("mcsd", 1, 3, 4, tree=[2, 1], lookup=True),
    *both("specinfer", 2, 3, 3, long="plain", expansion=[1, 1], lookup=True),
    # the target with skipped sublayers
    *(Case({"name": "self-spec", "gamma": 2, "depth": depth}, 0, 3, 4) for depth in ("fixed", *CONTROLLERS)),
    # Medusa heads
    Case({"name": "medusa", "tree": [1, 1]}, 0, 3, 4),
    Case({"name": "medusa", "tree": [2, 1]}, 0, 3, 4),
    Case({"name": "medusa", "tree": [2, 2]}, 0, 2, 4),
    Case({"name": "medusa", "tree": [3]}, 0, 3, 4),
    Case({"name": "medusa", "tree": [2, 2, 1], "drafts": "best"}, 0, 3, 5),
    Case({"name": "medusa", "paths": "0,1,0.0"}, 0, 3, 4),
    *(Case({"name": "medusa", "tree": [2, 1], "depth": depth}, 0, 3, 3) for depth in CONTROLLERS),
    # early exits
    Case({"name": "eesd", "gamma": 2}, 0, 4, 4),
    Case({"name": "eesd", "gamma": 3}, 0, 3, 4),
    Case({"name": "eesd", "tree": [2, 1]}, 0, 3, 4),
    Case({"name": "eesd", "tree": [2, 1], "replacement": True}, 0, 3, 3),
    Case({"name": "eesd", "tree": [2, 2], "replacement": True}, 0, 3, 3, ALWAYS),
    *(
        Case({"name": "eesd", "gamma": 2, "depth": depth}, 0, 3, 3, "warped")
        for depth in ("beta-ts", "confidence:0.45", "entropy:1.0")
    ),
    Case({"name": "mcsd", "drafter": "exit", "tree": [3, 1]}, 0, 3, 3),
    Case({"name": "mcsd", "drafter": "exit", "tree": [3, 2]}, 0, 3, 3, ALWAYS),
    *(
        Case({"name": "mcsd", "drafter": drafter, "tree": [2, 1]}, 0, 3, 3)
        for drafter in ("eagle", "mtp", "dflash", "medusa", "skip", "lookup")
    ),
    Case({"name": "mcsd", "drafter": "lookup", "tree": [2, 1], "verify": "rejection"}, 0, 3, 4, ALWAYS),
    # blocks
    Case({"name": "dflash", "gamma": 2}, 0, 3, 4),
    Case({"name": "dflash"}, 0, 2, 4),
    Case({"name": "dflash", "gamma": 2, "verify": "rejection"}, 0, 3, 4, ALWAYS),
    Case({"name": "dflash", "gamma": 2, "lookup": True}, 0, 3, 3),
    Case({"name": "dflash", "width": 2, "gamma": 2, "least": 0.0}, 0, 3, 3),
    Case({"name": "dflash", "width": 3, "gamma": 2, "nodes": 4, "least": 0.1}, 0, 3, 4, ALWAYS),
    Case({"name": "dflash", "width": 3, "gamma": 3, "drafts": "best"}, 0, 3, 4),
    Case({"name": "dflash", "gamma": 2, "depth": "beta-ts"}, 0, 3, 3),
    # EAGLE heads
    Case({"name": "eagle", "gamma": 2}, 0, 3, 4),
    Case({"name": "mtp", "gamma": 2}, 0, 3, 4),
    Case({"name": "mtp", "width": 2, "gamma": 2, "least": 0.0}, 0, 3, 3),
    Case({"name": "eagle", "gamma": 2, "verify": "rejection"}, 0, 3, 4, ALWAYS),
    Case({"name": "eagle", "gamma": 2, "lookup": True}, 0, 3, 3),
    Case({"name": "eagle", "width": 2, "gamma": 2, "least": 0.0}, 0, 3, 3),
    Case({"name": "eagle", "width": 2, "gamma": 2, "least": 0.2, "verify": "rejection"}, 0, 3, 3),
    *(
        Case({"name": "eagle", "width": 2, "gamma": 2, "least": least, "verify": verify}, 0, 3, 4, ALWAYS)
        for least in (0.0, 0.2)
        for verify in ("traversal", "rejection")
    ),
    Case({"name": "eagle", "width": 3, "gamma": 2, "nodes": 4, "least": 0.1}, 0, 3, 4, ALWAYS),
    Case({"name": "eagle", "width": 3, "gamma": 2, "drafts": "best"}, 0, 3, 4),
    Case({"name": "eagle", "width": 2, "gamma": 2, "depth": "confidence:0.3"}, 0, 3, 3),
    Case({"name": "eagle", "gamma": 2, "depth": "beta-ts"}, 0, 3, 3),
]


def label(case: Case) -> str:
    return ",".join(map(str, (*case.method.values(), *case[1:4])))


@pytest.mark.some(32)
@pytest.mark.parametrize(
    ("case", "params"),
    [
        pytest.param(case, params, id=f"{label(case)}-{name}", marks=pytest.mark.slow if name in case.long else ())
        for case in CASES
        for name, params in (("plain", SamplingParams()), ("warped", WARPED))
    ],
)
def test_law_is_exact(case: Case, params: SamplingParams, tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number that the engine asks for is enumerated."""
    target = TabularModel.random(case.vocab, seed=21, n_layers=3)
    drafts = [TabularModel.random(case.vocab, seed=22 + i) for i in range(case.drafts)]
    engine = Engine(target, drafts, end_tokens=END)
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], case.method, case.length, params)


@pytest.mark.parametrize("options", [{"gamma": 3}, {"width": 2, "gamma": 2, "least": 0.0}], ids=str)
@pytest.mark.parametrize(("name", "block"), [("dflash", SequentialBlock), ("eagle", ParallelHead)])
def test_law_of_other_blocks_is_exact(
    name: str, block: type[StandInBlock], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSpark's, whose places go by the token before them, and P-EAGLE's, which reads states of tokens before."""
    target, method = TabularModel.random(3, seed=21, n_layers=3), Method.parse({"name": name, **options})
    engine = Engine(target, end_tokens=END)
    engine.set_draft_models(method, [block(TabularModel.random(3, seed=12, n_layers=2))])
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], method, 3, WARPED)


SAMPLED: dict[str, dict[str, Any]] = {
    "self-spec": {"name": "self-spec"},
    "medusa": {"name": "medusa"},
    "eesd": {"name": "eesd", "gamma": 4},
    "eesd-tree": {"name": "eesd", "tree": [3, 2, 1]},
    "eesd-iid": {"name": "eesd", "tree": [2, 2, 1, 1], "replacement": True},
    "exit-mcsd": {"name": "mcsd", "drafter": "exit", "tree": [3, 2, 1]},
    "eagle": {"name": "eagle", "gamma": 4},
    "eagle-tree": {"name": "eagle", "width": 3, "gamma": 3, "nodes": 8, "least": 0.0},
    "eagle-confident": {"name": "eagle", "width": 4, "gamma": 4, "least": 0.1},
    "dflash": {"name": "dflash"},
    "dflash-tree": {"name": "dflash", "width": 3, "nodes": 8, "least": 0.0},
    "eagle-best": {"name": "eagle", "width": 3, "gamma": 3, "drafts": "best"},
}
FEW = [("eesd", 4), ("eesd-tree", 1), ("eagle", 4), ("eagle-tree", 4), ("dflash-tree", 4)]
MANY = [
    *((name, verify, 4) for name in ("self-spec", "medusa") for verify in ("rejection", "coupled")),
    *((name, "traversal", 1) for name in ("eesd", "eesd-tree")),
    *((name, "traversal", 4) for name in ("eesd-iid", "exit-mcsd", "eagle-confident", "eagle-best", "dflash")),
]


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "verify", "concurrency", "count"),
    [
        *((name, "traversal", concurrency, 400) for name, concurrency in FEW),
        *(pytest.param(*cell, 20_000, marks=pytest.mark.slow) for cell in MANY),
    ],
)
def test_generations_follow_plain_decoding(name: str, verify: str, concurrency: int, count: int, tables: None) -> None:
    """Drafting with the target itself, alone and in batches, against the exact law."""
    target, prompt = TabularModel.random(4, seed=11, order=4, n_layers=5), [1, 2, 1, 2]
    engine, params = Engine(target, end_tokens=END), SamplingParams(temperature=1.2, top_p=0.95)
    requests = [{"prompt": prompt, "seed": seed} for seed in range(count)]
    options: dict[str, Any] = {"method": {**SAMPLED[name], "verify": verify}, "sampling": params, "max_new_tokens": 4}
    results = engine.batch(requests, concurrency, **options)
    assert follows([tuple(result.tokens) for result in results], exact_law(target, prompt, params, 4, END))
    assert sum(result.metrics.accepted for result in results) > count / 10
