"""Methods that draft with the target itself: skipped sublayers and Medusa heads follow plain decoding, exactly.

On tabular models a target without some sublayers is just another table, and the hidden state that heads read is the
row of logits itself.
"""

import itertools
import json
import math
from typing import Any

import pytest
import torch
from enumeration import EnumeratedRandomness
from small_decoder import VOCAB, decoder
from tabular import exact_law, random_heads, total_variation
from torch import Tensor

from draftwood import ConfigurationError, Engine, Method, ModelError, SamplingParams, TabularModel
from draftwood.draft.heads import likeliest, regular, sparse
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.compiled import Compiled
from draftwood.models.heads import medusa as trained
from draftwood.models.heads import skip
from draftwood.models.heads.medusa import Heads
from draftwood.models.heads.skip import Skipped


class Recording(Heads):
    """Heads of a table that note what they read and answer with it: each says of its token what p says of the next."""

    def __init__(self, vocabulary: int, count: int) -> None:
        super().__init__(vocabulary, vocabulary, count, "")
        self.read: list[Tensor] = []

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        assert batch.hidden is not None
        rows = batch.hidden[batch.wanted]
        self.read += list(rows)
        return rows.repeat(1, self.count)


def label(value: object) -> str:
    return ",".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def test_the_check_finds_heads_that_lie_about_q(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts drawn from one head, verified as if drawn from another: no longer plain decoding."""
    from draftwood.draft.base import Proposer

    call = Proposer.__call__

    def lying(self: Proposer, forest: Any, nodes: Any, logits: Tensor, count: int, replacement: bool) -> Any:
        children = call(self, forest, nodes, logits, count, replacement)
        for node in nodes:
            for proposal in forest.proposals[node]:
                proposal.q = None if proposal.q is None else torch.full_like(proposal.q, 1 / len(proposal.q))
        return children

    monkeypatch.setattr(Proposer, "__call__", lying)
    target = TabularModel.random(3, seed=21)
    randomness = EnumeratedRandomness(monkeypatch)
    method = {"name": "medusa", "tree": [1, 1]}
    engine = Engine(target)
    law = randomness.law_of_texts(engine, [1], method, 3)
    assert total_variation(law, exact_law(target, [1], SamplingParams(), 3)) > 0.01


# -- what heads read and which tree they draw --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"tree": [2, 2]}, {"paths": "0,1,0.0,0.1,1.0"}, {"tree": [1]}], ids=label)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_heads_read_the_state_before_the_root(
    options: dict[str, Any], concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every round but the first: the target's answer to all tokens but the last, whatever was accepted before."""
    target, recording = TabularModel.random(4, seed=5), Recording(4, 2)
    monkeypatch.setattr(trained, "find", lambda target, directory: recording)
    engine = Engine(target)
    prompts = [[1, 2], [3], [2, 0, 1]]
    results = engine.batch(prompts, concurrency, method={"name": "medusa", **options}, max_new_tokens=12)
    expected = []
    for prompt, result in zip(prompts, results, strict=True):
        text = [*prompt, *result.tokens]
        for made in result.rounds:
            if made.drafted:
                expected.append(
                    torch.tensor(target.law(tuple(text[: made.position])), dtype=torch.float64).log().tolist()
                )
        assert result.rounds[0].drafted == 0  # nothing was read yet
        assert sum(made.drafted > 0 for made in result.rounds) >= len(result.rounds) - 2
        assert result.metrics.accepted > 0
        assert result.metrics.draft_rows == sum(made.drafted > 0 for made in result.rounds)
    read = sorted(row.tolist() for row in recording.read)
    assert len(read) == len(expected)
    for got, wanted in zip(read, sorted(expected), strict=True):
        assert got == pytest.approx(wanted, abs=1e-12)


def test_shape_of_the_tree(tables: None) -> None:
    """At temperature 0 the tree has the best tokens of each head, the same below every node of a layer."""
    engine = Engine(TabularModel.random(6, seed=3))
    result = engine.generate([1, 2], {"name": "medusa", "tree": [3, 2]}, {"temperature": 0}, max_new_tokens=8)
    made = result.rounds[1]
    assert made.drafted == 3 + 6
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(made.forest_parent):
        below.setdefault(parent, []).append(made.forest_token[node])
    first, *others = (below[node] for node in (1, 2, 3))
    assert len(set(below[0])) == 3 and len(set(first)) == 2 and others == [first, first]
    paths = engine.generate([1, 2], {"name": "medusa", "paths": "0,1,1.0"}, {"temperature": 0}, max_new_tokens=8)
    made = paths.rounds[1]
    assert made.forest_parent == [-1, 0, 0, 2]
    assert made.forest_token[1:] == [*below[0][:2], first[0]]


def test_a_tree_may_be_given_either_way(tables: None) -> None:
    assert sparse([(0,), (1,), (0, 0), (1, 0)]) == regular((2, 1)) == {(): 2, (0,): 1, (1,): 1}
    engine = Engine(TabularModel.random(5, seed=3))
    texts = [
        [engine.generate([1], {"name": "medusa", **options}, seed=seed, max_new_tokens=20).tokens for seed in range(3)]
        for options in ({"tree": [2, 1]}, {"paths": [[1], [0], [0, 0], [1, 0]]})
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("nodes", [1, 4, 9, 14, 40])
def test_likeliest_paths_against_all_trees_of_paths(nodes: int) -> None:
    """The paths of the largest products, found by looking at all of them."""
    chances = [[0.6, 0.21, 0.1], [0.5, 0.22], [0.4, 0.13]]
    paths = [path for depth in (1, 2, 3) for path in itertools.product(*(range(len(row)) for row in chances[:depth]))]
    ranked = sorted(paths, key=lambda path: -math.prod(chances[k][rank] for k, rank in enumerate(path)))
    assert likeliest(chances, nodes) == sparse(ranked[:nodes])
    assert sum(likeliest(chances, nodes).values()) == min(nodes, 3 + 6 + 12)
    assert likeliest([], 5) == likeliest([[]], 5) == {}


def test_without_a_tree_the_heads_accuracy_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = random_heads(5, 5, 2)
    monkeypatch.setattr(trained, "find", lambda target, directory: heads)
    engine = Engine(TabularModel.random(5, seed=3))

    def drafted(**options: Any) -> list[int]:
        result = engine.generate([1], {"name": "medusa", **options}, {"temperature": 0}, max_new_tokens=12)
        return [made.drafted for made in result.rounds[1:3]]

    assert drafted() == [3 + 6, 3 + 6]  # nothing is known: three children, two below each, and no third head
    assert [drafted(nodes=nodes) for nodes in (1, 3, 14)] == [[nodes] * 2 for nodes in (1, 3, 14)]
    heads.ranks = [[0.5, 0.3, 0.1], [0.5, 0.1, 0.0]]
    assert drafted(nodes=4) == [4, 4]
    assert drafted() == [3 * 3, 3 * 3]  # all that may be right
    assert drafted(tree=[2]) == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paths": "0,1.0"}, "the path 1.0 needs the path 1 too"),
        ({"paths": "0,2"}, "the path 2 needs the path 1 too"),
        ({"paths": "0,0.1"}, "the path 0.1 needs the path 0.0 too"),
        ({"paths": "0,x"}, "paths are ranks joined by dots"),
        ({"paths": [[-1]]}, "a path is one rank or more, from 0"),
        ({"tree": [32, 40]}, "the tree has 1313 tokens, but at most 1024 are verified at once"),
        ({"tree": "two"}, "give whole numbers with commas between"),
        ({"tree": [2], "paths": "0"}, "tree and paths both name a tree"),
        ({"nodes": 0}, "must be at least 1"),
        ({"epsilon": 0}, "must be above 0"),
        ({"verify": "tpyical"}, "must be 'traversal', 'rejection', 'coupled', 'typical' or 'greedy'"),
        (
            {"heads": "nowhere"},
            "heads nowhere.heads.safetensors does not exist; make one with",
        ),
        ({}, "was given as an object, has no heads next to its weights; make one with `draftwood train medusa`"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, ModelError), match=message) as caught:
        Engine(decoder()).generate([1, 2], {"name": "medusa", **options})
    assert "\n" not in str(caught.value)


def test_targets_without_heads() -> None:
    for target, what in ((TabularModel.random(4, 1), "a TabularModel"), (Compiled(decoder()), "a compiled model")):
        with pytest.raises(ModelError, match=f"{what} computes all of its layers at once"):
            Engine(target).generate([1], "medusa")


# -- lossy rules -------------------------------------------------------------------------------------------------------


def test_what_is_lossy_says_so() -> None:
    for verify, lossless in (
        ("traversal", True),
        ("rejection", True),
        ("coupled", True),
        ("typical", False),
        ("greedy", False),
    ):
        method = Method.parse({"name": "medusa", "verify": verify})
        assert method.lossless is lossless
        assert ("lossy" in method.verifier().name) is not lossless
        assert Method.parse(json.loads(json.dumps(method.as_dict()))) == method


def test_typical_acceptance_has_a_bias(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its law by enumeration: away from plain decoding's, less so where thresholds are high."""
    target = TabularModel.random(3, seed=21)
    engine = Engine(target)
    randomness = EnumeratedRandomness(monkeypatch)
    plain = exact_law(target, [1], SamplingParams(), 4)
    distance = {}
    for epsilon, delta in ((0.09, 0.3), (1.0, 1.0)):
        method = {"name": "medusa", "tree": [2, 1], "verify": "typical", "epsilon": epsilon, "delta": delta}
        law = randomness.law_of_texts(engine, [1], method, 4)
        assert math.fsum(law.values()) == pytest.approx(1, abs=1e-12)
        distance[epsilon] = total_variation(law, plain)
    assert 0.05 < distance[1.0] < distance[0.09]


def test_greedy_acceptance_gives_greedy_text_at_any_temperature(tables: None) -> None:
    engine = Engine(TabularModel.random(5, seed=3))
    greedy = engine.generate([1], "autoregressive", {"temperature": 0}, max_new_tokens=20)
    for temperature in (0, 0.7, 1.5):
        method = {"name": "medusa", "verify": "greedy"}
        assert engine.generate([1], method, {"temperature": temperature}, max_new_tokens=20).tokens == greedy.tokens


# -- decoders ----------------------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "self-spec": {"name": "self-spec"},
    "self-spec-parts": {"name": "self-spec", "attention": [1, 2], "mlp": [3], "gamma": 4, "depth": "fixed"},
    "self-spec-beta": {"name": "self-spec", "attention": [0], "mlp": [0, 2], "depth": "beta-ts"},
    "medusa": {"name": "medusa"},
    "medusa-paths": {"name": "medusa", "paths": "0,1,2,0.0,0.1,1.0,0.0.0"},
    "medusa-best": {"name": "medusa", "drafts": "best", "depth": "confidence:0.05"},
}


@pytest.fixture
def with_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads for the small decoders: the target's own head, slightly moved, in its dtype."""

    def find(target: Any, directory: object) -> Heads:
        torch.manual_seed(7)
        heads = Heads.of(target, 3).to(target.dtype).requires_grad_(False)
        for part in heads.parameters():
            part += 0.02 * torch.randn_like(part)
        return heads

    monkeypatch.setattr(trained, "find", find)


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("verify", "dtype"),
    [
        ("rejection", torch.float32),
        pytest.param("rejection", torch.float64, marks=pytest.mark.slow),
        ("coupled", torch.float64),
        ("typical", torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", METHODS)
def test_greedy_text_is_plain_greedy_text(name: str, verify: str, dtype: torch.dtype, with_heads: None) -> None:
    if verify == "typical" and not name.startswith("medusa"):
        return
    target = decoder(3, dtype)
    engine, method = Engine(target), {**METHODS[name], "verify": verify}
    prompts = [prompt_of(length) for length in (1, 7, 240)]
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
    plain = [engine.generate(prompt, "autoregressive", **options).tokens for prompt in prompts]
    results = [engine.generate(prompt, method, **options) for prompt in prompts]
    assert [result.tokens for result in results] == plain
    together = engine.batch(prompts, 3, method=method, **options)
    assert [result.tokens for result in together] == plain
    assert sum(result.metrics.accepted for result in results) > 0


@pytest.mark.some(3)
@pytest.mark.parametrize("name", METHODS)
def test_sampled_text_does_not_depend_on_the_batch(name: str, with_heads: None) -> None:
    engine = Engine(decoder(3, torch.float64))
    batch = [
        {
            "prompt": prompt_of(5 + 40 * i),
            "seed": i,
            "method": {**METHODS[name], "verify": ("rejection", "coupled")[i % 2]},
        }
        for i in range(4)
    ]
    alone = [engine.generate(**request, max_new_tokens=16).tokens for request in batch]  # type: ignore[arg-type]
    assert [result.tokens for result in engine.batch(batch, concurrency=3, max_new_tokens=16)] == alone


def test_all_kinds_in_one_batch(with_heads: None) -> None:
    """Views with different skip sets, heads and plain decoding side by side."""
    engine = Engine(decoder(3, torch.float64))
    batch = [{"prompt": prompt_of(6 + i), "seed": i, "method": method} for i, method in enumerate(METHODS.values())]
    batch.append({"prompt": prompt_of(4), "seed": 9, "method": "autoregressive"})
    alone = [engine.generate(**request, max_new_tokens=12).tokens for request in batch]  # type: ignore[arg-type]
    assert [result.tokens for result in engine.batch(batch, concurrency=7, max_new_tokens=12)] == alone


def test_options_that_load_nothing_share_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads per directory and parts per set of sublayers, whatever tree, rule, depth and controller."""
    asked: list[object] = []
    target = decoder(3)
    monkeypatch.setattr(trained, "find", lambda target, where: asked.append(where) or Heads.of(target, 2))
    skipping = skip.skipping
    monkeypatch.setattr(skip, "skipping", lambda target, s: asked.append(s) or skipping(target, s))
    engine = Engine(target)
    for options in (
        *({"name": "medusa", **more} for more in ({}, {"tree": [2, 1]}, {"nodes": 3}, {"heads": "a"}, {"heads": "a"})),
        *({"name": "self-spec", **more} for more in ({}, {"gamma": 2}, {"depth": "fixed"}, {"mlp": [1]}, {"mlp": "1"})),
    ):
        engine.generate([1, 2], options, max_new_tokens=3)
    assert asked == [None, "a", None, Skipped((), (1,))]
