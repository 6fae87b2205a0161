"""DFlash heads as models: what published ones say, their files, and those that are trained here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import family_models
import pytest
import torch
from dflash_heads import BLOCK, QWEN_LAYER, SLIDING, config, says, states, write
from safetensors.torch import save_file
from small_decoder import decoder
from test_eagle import driven, wide

from draftwood import Engine, ModelError
from draftwood.core.forest import Forest
from draftwood.draft import BlockSession, BlockSource
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.heads import dflash, foreign_heads
from draftwood.models.heads.dflash_head import DFlashHead
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.runtime.session import Session
from draftwood.util.native_library import unavailable

SPARK: dict[str, Any] = {"speculators_model_type": "dspark", "markov_rank": 4}
KINDS: dict[str, dict[str, Any]] = {
    "speculators": {},
    "from-anchor": {"sample_from_anchor": True},
    "few-words": {"draft_vocab_size": 11},
    "windows": {"layer": SLIDING},
    "windows-both-ways": {"layer": SLIDING, "sliding_window_non_causal": True},
    "spark": SPARK,
    "spark-gated": {**SPARK, "markov_head_type": "gated", "sample_from_anchor": False, "draft_vocab_size": 11},
    "authors": {"authors": True},
    "authors-windows": {"authors": True, "layer": SLIDING},
    "authors-windows-both-ways": {"authors": True, "layer": SLIDING, "is_causal": False},
}


@pytest.mark.some(12)
@pytest.mark.parametrize("held", ["float32", "float64", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_published_head_says_what_its_format_says(kind: str, held: str, tmp_path: Path) -> None:
    """In two rounds: the tokens that the first accepted are context in the second."""
    dtype = torch.float64 if held == "float64" else torch.float32
    raw, target, plain = config(**KINDS[kind]), decoder(3, dtype), decoder(3, dtype)
    tensors = write(tmp_path, raw)
    if held == "native":
        if unavailable():
            pytest.skip("draftwood-native is not installed")
        pack(target, holder(dtype, target.device, None, "native"))
    head = dflash.load(tmp_path, target)
    assert head.decoder.native == (held == "native") and head.reads == (1, 2, 3)
    assert head.count == BLOCK - (kind not in ("from-anchor", "spark"))
    sessions = Session(target, target.new_cache()), BlockSession(head, head.new_cache(), "draft")
    source, close = BlockSource(*sessions, head.reads), {torch.float32: 2e-4, torch.float64: 1e-6}[dtype]
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    for more in ([], [3, 5, 8]):
        text += more
        forest = Forest.from_prompt(text)
        source.take([], [], forest, [])  # as after a round of the target
        source.begin(forest)
        assert source.context == len(text) - 1 + head.count
        nodes = list(forest.roots)
        for token in range(head.count - 1):
            nodes += forest.propose(nodes[-1], [token, token + 1], None)[:1]
        made = driven(source.answer(forest, nodes, hidden=True))
        drafts = [forest.token[node] for node in nodes[1:]]
        wanted = says(raw, tensors, plain, text, drafts).clamp(min=ABSENT_LOGIT).to(made.logits.dtype)
        torch.testing.assert_close(made.logits, wanted, atol=close, rtol=close)
        assert made.hidden[head.n_layers].shape == (head.count, 24)
        source.take([], [], forest, ())
        source.commit([], [], forest)
        assert sessions[1].live_slots == len(text) - 1  # of the block nothing is left


def test_trained_heads_give_themselves_back(tmp_path: Path) -> None:
    target = decoder(3)
    made = DFlashHead.of(target, 2, 6)
    dflash.save(made, tmp_path, torch.float32, trained={"steps": 3})
    again = dflash.load(tmp_path, target, packed=False)
    assert (again.reads, again.block, again.count, len(again.mixers)) == (made.reads, 6, 5, 2)
    assert again.decoder.head is target.head and "decoder.head.weight" not in made.weights()
    for name, part in made.weights().items():
        assert torch.equal(again.weights()[name], part), name
    with pytest.raises(ModelError, match="cannot be saved"):
        dflash.load(tmp_path, target).weights()
    assert foreign_heads.kind_of(tmp_path) == "dflash"
    with pytest.raises(ModelError, match="a block of 1 tokens by 2 layers cannot be made; give 2 tokens or more"):
        DFlashHead.of(target, 2, 1)


def test_training_is_drafting(tmp_path: Path) -> None:
    """Blocks behind several anchors of texts at once are those of each text up to its anchor."""
    target, raw = decoder(3, torch.float64), config()
    tensors = write(tmp_path, raw)
    head = dflash.load(tmp_path, target, packed=False)
    texts = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]]
    anchors = [[2, 7, 4], [5, 3, 8]]
    with torch.no_grad():
        given = torch.stack([states(target, text) for text in texts])
        made = head.train_forward(given, torch.tensor(texts), torch.tensor(anchors))
    for row, (text, places) in enumerate(zip(texts, anchors, strict=True)):
        for number, place in enumerate(places):
            wanted = says(raw, tensors, target, text[: place + 1])
            torch.testing.assert_close(made[row, number], wanted, atol=1e-6, rtol=1e-6)


def refused(directory: Path, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        dflash.load(directory, decoder(3))
    assert "\n" not in str(caught.value)


def test_bad_published_heads_are_refused(tmp_path: Path) -> None:
    def change(sentence: str, without: str = "", more: dict[str, Any] | None = None, **changes: Any) -> None:
        raw = config(**changes)
        tensors = write(tmp_path, raw)
        tensors.pop(without, None)
        save_file({**tensors, **(more or {})}, tmp_path / "model.safetensors")
        refused(tmp_path, sentence)

    change("tensor hidden_norm.weight is missing; fetch the head again", "hidden_norm.weight")
    change("does not ask for tensor layers.0.mlp_conv.x", more={"layers.0.mlp_conv.x": torch.ones(2)})
    change("knows 11 of 19 tokens, but not which", "d2t", draft_vocab_size=11)
    change("head reads the target after layers 1, 2, 4, but a target of 4", aux_hidden_state_layer_ids=[1, 2, 4])
    change("was made for a target of 40 tokens, but this one knows 19; give a head", layer={"vocab_size": 40})
    change("a DFlash head of 'mamba' layers is not supported", layer={"model_type": "mamba"})
    change("config.json: rms_norm_eps is -1, but must be a positive", layer={"rms_norm_eps": -1})
    change("mask_token_id is 19, but must be one of the target's 19 tokens", mask_token_id=19)
    change("mask_token_id is None, but must be one", mask_token_id=None)
    change(
        "a DSpark head of markov_head_type 'rnn' is not read; vanilla and gated are: use one",
        **SPARK,
        markov_head_type="rnn",
    )
    change("block_size is 1, but must be 2 to 64", block_size=1)
    change("dflash_config has 'selector_rank', which is not known", authors=True, dflash_config={"selector_rank": 4})
    change("asks for sliding_attention|layer_types is", layer={"layer_types": ["chunked"] * 2})
    change("aux_hidden_state_layer_ids is 3, but must be numbers of layers", aux_hidden_state_layer_ids=3)
    write(tmp_path, config())
    tensors = write(tmp_path / "padded", config(draft_vocab_size=11, layer={"vocab_size": 200}))
    tensors["d2t"] = torch.tensor([0] * 10 + [189])  # its last one is token 199
    save_file(tensors, tmp_path / "padded" / "model.safetensors")
    with pytest.raises(ModelError, match="drafts token 199, but this target has 198; give a head of this target"):
        dflash.load(tmp_path / "padded", decoder(3, vocab_size=198))
    with pytest.raises(ModelError, match="was made for a target 24 wide, but this one is 32 wide"):
        dflash.load(tmp_path, wide())
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "xpress"}))
    with pytest.raises(ModelError, match="type 'xpress', but of these only eagle3, peagle, dflash and dspark are read"):
        foreign_heads.kind_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config(authors=True)))
    assert foreign_heads.kind_of(tmp_path) == "dflash" and QWEN_LAYER["model_type"] == "qwen3"


def test_bad_trained_heads_are_refused(tmp_path: Path) -> None:
    target = decoder(3)
    dflash.save(DFlashHead.of(target, 1, 4), tmp_path)
    known = artifact.load(tmp_path / dflash.FILE, "dflash")
    replace(known, settings={}).save(tmp_path / dflash.FILE)
    refused(tmp_path, "is damaged .* make it again with `draftwood train dflash`")
    replace(known, settings={**known.settings, "reads": [9]}).save(tmp_path / dflash.FILE)
    refused(tmp_path, "after layers 9, but a target of 4 layers can be read after 1 to 3")
    replace(known, tensors={}).save(tmp_path / dflash.FILE)
    refused(tmp_path, "is damaged")
    replace(known, models={"target": fingerprint(decoder(4))}).save(tmp_path / dflash.FILE)
    refused(tmp_path, "was trained for another target")
    with pytest.raises(
        ModelError, match="has no DFlash head next to its weights; make one with `draftwood train dflash`"
    ):
        Engine(target).generate([1, 2], "dflash")
    with pytest.raises(ModelError, match="cannot run alone as a draft model: use method dflash"):
        Engine(target, [DFlashHead.of(target, 1, 4)]).generate([1, 2, 3], "speculative")


def test_a_head_for_an_output_layer_with_a_bias_leaves_it_to_the_target(tmp_path: Path) -> None:
    family_models.write(tmp_path / "target", "phi")
    target = checkpoint.load(tmp_path / "target", dtype="float32", packed=False)
    assert target.head.bias is not None
    dflash.save(DFlashHead.of(target, 1, 4), tmp_path / "head", torch.float32, trained={"steps": 3})
    assert dflash.load(tmp_path / "head", target, packed=False).decoder.head is target.head
