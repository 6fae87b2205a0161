"""A target without some of its sublayers: what it computes, whose weights it has, and which sets are refused."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_decoder import decoder
from torch import Tensor

from draftwood import ConfigurationError, Engine, Method, ModelError, TabularModel
from draftwood.core.forest import Forest, Verdict, advance
from draftwood.depth import AdaptiveConfidence
from draftwood.draft import SharedSession
from draftwood.engine.engine import prepare
from draftwood.models.backend.attention import fused
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.compiled import Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import per_layer
from draftwood.models.flat import AttentionMetadata
from draftwood.models.heads.skip import (
    Skipped,
    SkippedDecoder,
    bytes_of_part,
    every_other,
    load,
    save,
    skipping,
)
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

TOKENS = torch.arange(3, 15)[None]
SETS = [Skipped((1,), (2,)), Skipped((0, 2), ()), Skipped((), (0, 1)), Skipped((0,), (0,)), Skipped((0, 1), (1, 2))]


def wide(seed: int = 0, layers: int = 4) -> Decoder:
    """Four layers, of which every other sees three positions only."""
    plain = decoder(seed, torch.float64)
    torch.manual_seed(seed)
    config = replace(plain.config, num_hidden_layers=layers, layers=per_layer(window=(0, 3) * (layers // 2)))
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
            model.layers[layer].mixer.o.weight.zero_()  # type: ignore[union-attr, operator]
        for layer in skipped.mlp:
            model.layers[layer].feed.down.weight.zero_()  # type: ignore[union-attr, operator]
    return model


def test_skipping_nothing_is_the_target_bit_for_bit() -> None:
    for target in (decoder(), wide()):
        view = SkippedDecoder(target, Skipped())
        assert torch.equal(view.train_forward(TOKENS), target.train_forward(TOKENS))
        engine = Engine(target)
        method = {"name": "self-spec", "attention": [], "mlp": [], "gamma": 3, "depth": "fixed"}
        result = engine.generate([5, 6], method, {"temperature": 0}, max_new_tokens=13)
        assert [len(made.tokens) for made in result.rounds] == [1, 4, 4, 4]  # the first one reads the prompt
        assert result.metrics.accepted == result.metrics.drafted == 9


@pytest.mark.parametrize("skipped", SETS, ids=str)
def test_skipped_sublayers_add_nothing(skipped: Skipped) -> None:
    with torch.inference_mode():
        for target in (decoder(dtype=torch.float64), wide()):
            got = SkippedDecoder(target, skipped).train_forward(TOKENS)
            wanted = silenced(target, skipped).train_forward(TOKENS)
            assert float((got - wanted).abs().max()) < 1e-12
            assert float((got - target.train_forward(TOKENS)).abs().max()) > 1e-3


def without_a_cache(target: Decoder, skipped: Skipped, verified: list[int], drafts: list[int]) -> Tensor:
    """Logits [V] after the last draft: layers see what the whole target makes of verified tokens, the rest of drafts.

    Token by token of a layer's input: verified ones go through every sublayer, drafts through those that are left.
    """
    tokens, count = torch.tensor([verified + drafts]), len(verified)
    places = torch.arange(tokens.shape[1])[None]
    x = target.embedded(tokens, places)
    for layer in range(target.n_layers):
        kind = target.attention_kinds[target.kinds[layer]]
        assert kind.rotary is not None
        cos, sin = (table[: tokens.shape[1]] for table in kind.rotary.tables(64, x.device, x.dtype))
        near = (places.mT >= places) & (places > places.mT - (kind.window or 64))
        view = AttentionMetadata(
            cos, sin, fused, torch.zeros(near.shape, dtype=x.dtype).masked_fill(~near, -torch.inf)[None]
        )
        block: Any = target.layers[layer]
        attended = block.mixer(x, view, None)
        if layer in skipped.attention:
            attended[:, count:] = x[:, count:]
        x = block.feed(attended, view, None)
        if layer in skipped.mlp:
            x[:, count:] = attended[:, count:]
    return target.logits(x[0, -1:])[0]


@pytest.mark.parametrize("skipped", SETS, ids=str)
def test_drafts_read_what_the_target_left_and_leave_nothing(skipped: Skipped) -> None:
    """Each draft's logits by the slow way; then the target's answer and its cache, bit for bit as without drafts."""
    target = wide()
    session, plain = (Session(target, target.new_cache(32)) for _ in range(2))
    drafting = SharedSession(SkippedDecoder(target, skipped), session.cache, "draft", target=session)
    assert drafting.context == 0  # there is nothing to draft from yet
    forest = Forest.from_prompt([3, 1, 4, 1, 5], 64)
    with torch.inference_mode():
        for accepted in (0, 2, 1, 0, 3):
            frontier = list(forest.roots)
            for layer in range(3 if drafting.context else 0):
                answer = execute([Run(drafting, forest, frontier)])[0]
                got = answer.logits
                assert answer.rows == len(frontier)
                for node, logits in zip(frontier, got, strict=True):
                    path = [forest.token[one] for one in forest.path(node)]
                    wanted = without_a_cache(target, skipped, forest.trunk, path)
                    torch.testing.assert_close(logits, wanted, atol=1e-12, rtol=1e-12)
                grown = [
                    forest.propose(node, [7 + layer, 2 * layer + node][: max(1, 2 - layer)], None) for node in frontier
                ]
                frontier = [node for children in grown for node in children]
            fresh = range(forest.fresh, len(forest))
            ours, theirs = (execute([Run(one, forest, fresh)])[0] for one in (session, plain))
            assert torch.equal(ours.logits, theirs.logits) and ours.rows == theirs.rows
            assert session.extent and plain.extent
            for plane in range(len(session.cache.planes)):
                one, two = (each.cache.read(plane, each.extent, session.span) for each in (session, plain))  # type: ignore[arg-type]
                assert torch.equal(one, two)
            end = forest.roots[0]
            for _ in range(accepted):
                end = max(node for node in fresh if forest.parent[node] == end)
            trunk, kept, forest = advance(forest, Verdict([end], [accepted + 9], [], {}))
            for one in (session, plain, drafting):
                one.commit(trunk, kept, forest)
    assert session.live_slots == session.cached == len(forest.trunk)


def test_the_prompt_is_read_once() -> None:
    """Rows of both models: the prompt's in the first round only, then one per draft and one per verified token."""
    result = Engine(wide()).generate(list(range(2, 19)), {"name": "self-spec", "gamma": 3, "depth": "fixed"})
    first, *others = result.rounds
    assert (first.draft_rows, first.target_rows, first.drafted) == (0, 17, 0)
    assert all((made.draft_rows, made.target_rows) == (made.drafted, 1 + made.drafted) for made in others)
    assert result.metrics.draft_rows > 50


def test_every_weight_is_the_targets_own() -> None:
    target = decoder()
    view = SkippedDecoder(target, Skipped((1,), (2,)))
    own = {id(part) for part in target.parameters()}
    assert {id(part) for part in view.parameters()} <= own
    used = [block for rest in view.layers for block, _ in rest.parts]  # type: ignore[union-attr]
    assert {id(part) for block in used for part in block.parameters()} <= own
    assert (len(target.layers), view.n_layers) == (4, 3)  # the target itself is as it was


def test_bytes_that_a_forward_reads() -> None:
    target = decoder()
    assert SkippedDecoder(target, Skipped()).weight_bytes == target.weight_bytes
    layer: Any = target.layers[1]
    less = target.weight_bytes - SkippedDecoder(target, Skipped((1,), ())).weight_bytes
    assert less == bytes_of_part(layer.mixer) > 0
    less = target.weight_bytes - SkippedDecoder(target, Skipped((), (1, 2))).weight_bytes
    assert less == 2 * bytes_of_part(layer.feed) > 0


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
    path = artifact.companion(tmp_path, "skip")
    save(path, SETS[0], fingerprint(target), speed_up=1.5)
    assert load(path, target) == SETS[0]
    assert artifact.load(path, "skip").about == {"speed_up": 1.5}
    target.home = tmp_path
    assert skipping(target, None).skipped == SETS[0]

    def taken(**options: object) -> Skipped:
        (model,) = Method.parse({"name": "self-spec", **options}).models(target, ())
        assert isinstance(model, SkippedDecoder)
        return model.skipped

    assert taken() == SETS[0]
    assert taken(mlp=[2, 0]) == Skipped((), (0, 2))
    assert taken(attention="1,3", mlp="") == Skipped((1, 3), ())
    save(tmp_path / "other.safetensors", SETS[1], fingerprint(target))
    assert taken(skip=str(tmp_path / "other.safetensors")) == SETS[1]


def test_defaults() -> None:
    method = Method.parse("self-spec")
    assert Method.parse(json.loads(json.dumps(method.as_dict()))) == method
    assert method.lossless
    engine = Engine(wide())
    generation = prepare(engine, [1], method="self-spec")
    assert generation.depth == AdaptiveConfidence(8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": [1, 4]}, "the attention of layer 4 cannot be skipped: the target's layers go from 0 to 3"),
        ({"mlp": [7]}, "the mlp of layer 7 cannot be skipped"),
        ({"attention": [0, 1, 2, 3]}, "all 4 attention sublayers are skipped"),
        (
            {"skip": "nowhere.safetensors"},
            "skip set nowhere.safetensors does not exist; make one with `draftwood tune skip",
        ),
        ({"skip": "x.json", "mlp": [1]}, "leave out attention and mlp, or skip"),
        ({"attention": "one"}, "give whole numbers with commas between"),
        ({"attention": [-1]}, "must be at least 0"),
    ],
)
def test_sets_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigurationError, ModelError), match=message) as caught:
        Engine(decoder()).generate([1, 2], {"name": "self-spec", **options})
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    target, path = decoder(), tmp_path / "set.safetensors"
    save(path, Skipped((1,), ()), fingerprint(decoder(1)))
    with pytest.raises(ModelError, match="was trained for another target"):
        load(path, target)
    for settings in ({"attention": [1]}, {"attention": ["1"], "mlp": []}, {"attention": 1, "mlp": []}, {}):
        artifact.Artifact("skip", {"target": fingerprint(target)}, settings).save(path)
        with pytest.raises(ModelError, match=r"is damaged .*; make it again with `draftwood tune skip`"):
            load(path, target)


def test_targets_that_cannot_skip() -> None:
    with pytest.raises(ModelError, match="a TabularModel computes all of its layers at once"):
        Engine(TabularModel.random(4, 1)).generate([1], "self-spec")
    with pytest.raises(ModelError, match=r"a compiled model computes all of its layers at once.*leave compile out"):
        Engine(Compiled(decoder())).generate([1], "self-spec")
