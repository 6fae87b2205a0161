"""Drafting from an exit of the target: each layer of each token is computed once, and the text is plain decoding's."""

import copy
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from beam_reference import BeamLaw
from greedy_reference import MARGIN, NEW, models, naive, prompt_of
from small_decoder import LAYERS, decoder
from tabular import follows, frequencies
from torch import Tensor

from draftwood import ConfigurationError, Engine, ModelError, SamplingParams, TabularModel
from draftwood.models.base import Batch
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads import exit as exits
from draftwood.runtime.session import ForwardJob, Session

METHODS: dict[str, dict[str, Any]] = {
    "chain": {"name": "eesd", "gamma": 4},
    "no-drafts": {"name": "eesd", "gamma": 0},
    "tree": {"name": "eesd", "tree": [3, 2, 1]},
    "tree-iid": {"name": "eesd", "tree": [2, 2, 1, 1], "replacement": True},
    "mcsd": {"name": "mcsd", "drafter": "exit", "tree": [3, 2, 1]},
}
CONTROLLERS = [
    "fixed",
    "confidence:0.45",
    "adaptive-confidence",
    "entropy:1.0",
    "beta-ts",
    "speedup-ts",
    "speedup-ts:discount=0.8,cost=0.3",
    "optimal-stopping",
]
BEAMS: dict[str, Any] = {"name": "dsbd", "drafter": "exit", "draft_width": 4, "gamma": 3}


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Directories of exit layers for the decoders of these tests, made when they are first asked for.

    They begin as the target's last layer: behind all layers but one they say what the target says, behind fewer
    something else.
    """
    root = tmp_path_factory.mktemp("exits")

    @functools.cache
    def place(target: Decoder, layers: int, depth: int = 1) -> str:
        where = root / f"{id(target)}-{layers}-{depth}"
        weights = exits.ExitLayer.of(target, layers, depth).weights()
        exits.save(weights, where, fingerprint(target), layers, target.dtype)
        return str(where)

    return place


class Ledger:
    """Which layers each slot of the targets passed, from its first token on to when it is free again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cells = self.layers = 0
        passed: dict[int, dict[int, set[int]]] = {}
        held: list[Session] = []  # so that no number of a session is used again
        store, commit = Session.store, Session.commit

        def noted(session: Session, job: ForwardJob, hidden: Tensor | None) -> None:
            store(session, job, hidden)
            if session.role == "target":
                held.append(session)
                for slot in job.segment.slots:
                    before = passed.setdefault(id(session), {}).setdefault(slot, set())
                    now = set(range(job.start, job.stop))
                    assert not before & now, "a layer is computed twice"
                    assert not before or max(before) + 1 == job.start
                    self.cells += not before
                    before |= now
                    self.layers += len(now)

        def followed(session: Session, *decided: Any) -> None:
            if session.role == "target":
                for layers in passed[id(session)].values():
                    assert layers == set(range(session.model.n_layers)), "verification lacks a layer"
            commit(session, *decided)
            if session.role == "target":
                live = {*session._trunk_slot[: session.cached], *session._node_slot.values()}
                for slot in passed[id(session)].keys() - live:
                    del passed[id(session)][slot]

        monkeypatch.setattr(Session, "store", noted)
        monkeypatch.setattr(Session, "commit", followed)


@pytest.mark.some(2)
@pytest.mark.parametrize("layers", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
@pytest.mark.parametrize("name", METHODS)
def test_no_layer_of_the_target_is_computed_twice_and_none_is_missed(
    name: str, layers: int, places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, accepted and rejected drafts, leaves, rounds without drafts, ends of texts; alone and in a batch."""
    target, ledger = decoder(3), Ledger(monkeypatch)
    engine = Engine(target, end_tokens=frozenset({5}), reuse_prefixes=False)
    method = {**METHODS[name], "exit": places(target, layers)}
    for depth in ("fixed", "speedup-ts:cost=0.4"):
        requests = [{"prompt": prompt_of(1 + 13 * i), "seed": i} for i in range(3)]
        options: dict[str, Any] = {"method": {**method, "depth": depth}, "max_new_tokens": 20}
        ledger.cells = ledger.layers = 0
        together = engine.batch(requests, concurrency=2, **options)
        batched = ledger.cells, ledger.layers
        alone = [engine.generate(**request, **options) for request in requests]
        assert [result.tokens for result in together] == [result.tokens for result in alone]
        for results, cells, computed in (
            (together, *batched),
            (alone, ledger.cells - batched[0], ledger.layers - batched[1]),
        ):
            # the prompt but for its last token, then a root and the drafts of each round
            expected = sum(len(result.prompt_tokens) - 1 for result in results)
            expected += sum(1 + round_.drafted for result in results for round_ in result.rounds)
            assert cells == expected
            assert computed == expected * LAYERS
            assert sum(result.metrics.target_rows for result in results) == pytest.approx(expected)
    if name != "no-drafts" and layers < LAYERS - 1:  # else the exit says what the target says
        kinds = {kind for result in together for kind in result.kinds}
        assert {"accepted", "corrected"} <= kinds


@pytest.mark.some(1)
@pytest.mark.parametrize("layers", [1, 3])
def test_beams_compute_each_layer_once(layers: int, places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target, ledger = decoder(3), Ledger(monkeypatch)
    engine = Engine(target, end_tokens=frozenset({5}), reuse_prefixes=False)
    requests = [{"prompt": prompt_of(1 + 13 * i), "seed": i} for i in range(4)]
    for weights in ("draft", "target"):
        method = {**BEAMS, "exit": places(target, layers), "root_weights": weights}
        ledger.cells = ledger.layers = 0
        together = engine.batch(requests, concurrency=3, method=method, max_new_tokens=20)
        assert ledger.layers == ledger.cells * LAYERS
        alone = [engine.generate(**request, method=method, max_new_tokens=20) for request in requests]
        assert [result.tokens for result in alone] == [result.tokens for result in together]
        assert sum(result.metrics.target_rows for result in together) == pytest.approx(ledger.cells / 2)
        assert sum(round_.depth_accepted for result in together for round_ in result.rounds) > 5


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in METHODS),
        *(pytest.param(name, "float64", marks=() if name == "tree" else pytest.mark.slow) for name in METHODS),
    ],
)
def test_greedy_text_is_plain_decodings(name: str, dtype: str, places: Any) -> None:
    target = models(dtype)[0]
    engine = Engine(target)
    prompts = [prompt_of(length) for length in (1, 7, 240)]
    for layers, verify in ((1, "coupled"), (3, "rejection")):
        method = {**METHODS[name], "exit": places(target, layers), "verify": verify}
        options: dict[str, Any] = {"method": method, "sampling": {"temperature": 0}, "max_new_tokens": NEW}
        results = engine.batch(prompts, concurrency=2, **options)
        assert [result.tokens for result in results] == [naive(dtype, prompt) for prompt in prompts]
        if layers == LAYERS - 1 and name != "no-drafts":  # the exit is the rest of the target
            assert all(result.metrics.acceptance_rate == 1 for result in results if name == "chain")
            assert all(result.metrics.tau > 2 for result in results)
    assert MARGIN > 0


@pytest.mark.some(2)
@pytest.mark.parametrize("depth", CONTROLLERS)
def test_every_controller_leaves_the_text_as_it_is(depth: str, places: Any) -> None:
    target = models("float64")[0]
    engine = Engine(target)
    for name in ("chain", "tree"):
        method = {**METHODS[name], "exit": places(target, 2), "depth": depth}
        options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": NEW}
        assert engine.generate(prompt_of(7), method, **options).tokens == naive("float64", prompt_of(7))
        options = {"sampling": {"temperature": 0.9}, "max_new_tokens": 30, "seed": 3}
        plain = engine.generate(prompt_of(7), {"name": "autoregressive", "verify": "coupled"}, **options)
        assert engine.generate(prompt_of(7), {**method, "verify": "coupled"}, **options).tokens == plain.tokens


def test_an_exit_of_two_layers_drafts_too(places: Any) -> None:
    target = models("float32")[0]
    method = {"name": "eesd", "exit": places(target, 2, 2)}  # the two last layers are all that is left
    result = Engine(target).generate(prompt_of(7), method, {"temperature": 0}, max_new_tokens=NEW)
    assert result.tokens == naive("float32", prompt_of(7))
    assert result.metrics.acceptance_rate == 1


@pytest.mark.some(8)
@pytest.mark.parametrize("depth", ["fixed", "auto", "beta-ts"])
@pytest.mark.parametrize("name", METHODS)
def test_a_head_alone_drafts_too(name: str, depth: str, places: Any) -> None:
    """An exit of no layers reads the state after the first ones as it is (EESD §5.1)."""
    target = models("float64")[0]
    method = {**METHODS[name], "exit": places(target, 2, 0), "depth": depth}
    exit = exits.load(method["exit"], target, packed=False)
    assert set(exit.weights()) == {"norm", "head.weight"}
    hidden = torch.randn(
        1, 3, target.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    assert torch.equal(exit.train_forward(hidden), target.logits(hidden))
    result = Engine(target).generate(prompt_of(7), method, {"temperature": 0}, max_new_tokens=NEW)
    assert result.tokens == naive("float64", prompt_of(7))
    assert depth != "fixed" or name == "no-drafts" or result.metrics.drafted


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_sampled_text_does_not_depend_on_the_batch(name: str, places: Any) -> None:
    target = models("float64")[0]
    engine = Engine(target)
    method = {**METHODS[name], "exit": places(target, 1)}
    batch = [
        {"prompt": prompt_of(5 + 40 * i), "seed": i, "method": {**method, "verify": ("rejection", "coupled")[i % 2]}}
        for i in range(4)
    ]
    alone = [engine.generate(**request, max_new_tokens=12).tokens for request in batch]
    results = engine.batch(batch, 3, max_new_tokens=12)
    assert [result.tokens for result in results] == alone
    assert all(result.metrics.drafted for result in results)


def test_drafting_requests_share_their_forwards(places: Any) -> None:
    """Runs of the first layers are drafts: verification waits until all have drafted, and then serves them together."""
    target = decoder(3)
    engine, calls = Engine(target), []
    forward = target.forward

    def counted(batch: Batch, cache: Any) -> Tensor:
        calls.append((batch.start, batch.stop, len(batch.segments)))
        return forward(batch, cache)

    target.forward = counted  # type: ignore[method-assign]
    method = {"name": "eesd", "gamma": 3, "exit": places(target, 3)}
    results = engine.batch(
        [{"prompt": prompt_of(6 + i)} for i in range(4)],
        4,
        method=method,
        sampling={"temperature": 0},
        max_new_tokens=32,
    )
    verified = [rows for start, stop, rows in calls if stop is None]
    assert all(start == 3 for start, stop, _ in calls if stop is None)
    assert len(verified) == max(result.metrics.rounds for result in results)
    assert verified == [4] * 8


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_on_a_device_the_text_is_the_cpus(name: str, places: Any) -> None:
    here = models("float64")[0]
    exit = places(here, 2)
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": NEW}
    there = Engine(copy.deepcopy(here).to("cuda"))
    assert there.generate(prompt_of(7), {**METHODS[name], "exit": exit}, **options).tokens == naive(
        "float64", prompt_of(7)
    )


# -- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [200, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weights", ["draft", "target"])
def test_beams_follow_beam_sampling(weights: str, count: int, tables: None) -> None:
    target = TabularModel.random(3, seed=11, order=4, n_layers=4)
    engine = Engine(target, end_tokens=frozenset({0}))
    law: Any = BeamLaw(target, [1, 2, 1, 2], SamplingParams(), frozenset({0}), "joint").law(2, True, 4)
    method = {**BEAMS, "width": 2, "n_best": 2, "root_weights": weights}
    requests = [{"prompt": [1, 2, 1, 2], "seed": seed} for seed in range(count)]
    samples: Any = [
        tuple(sorted(tuple(beam.tokens) for beam in result.beams))
        for result in engine.batch(requests, 4, method=method, max_new_tokens=4)
    ]
    assert follows(samples, law)
    assert len(frequencies(samples)) > 10


# -- bad input -------------------------------------------------------------------------------------------------------


def test_bad_exits_are_refused(places: Any, tmp_path: Path) -> None:
    target, other = decoder(3), decoder(4)
    engine = Engine(target)
    whole = Path(places(target, 2))

    def refused(exit: str | None, sentence: str, error: type[Exception] = ModelError, **options: Any) -> None:
        with pytest.raises(error, match=sentence):
            engine.generate([1, 2], {"name": "eesd", "exit": exit, **options})

    refused(None, "was given as an object, has no exit layer next to its weights; make one with `draftwood train eesd`")
    refused(str(tmp_path), "exit.safetensors does not exist; make one with `draftwood train eesd`")
    refused(places(other, 2), "was trained for another target")
    refused(str(whole), "at most 1024 are verified", ConfigurationError, tree=[8, 8, 8, 8])
    known = artifact.load(whole / exits.FILE, "exit")
    for changes, sentence in (
        ({"layers": 4}, "after layer 4 does not fit a target of 4 layers"),
        ({"layers": 0}, "after layer 0 does not fit .* give 1 to 3"),
        ({"layers": "two"}, "is damaged .* make it again with `draftwood train eesd`"),
        ({"depth": 2}, "is damaged"),
        ({"depth": 10**9}, "an exit of 1000000000 layers cannot begin"),
    ):
        replace(known, settings={**known.settings, **changes}).save(tmp_path / exits.FILE)
        refused(str(tmp_path), sentence)
    (tmp_path / exits.FILE).write_bytes((whole / exits.FILE).read_bytes()[:-50])
    refused(str(tmp_path), "cannot be read")
    for layers in (0, LAYERS, 9):
        with pytest.raises(ModelError, match=f"after layer {layers} does not fit a target of 4 layers; give 1 to 3"):
            exits.ExitLayer.of(target, layers)


def test_an_exit_is_no_draft_model_and_a_draft_model_is_no_exit(places: Any) -> None:
    target = decoder(3)
    layer = exits.load(places(target, 2), target)
    with pytest.raises(ModelError, match="reads hidden states of its target; it cannot run alone"):
        Engine(target, [layer]).generate([1, 2, 3], {"name": "speculative", "gamma": 2})
    with pytest.raises(ConfigurationError, match="drafter is model; say drafter=exit"):
        Engine(target, [target]).generate([1], {"name": "mcsd", "exit": places(target, 2)})
    with pytest.raises(ConfigurationError, match="method mcsd needs a draft model"):
        Engine(target).generate([1], "mcsd")
    method = {"name": "mcsd", "drafter": "exit", "exit": places(target, 2)}
    assert Engine(target).generate([1], method, max_new_tokens=5).tokens
    assert Engine(target, [target, target]).generate([1], method, max_new_tokens=5).tokens


def test_methods_of_an_engine_share_an_exit(places: Any) -> None:
    target = decoder(3)
    engine = Engine(target)
    for layers in (1, 2):
        place = places(target, layers)
        for options in ({}, {"gamma": 2}, {"tree": [2, 1]}, {"name": "mcsd", "drafter": "exit"}):
            engine.generate([1, 2], {"name": "eesd", "exit": place, **options}, max_new_tokens=4)
    assert [model.layers for models in engine.builder._models.values() for model in models] == [1, 2]  # type: ignore[attr-defined]


def test_targets_without_layer_ranges_are_refused() -> None:
    from draftwood.models.compiled import Compiled

    for target, sentence in (
        (Compiled(decoder(3)), "a compiled model computes all of its layers at once, .* leave compile out"),
        (TabularModel.random(4, seed=11), "a TabularModel computes all of its layers at once, .* give a checkpoint"),
    ):
        with pytest.raises(ModelError, match=sentence):
            Engine(target).generate([1], "eesd")
