"""The option `depth`: its forms, how it travels, and one sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftwood import ConfigurationError, Method
from draftwood.depth import (
    CONTROLLERS,
    LOAD,
    AdaptiveConfidence,
    Auto,
    BetaThompson,
    Confidence,
    Entropy,
    Fixed,
    OptimalStopping,
    SpeedupThompson,
    depth_text,
    parse_depth,
)
from draftwood.util.config import assignments

WITH_DEPTH = ["speculative", "specinfer", "mcsd", "dsbd", "speculative-beam-search"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("fixed", "fixed"),
        ("confidence", "confidence"),
        ("confidence:0.4", "confidence"),
        ("confidence:0.3", "confidence:0.3"),
        ("confidence:threshold=0.3", "confidence:0.3"),
        ({"name": "confidence", "threshold": 0.3}, "confidence:0.3"),
        ("entropy:1", "entropy:1.0"),
        ("beta-ts", "beta-ts"),
        ("beta-ts:a=2,b=3", "beta-ts:a=2.0,b=3.0"),
        ("speedup-ts:0.9,cost=0.1", "speedup-ts:discount=0.9,cost=0.1"),
        ("speedup-ts:cost=null", "speedup-ts"),
        ("decision:models/one.safetensors", "decision:models/one.safetensors"),
        ({"name": "decision", "path": Path("one"), "threshold": 0.4}, "decision:one"),
        ("decision:one,threshold=0.5", "decision:path=one,threshold=0.5"),
        ({"name": "optimal-stopping", "cost": 1e-3}, "optimal-stopping:cost=0.001"),
    ],
)
def test_forms_and_their_canonical_text(value: object, text: str) -> None:
    assert depth_text(value) == text
    assert parse_depth(text) == parse_depth(value)


SIZED = {
    "speculative": "gamma=4",
    "specinfer": "expansion=2,1",
    "mcsd": "tree=2,1",
    "mcsd-fork": "width=2",
    "speculative-beam-search": "draft_width=6",
}


@pytest.mark.parametrize("name", WITH_DEPTH)
@pytest.mark.parametrize("depth", ["fixed", "confidence:0.25", "speedup-ts:discount=0.9,cost=0.2"])
def test_methods_round_trip(name: str, depth: str) -> None:
    method = Method.parse(name, assignments([f"depth={depth}"]))
    assert method.as_dict()["depth"] == depth
    assert Method.parse(json.loads(json.dumps(method.as_dict()))) == method
    assert Method.parse({"name": name}).as_dict()["depth"] == ("auto" if name in SIZED else "fixed")


@pytest.mark.parametrize(("name", "size"), SIZED.items())
def test_a_size_that_is_named_is_drafted(name: str, size: str) -> None:
    assert Method.parse(name, assignments([size])).as_dict()["depth"] == "fixed"
    assert Method.parse(name, assignments([size, "depth=auto"])).as_dict()["depth"] == "auto"
    assert Method.parse("speculative", {"depth": "confidence"}).as_dict()["gamma"] == 4


def test_beams_of_a_dynamic_width_are_always_drafted() -> None:
    """Their width comes from drafts."""
    depths = {size: Method.parse("dsbd", assignments(size)).as_dict()["depth"] for size in [(), ("width=4",)]}
    assert depths == {(): "fixed", ("width=4",): "auto"}
    assert Method.parse("dsbd", assignments(["width=4", "gamma=2"])).as_dict()["depth"] == "fixed"
    assert Method.parse("dsbd", assignments(["depth=auto"])).as_dict()["depth"] == "auto"


def test_a_mapping_on_the_command_line() -> None:
    values = assignments(["depth={name: confidence, threshold: 0.2}", "threshold=0.8"])
    method = Method.parse("dsbd", values).as_dict()
    assert (method["depth"], method["threshold"]) == ("confidence:0.2", 0.8)


def test_controllers_are_built_anew_with_the_most_layers() -> None:
    kinds = (Auto, Fixed, Confidence, AdaptiveConfidence, Entropy, BetaThompson, SpeedupThompson, OptimalStopping)
    without_files = [settings for settings in CONTROLLERS.values() if "path" not in settings.model_fields]
    for settings, kind in zip(without_files, kinds, strict=True):
        one, other = settings().build(7), settings().build(7)
        assert type(one) is kind
        assert one == other
        assert one is not other
        assert one.most == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("speedup", r"there is no controller 'speedup' \(did you mean 'speedup-ts'\?\)"),
        (
            "confidence:2",
            "controller confidence: setting 'threshold' is 2, but must be at most",
        ),
        ("confidence:", "settings are key=value"),
        ("confidence:0.2,0.3", "settings are key=value"),
        ("confidence:=3", "settings are key=value"),
        ("fixed:3", "fixed has no settings"),
        ({"name": "fixed", "gamma": 3}, "fixed has no settings"),
        ("confidence:limit=3", r"confidence has no setting 'limit'"),
        ("beta-ts:0", "controller beta-ts: setting 'discount' is 0, but must be above 0"),
        ("speedup-ts:cost=much", "controller speedup-ts: setting 'cost' is 'much', but must be a valid number"),
        ("decision", "decision needs its setting 'path', as decision:PATH"),
        ({"name": "decision", "path": "a,b"}, "setting 'path' is 'a,b', but must be a path without commas and ="),
        (
            "decision:one,threshold=1.5",
            "controller decision: setting 'threshold' is 1.5, but must be",
        ),
        ("", "there is no controller ''"),
        ({"threshold": 0.3}, "a controller needs a name"),
        (4, "a controller is a name or a mapping"),
        (None, "a controller is a name or a mapping"),
    ],
)
def test_mistakes_give_one_sentence(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Method.parse({"name": "speculative", "depth": value})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("method speculative: option 'depth' is ")


def test_methods_without_drafts_have_no_depth() -> None:
    for name in ("autoregressive", "beam-sampling", "beam-search"):
        with pytest.raises(ConfigurationError, match="no option 'depth'"):
            Method.parse({"name": name, "depth": "beta-ts"})


def test_fixed_depths_do_not_ask_for_the_load() -> None:
    assert not LOAD & Fixed(4).needs
