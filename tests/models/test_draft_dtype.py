"""A draft in another type than its target: q is of the draft's type, and the rules stay exact."""

import pytest

import draftwood
from draftwood.engine.loading import EMBEDDED

PROMPT = "Story: In Corfe there lived a sailor called"
METHODS = [
    {"name": "speculative", "gamma": 4},
    {"name": "speculative", "gamma": 4, "verify": "coupled"},
    {"name": "mcsd", "tree": [3, 2, 1]},
    {"name": "specinfer", "expansion": [2, 2], "verify": "kseq"},
]


@pytest.mark.some(1)
@pytest.mark.parametrize(("dtype", "draft"), [("float32", "bfloat16"), ("bfloat16", "float64")])
def test_greedy_and_coupled_text_is_plain_decodings(dtype: str, draft: str) -> None:
    """As in MCSD's experiments: a target in bfloat16, its draft in float64."""
    engine = draftwood.load(dtype=dtype, draft_dtype=draft)
    assert (engine.names["dtype"], engine.names["draft_dtype"]) == (dtype, draft)
    assert str(getattr(engine.drafts[0], "dtype")) == f"torch.{draft}"  # noqa: B009 - not every model has one
    plain = engine.generate(PROMPT, "autoregressive", {"temperature": 0}, max_new_tokens=30)
    noisy = engine.generate(PROMPT, {"name": "autoregressive", "verify": "coupled"}, max_new_tokens=30, seed=4)
    for method in METHODS:
        assert engine.generate(PROMPT, method, {"temperature": 0}, max_new_tokens=30).tokens == plain.tokens
        sampled = engine.generate(PROMPT, method, {"temperature": 1, "top_p": 0.95}, max_new_tokens=30, seed=4)
        assert sampled.lossless and len(sampled.tokens) == 30
    assert engine.generate(PROMPT, METHODS[1], max_new_tokens=30, seed=4).tokens == noisy.tokens
    beams = {"name": "dsbd", "draft_width": 3}
    assert engine.generate(PROMPT, beams, {"temperature": 1}, max_new_tokens=12, seed=1).tokens


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(draftwood.ModelError, match="float8"):
        draftwood.load(EMBEDDED / "target", EMBEDDED / "draft", draft_dtype="float8")
