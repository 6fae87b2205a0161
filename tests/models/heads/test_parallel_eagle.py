"""P-EAGLE heads: what published ones say in one pass, and plain decoding's text."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import LAYER, config, says, write
from every_method import shortage
from greedy_reference import models, naive, prompt_of
from safetensors.torch import save_file
from small_decoder import decoder
from test_eagle import driven

from draftwood import Engine, ModelError
from draftwood.core.forest import Forest
from draftwood.draft import BlockSession, BlockSource
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.heads import eagle, foreign_heads
from draftwood.runtime.session import Session
from draftwood.util.native_library import unavailable

BLOCK = 4
PARALLEL: dict[str, Any] = {
    "speculators_model_type": "peagle",
    "mask_token_id": 7,
    "speculators_config": {"proposal_methods": [{"speculative_tokens": BLOCK}]},
}


MORE = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True, "layers": 2}


@pytest.mark.parametrize("held", ["float32", "float64", "native"])
@pytest.mark.parametrize("more", [{}, MORE], ids=str)
def test_a_published_head_says_what_its_format_says(more: dict[str, Any], held: str, tmp_path: Path) -> None:
    """In two rounds: the row of the first root, which is right, stays."""
    dtype = torch.float64 if held == "float64" else torch.float32
    raw, target, plain = config(**PARALLEL, **more), decoder(3, dtype), decoder(3, dtype)
    tensors = write(tmp_path, raw, embeds=not more)
    if held == "native":
        if reason := unavailable():
            pytest.skip(reason)
        pack(target, holder(dtype, target.device, None, "native"))
    assert foreign_heads.kind_of(tmp_path) == "eagle"
    head = eagle.load(tmp_path, target)
    sessions = Session(target, target.new_cache()), BlockSession(head, head.new_cache(), "draft")
    source, close = BlockSource(*sessions, head.reads), {torch.float32: 2e-4, torch.float64: 1e-6}[dtype]
    text = [3, 1, 4, 1, 5, 9, 2]
    for token in (None, 6):
        text += [] if token is None else [token]
        forest = Forest.from_prompt(text)
        source.begin(forest)
        nodes = list(forest.roots)
        for draft in range(BLOCK - 1):
            nodes += forest.propose(nodes[-1], [draft], None)
        made = driven(source.answer(forest, nodes, hidden=True)).logits
        wanted = torch.stack([says(raw, tensors, plain, text, masks=k) for k in range(BLOCK)])
        torch.testing.assert_close(made, wanted.to(made.dtype), atol=close, rtol=close)
        source.take(forest.roots, [], Forest.from_prompt([*text, 6]), ())
        source.commit(forest.roots, [], Forest.from_prompt([*text, 6]))
        assert sessions[1].live_slots == len(text)  # the root's row too, and of masks nothing


def test_text_is_plain_decodings_and_samples_are_the_batchs(tmp_path: Path) -> None:
    target = models("float64")[0]
    write(tmp_path, config(**PARALLEL), embeds=True)
    engine = Engine(target, [eagle.load(tmp_path, target)])
    assert engine.default_method.name == "eagle"
    prompts = [prompt_of(length) for length in (1, 2, 30)]
    for method in ({"name": "eagle", "depth": "fixed"}, {"name": "eagle", "width": 3, "least": 0.0}):
        with shortage(0.1, random.Random(3), engine):
            results = engine.batch(prompts, 3, method=method, sampling={"temperature": 0}, max_new_tokens=12)
        assert [result.tokens for result in results] == [naive("float64", prompt)[:12] for prompt in prompts]
        assert all(result.metrics.drafted for result in results)
    options: dict[str, Any] = {"method": "eagle", "sampling": {"temperature": 0.9}, "max_new_tokens": 12}
    requests = [{"prompt": prompt, "seed": 3} for prompt in prompts]
    alone = [engine.generate(**request, **options).tokens for request in requests]
    assert [result.tokens for result in engine.batch(requests, 3, **options)] == alone

    beams = {"name": "speculative-beam-search", "drafter": "eagle", "width": 2, "depth": "fixed"}
    searched = engine.batch(prompts, 3, method=beams, max_new_tokens=12)
    expected = engine.batch(prompts, 3, method={"name": "beam-search", "width": 2}, max_new_tokens=12)
    assert [result.tokens for result in searched] == [result.tokens for result in expected]
    assert sum(result.metrics.drafted for result in searched)


def test_bad_published_heads_are_refused(tmp_path: Path) -> None:
    raw = config(**PARALLEL)
    tensors = write(tmp_path, raw)
    save_file({name: part for name, part in tensors.items() if name != "mask_hidden"}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="tensor mask_hidden is missing; fetch the head again"):
        eagle.load(tmp_path, decoder(3))
    write(tmp_path, {**raw, "mask_token_id": 40})
    with pytest.raises(ModelError, match="mask_token_id is 40, but must be one of the target's 19 tokens"):
        eagle.load(tmp_path, decoder(3))
    (tmp_path / "config.json").write_text(
        json.dumps({**raw, "speculators_config": {"proposal_methods": [{"speculative_tokens": 100}]}})
    )
    with pytest.raises(ModelError, match="speculative_tokens is 100, but models have at most 64"):
        eagle.load(tmp_path, decoder(3))


def test_tokens_behind_those_that_a_head_embeds_are_its_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LAYER, "vocab_size", 200)
    write(tmp_path, config(draft_vocab_size=200, **PARALLEL), embeds=True)
    target = decoder(3, vocab_size=202)
    engine = Engine(target, [eagle.load(tmp_path, target)])
    prompt = [3, 1, 201, 4, 200]
    texts = [
        engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=12, ignore_eos=True).tokens
        for method in ("autoregressive", "eagle")
    ]
    assert texts[0] == texts[1]
