"""EAGLE-3 heads as models: what published ones say, their files, and those that are trained here."""

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import family_models
import pytest
import torch
from eagle_heads import LAYER, READS, config, says, states, weights, write
from safetensors.torch import load_file, save_file
from small_decoder import LAYERS, VOCAB, decoder

from draftwood import ConfigurationError, Engine, ModelError
from draftwood.core.forest import Forest
from draftwood.draft import HeadSession, HeadSource
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.pickled import convert
from draftwood.models.heads import eagle, foreign_heads
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Answer, Run, Session
from draftwood.util.native_library import unavailable

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "speculators": ({}, {}),
    "norm-first": ({"norm_before_residual": True}, {}),
    "few-words": ({"draft_vocab_size": 11}, {}),
    "own-embeddings": ({"norm_before_fc": True}, {"embeds": True}),
    "two-layers": ({"layers": 2}, {}),
    **{
        f"one-state{name}": ({"eagle_aux_hidden_state_layer_ids": [2], **norms}, {"states": 1})
        for name, norms in (("", {}), ("-normed", {"norm_before_fc": True}), ("-3.1", {"fc_norm": True}))
    },
    "3.1": ({"fc_norm": True, "norm_output": True}, {}),
    "original": ({"original": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": READS}}, {}),
    "original-few-words": (
        {"original": True, "draft_vocab_size": 11, "eagle_aux_hidden_state_layer_ids": READS},
        {},
    ),
}


def driven(work: Generator[Run, Answer, Answer]) -> Answer:
    """The result of decoding code whose runs are answered one by one."""
    answer: Any = None
    try:
        while True:
            run = next(work) if answer is None else work.send(answer)
            with torch.inference_mode():
                answer = execute([run])[0]
    except StopIteration as done:
        found: Answer = done.value
        return found


@pytest.mark.some(12)
@pytest.mark.parametrize("held", ["float32", "float64", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_published_head_says_what_its_format_says(kind: str, held: str, tmp_path: Path) -> None:
    """Below the root, below siblings at once, and below their children, against all of it anew without a cache."""
    options, more = KINDS[kind]
    dtype = torch.float64 if held == "float64" else torch.float32
    raw, target, plain = config(**options), decoder(3, dtype), decoder(3, dtype)
    tensors = write(tmp_path, raw, **more)
    if held == "native":
        if reason := unavailable():
            pytest.skip(reason)
        pack(target, holder(dtype, target.device, None, "native"))
    head = eagle.load(tmp_path, target)
    assert head.decoder.native == (held == "native")
    assert set(head.reads) == set(options.get("eagle_aux_hidden_state_layer_ids", READS))
    assert head.n_layers == options.get("layers", 1) + 1
    source = HeadSource(Session(target, target.new_cache()), HeadSession(head, head.new_cache(), "draft"), head.reads)
    prompt = [3, 1, 4, 1, 5, 9, 2]
    forest = Forest.from_prompt(prompt)
    close = {torch.float32: 2e-4, torch.float64: 1e-6}[dtype]  # rotary angles are float32

    def check(nodes: list[int]) -> None:
        found = driven(source.answer(forest, nodes, hidden=True))
        for row, node in zip(found.logits, nodes, strict=True):
            wanted = says(raw, tensors, plain, prompt, [forest.token[n] for n in forest.path(node)[1:]])
            wanted = wanted.clamp(min=ABSENT_LOGIT)
            torch.testing.assert_close(row, wanted.to(row.dtype), atol=close, rtol=close)
        assert found.hidden[head.n_layers].shape == (len(nodes), 24)

    check(forest.roots)
    again = driven(source.answer(forest, forest.roots))
    assert (again.tops is not None) == (held == "native")
    if again.tops is not None:
        assert list(again.tops.best) == again.logits.argmax(-1).tolist()
        assert again.tops.log_sums[0] == pytest.approx(float(again.logits[0].logsumexp(-1)), rel=1e-5)
    children = forest.propose(forest.roots[0], [7, 8], None)
    check(children)
    below = forest.propose(children[1], [6], None) + forest.propose(children[0], [5, 6], None)
    check(below)
    assert not driven(source.answer(forest, below)).hidden  # which nobody asked for
    (skipped,) = forest.propose(below[0], [2], None)
    check(forest.propose(skipped, [3], None))  # the state of the node between is not known yet


def test_trained_heads_give_themselves_back(tmp_path: Path) -> None:
    target = decoder(3)
    for words in (None, torch.tensor([0, 2, 3, 7, 11])):
        made = EagleHead.of(target, words=words)
        eagle.save(made.weights(), tmp_path, made.target, made.reads, torch.float32, trained={"steps": 3})
        again = eagle.load(tmp_path, target, packed=False)
        assert again.reads == made.reads == (2, 2, 1)
        for name, part in made.weights().items():
            assert torch.equal(again.weights()[name], part), name
    with pytest.raises(ModelError, match="packed cannot be saved"):
        eagle.load(tmp_path, target).weights()
    assert {path.name for path in tmp_path.iterdir()} == {"eagle.safetensors"}


@pytest.mark.parametrize(
    ("trained", "known"),
    [({"acceptance": 0.25}, 0.25), ({"acceptance": 7.0}, None), ({"acceptance": "high"}, None), ({}, None), (3, None)],
)
def test_a_head_knows_what_its_training_has_measured(trained: object, known: float | None, tmp_path: Path) -> None:
    target = decoder(3)
    made = EagleHead.of(target)
    eagle.save(made.weights(), tmp_path, made.target, made.reads, torch.float32, trained=trained)
    assert eagle.load(tmp_path, target).acceptance == known


@pytest.mark.parametrize("norms", [{}, {"fc_norm": True, "norm_output": True}], ids=["3", "3.1"])
def test_unrolled_training_is_drafting(norms: dict[str, bool], tmp_path: Path) -> None:
    """Row i - 1 of step k has the logits of a k-th draft: k - 1 tokens before it are drafts, others verified."""
    target = decoder(3, torch.float64)
    raw = config(**norms)
    tensors = write(tmp_path, raw)
    head = eagle.load(tmp_path, target, packed=False)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    with torch.no_grad():
        found = head.train_forward(states(target, text)[None], torch.tensor([text]), 4)
    assert found.shape == (4, 1, len(text) - 1, VOCAB)
    for step in range(1, 5):
        for row in range(step, len(text)):
            wanted = says(raw, tensors, target, text[: row - step + 2], text[row - step + 2 : row + 1])
            torch.testing.assert_close(found[step - 1, 0, row - 1], wanted, atol=1e-6, rtol=1e-6)


def refused(directory: Path, sentence: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        eagle.load(directory, decoder(3), **options)
    assert "\n" not in str(caught.value)


def test_bad_published_heads_are_refused(tmp_path: Path) -> None:
    def change(sentence: str, without: str = "", more: dict[str, Any] | None = None, **changes: Any) -> None:
        raw = config(**changes)
        tensors = write(tmp_path, raw)
        tensors.pop(without, None)
        save_file({**tensors, **(more or {})}, tmp_path / "model.safetensors")
        refused(tmp_path, sentence)

    change("tensor fc.weight is missing; fetch the head again", "fc.weight")
    change(
        "does not ask for tensor layers.0.self_attn.q_proj.bias",
        more={"layers.0.self_attn.q_proj.bias": torch.ones(24)},
    )
    change("knows 11 of 19 tokens, but not which", "d2t", draft_vocab_size=11)
    change("d2t does not name 11 of 19", more={"d2t": torch.full((11,), 50)}, draft_vocab_size=11)
    change("draft_vocab_size is 100, but must be 1 to 19", more={}, draft_vocab_size=100)
    change("reads the target after layers 1, 2, 4, but a target of 4", eagle_aux_hidden_state_layer_ids=[1, 2, 4])
    for ids in ([0, 2], [2, 4]):
        change(
            "after 1 to 3; not before the first or behind the last: use another", eagle_aux_hidden_state_layer_ids=ids
        )
    for wrong in (2, [True], ["2"], {}):
        change("layer_ids is .*, but must be numbers of layers", eagle_aux_hidden_state_layer_ids=wrong)
    change("eagle_config is \\[2\\], but must be an object", original=True, eagle_config=[2])
    change("asks for norm_before_fc and fc_norm, of which a head has one", norm_before_fc=True, fc_norm=True)
    change("norm_output is 'yes', but must be true or false", norm_output="yes")
    change("is \\[24, 48\\], but \\[24, 72\\]", more={"fc.weight": torch.zeros(24, 48)})
    write(tmp_path, config())
    for layer, sentence in (
        ({**LAYER, "vocab_size": 40}, "was made for a target of 40 tokens, but this one knows 19; give a head"),
        ({"model_type": "mamba"}, "an EAGLE head of 'mamba' layers is not supported; llama and qwen3 are"),
        ({**LAYER, "num_attention_heads": -1}, "num_attention_heads is -1, but must be a positive whole number"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config(transformer_layer_config=layer)))
        refused(tmp_path, sentence)
    write(tmp_path, config())
    with pytest.raises(ModelError, match="was made for a target 24 wide, but this one is 32 wide"):
        eagle.load(tmp_path, wide())
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "eagle"}))
    with pytest.raises(ModelError, match="type 'eagle', but of these only eagle3, peagle, dflash and dspark are read"):
        foreign_heads.kind_of(tmp_path)


def wide() -> Any:
    from draftwood.models.decoder import Decoder
    from draftwood.models.decoder_config import DecoderConfig

    return Decoder(DecoderConfig(VOCAB, 32, 40, LAYERS, 4, 2, 8)).eval()


def test_bad_trained_heads_are_refused(tmp_path: Path) -> None:
    target = decoder(3)
    made = EagleHead.of(target)
    eagle.save(made.weights(), tmp_path, made.target, made.reads)
    known = artifact.load(tmp_path / eagle.FILE, "eagle")
    replace(known, settings={}).save(tmp_path / eagle.FILE)
    refused(tmp_path, "is damaged .* make it again with `draftwood train eagle`")
    replace(known, settings={"reads": [1], "quantize": "int3"}).save(tmp_path / eagle.FILE)
    refused(tmp_path, "is damaged .* make it again with `draftwood train eagle`")
    replace(known, settings={"reads": [9]}).save(tmp_path / eagle.FILE)
    refused(tmp_path, "after layers 9, but a target of 4 layers can be read after 1 to 3")
    replace(known, tensors={}).save(tmp_path / eagle.FILE)
    refused(tmp_path, "is damaged")
    replace(known, models={"target": fingerprint(decoder(4))}).save(tmp_path / eagle.FILE)
    refused(tmp_path, "was trained for another target")
    with pytest.raises(
        ModelError, match="has no EAGLE head next to its weights; make one with `draftwood train eagle`"
    ):
        Engine(target).generate([1, 2], "eagle")
    head = EagleHead.of(target)
    with pytest.raises(ModelError, match=r"cannot run alone as a draft model: use method eagle$"):
        Engine(target, [head]).generate([1, 2, 3], "speculative")
    with pytest.raises(ConfigurationError, match="drafts=best gives siblings"):
        Engine(target, [head]).generate([1, 2, 3], {"name": "eagle", "drafts": "best"})


def test_pickled_heads_are_converted_by_a_command(tmp_path: Path, command: Any) -> None:
    raw = config(original=True, eagle_aux_hidden_state_layer_ids=READS)
    tensors = weights(raw)
    there, out = tmp_path / "pickled", tmp_path / "out"
    there.mkdir()
    (there / "config.json").write_text(json.dumps(raw))
    torch.save(tensors, there / "pytorch_model.bin")
    refused(there, f"pickled weights are never loaded: convert them with `draftwood convert {there} --out DIR`")
    shown = command("convert", there, "--out", out)
    assert shown.code == 0 and f"{len(tensors)} tensors" in shown.out
    found = load_file(out / "model.safetensors")
    assert all(torch.equal(found[name], part) for name, part in tensors.items())
    assert eagle.load(out, decoder(3)).reads == tuple(READS)
    assert command("convert", there, "--out", out).code == 2  # it is there already
    assert command("convert", out, "--out", tmp_path / "b").code == 2  # nothing is pickled in it

    fetched = tmp_path / "models--some-body--Eagle3" / "snapshots" / "0"  # as the hub's client leaves it: no pickles
    fetched.mkdir(parents=True)
    (fetched / "config.json").write_text(json.dumps(raw))
    refused(fetched, "convert them with `draftwood convert some-body/Eagle3 --out DIR`")

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "bang",))

    torch.save({"a": Bomb()}, there / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds more than tensors, or is damaged"):
        convert(str(there), tmp_path / "c")
    assert not (tmp_path / "bang").exists() and not (tmp_path / "c").exists()


def test_a_head_begins_for_latent_attention_too_and_is_found_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family_models.write(tmp_path / "target", "deepseek_v3")
    target = checkpoint.load(tmp_path / "target", packed=False)
    made = EagleHead.of(target)  # it has no matrix of queries, keys and values to begin with
    assert made.weights()["decoder.layers.0.mixer.qkv.weight"].std() > 0
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "published", config())
    assert eagle.load("~/published", decoder(3)).reads == (1, 2, 3)
