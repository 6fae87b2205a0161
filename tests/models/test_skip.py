"""A target without some of its sublayers: what it computes, whose weights it has, and which sets are refused."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_session import decoder

from draftwood import ConfigurationError, Engine, Method, ModelError, TabularModel
from draftwood.depth import AdaptiveConfidence
from draftwood.models.compiled import Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.identity import fingerprint
from draftwood.models.skip import (
    BESIDE,
    Skipped,
    SkippedDecoder,
    every_other,
    load_skipped,
    part_bytes,
    save_skipped,
    skipping,
)

TOKENS = torch.arange(3, 15)[None]
SETS = [Skipped((1,), (2,)), Skipped((0, 2), ()), Skipped((), (0, 1)), Skipped((0,), (0,)), Skipped((0, 1), (1, 2))]


def wide(seed: int = 0, layers: int = 4) -> Decoder:
    """Four layers, of which every other sees three positions only."""
    plain = decoder(seed, torch.float64)
    torch.manual_seed(seed)
    config = replace(plain.config, num_hidden_layers=layers, windows=(0, 3) * (layers // 2))
    model = Decoder(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.double().eval()


def silenced(target: Decoder, skipped: Skipped) -> Decoder:
    """A copy whose skipped sublayers add nothing, since their output matrices are zero: the slow way."""
    model = copy.deepcopy(target)
    with torch.no_grad():
        for layer in skipped.attention:
            model.layers[layer].o.weight.zero_()  # type: ignore[union-attr, operator]
        for layer in skipped.mlp:
            model.layers[layer].down.weight.zero_()  # type: ignore[union-attr, operator]
    return model


def test_skipping_nothing_is_the_target_bit_for_bit() -> None:
    for target in (decoder(), wide()):
        view = SkippedDecoder(target, Skipped())
        assert torch.equal(view.train_forward(TOKENS), target.train_forward(TOKENS))
        engine = Engine(target)
        method = {"name": "self-spec", "attention": [], "mlp": [], "gamma": 3, "depth": "fixed"}
        result = engine.generate([5, 6], method, {"temperature": 0}, max_new_tokens=13)
        assert result.metrics.accepted == result.metrics.drafted == 9  # rounds of 4, 4, 4 and 1
        assert result.metrics.rounds == 4


@pytest.mark.parametrize("skipped", SETS, ids=str)
def test_skipped_sublayers_add_nothing(skipped: Skipped) -> None:
    with torch.inference_mode():
        for target in (decoder(dtype=torch.float64), wide()):
            got = SkippedDecoder(target, skipped).train_forward(TOKENS)
            wanted = silenced(target, skipped).train_forward(TOKENS)
            assert float((got - wanted).abs().max()) < 1e-12
            assert float((got - target.train_forward(TOKENS)).abs().max()) > 1e-3


@pytest.mark.parametrize("skipped", SETS, ids=str)
def test_drafts_with_a_cache_are_those_of_the_silenced_model(skipped: Skipped) -> None:
    """The same text and the same acceptance as with the slow model as a draft model."""
    target = wide()
    options = {"attention": list(skipped.attention), "mlp": list(skipped.mlp), "gamma": 3, "depth": "fixed"}
    for seed in range(2):
        got = Engine(target).generate(list(range(2, 9)), {"name": "self-spec", **options}, seed=seed, max_new_tokens=20)
        other = Engine(target, [silenced(target, skipped)])
        wanted = other.generate(list(range(2, 9)), {"name": "speculative", "gamma": 3}, seed=seed, max_new_tokens=20)
        assert got.tokens == wanted.tokens
        assert [r.depth_accepted for r in got.rounds] == [r.depth_accepted for r in wanted.rounds]


def test_every_weight_is_the_targets_own() -> None:
    target = decoder()
    view = SkippedDecoder(target, Skipped((1,), (2,)))
    own = {id(part) for part in target.parameters()}
    assert {id(part) for part in view.parameters()} <= own
    used = [block for rest in view.layers for block, _ in rest.parts]  # type: ignore[union-attr]
    assert {id(part) for block in used for part in block.parameters()} <= own
    assert (len(target.layers), view.n_layers) == (4, 3)  # the target itself is as it was
    cache, whole = view.new_cache(1, 64), target.new_cache(1, 64)
    assert (len(cache.planes), len(whole.planes)) == (6, 8)


def test_bytes_that_a_forward_reads() -> None:
    target = decoder()
    assert SkippedDecoder(target, Skipped()).weight_bytes == target.weight_bytes
    halves = part_bytes(target.layers[1])  # type: ignore[arg-type]
    less = target.weight_bytes - SkippedDecoder(target, Skipped((1,), ())).weight_bytes
    assert less == halves["attention"] > 0
    less = target.weight_bytes - SkippedDecoder(target, Skipped((), (1, 2))).weight_bytes
    assert less == 2 * halves["mlp"] > 0


def test_views_are_told_apart() -> None:
    target = decoder()
    views = [target, *(SkippedDecoder(target, skipped) for skipped in (Skipped(), *SETS))]
    assert len({fingerprint(view) for view in views}) == len(views)


def test_which_set_is_taken(tmp_path: Path) -> None:
    """Named sublayers, a file, the file beside the target's weights, every other layer: in this order."""
    target = wide()
    assert skipping(target, None).skipped == every_other(4) == Skipped((1,), (1,))
    assert every_other(9) == Skipped((1, 3, 5, 7), (1, 3, 5, 7))
    assert (every_other(2), every_other(1)) == (Skipped((), (1,)), Skipped((), (0,)))
    save_skipped(tmp_path / BESIDE, SETS[0], target, {"speed_up": 1.5})
    assert load_skipped(tmp_path / BESIDE, target) == SETS[0]
    assert json.loads((tmp_path / BESIDE).read_text("utf-8"))["speed_up"] == 1.5
    target.home = tmp_path
    assert skipping(target, None).skipped == SETS[0]

    def taken(**options: object) -> Skipped:
        (model,) = Method.parse({"name": "self-spec", **options}).models(target, ())
        assert isinstance(model, SkippedDecoder)
        return model.skipped

    assert taken() == SETS[0]
    assert taken(mlp=[2, 0]) == Skipped((), (0, 2))
    assert taken(attention="1,3", mlp="") == Skipped((1, 3), ())
    save_skipped(tmp_path / "other.json", SETS[1], target, {})
    assert taken(skip=str(tmp_path / "other.json")) == SETS[1]


def test_defaults() -> None:
    method = Method.parse("self-spec")
    assert Method.parse(json.loads(json.dumps(method.as_dict()))) == method
    assert method.lossless
    engine = Engine(wide())
    work = engine._begin(engine._plan([1], "self-spec"))
    assert work.request.depth == AdaptiveConfidence(8)
    work.request.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": [1, 4]}, "the attention of layer 4 cannot be skipped: the target's layers go from 0 to 3"),
        ({"mlp": [7]}, "the mlp of layer 7 cannot be skipped"),
        ({"attention": [0, 1, 2, 3]}, "all 4 attention sublayers are skipped"),
        ({"skip": "nowhere.json"}, "skip set nowhere.json does not exist; find one with `draftwood tune skip"),
        ({"skip": "x.json", "mlp": [1]}, "leave out attention and mlp, or skip"),
        ({"attention": "one"}, "give whole numbers with commas between"),
        ({"attention": [-1]}, "should be greater than or equal to 0"),
    ],
)
def test_sets_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Engine(decoder()).generate([1, 2], {"name": "self-spec", **options})
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    target, path = decoder(), tmp_path / "set.json"
    save_skipped(path, Skipped((1,), ()), decoder(1), {})
    with pytest.raises(ConfigurationError, match="was found for another target"):
        load_skipped(path, target)
    for text, message in (
        ("{", "is not valid JSON"),
        ("[1]", "not an object"),
        ('{"attention": [1]}', "no list of layers 'mlp'"),
        ('{"attention": ["1"], "mlp": []}', "no list of layers 'attention'"),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(ConfigurationError, match=message):
            load_skipped(path, target)


def test_targets_that_cannot_skip() -> None:
    with pytest.raises(ModelError, match="a TabularModel computes all of its layers at once"):
        Engine(TabularModel.random(4, 1)).generate([1], "self-spec")
    with pytest.raises(ModelError, match=r"a compiled model computes all of its layers at once.*leave compile out"):
        Engine(Compiled(decoder())).generate([1], "self-spec")
