"""quantize="int4" from loading to text: made once, kept, exact to the model so changed."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.models import int4
from draftwood.util import native_library

pytestmark = pytest.mark.skipif(native_library.unavailable() is not None, reason="draftwood-native is not installed")
PROMPT = "Problem: Rosa has 26 apples. Rosa buys 9 more. Rosa loses 7 of them. How many apples does Rosa have?\nSteps:"


@pytest.mark.slow
def test_a_model_in_four_bits_is_made_once_and_drafts_change_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    shutil.copytree(EMBEDDED / "target", target, ignore=shutil.ignore_patterns("int4"))
    shares: Counter[str] = Counter()
    engine = draftwood.load(target, quantize="int4", progress=lambda what, share: shares.update({what: share}))  # type: ignore[dict-item]
    told, made = {"loading target", "writing text to calibrate target with"}, "quantising target to int4, once"
    assert shares.pop(made) == 0
    assert all(share == pytest.approx(1, abs=0.01) for share in shares.values())
    assert told < shares.keys() and {step.partition(": about ")[0] for step in shares.keys() - told} == {made}
    assert engine.names["quantize"] == "int4" and engine.target.layers[0].mixer.qkv.kind == "int4"
    assert engine.target.head.kind == "int8"
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 40, "ignore_eos": True}
    plain = engine.generate(PROMPT, "autoregressive", **options)
    for method in ({"name": "lookup"}, {"name": "self-spec"}):
        assert engine.generate(PROMPT, method, **options).tokens == plain.tokens
    exact = draftwood.load(target, dtype="bfloat16").generate(PROMPT, "autoregressive", **options)
    assert plain.tokens[:8] == exact.tokens[:8]
    monkeypatch.setattr(int4, "quantised", None)  # it would be called to make them anew
    again = draftwood.load(target, quantize="int4").generate(PROMPT, "autoregressive", **options)
    assert again.tokens == plain.tokens and again.logprobs == plain.logprobs
