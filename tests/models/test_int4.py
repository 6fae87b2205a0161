"""A decoder's layers in four bits: what they are made of, how near they stay, and the file that keeps them."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from itertools import islice
from pathlib import Path

import gguf_files
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from small_decoder import decoder
from torch import Tensor, nn

from draftwood.corpus import DOMAINS, documents
from draftwood.engine.calibration import Int4Calibration, corpus_rows
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ModelError
from draftwood.models import int4
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import per_layer
from draftwood.models.quantise import quantise
from draftwood.models.text.tokenizer import Tokenizer

ROWS = torch.randint(1, 40, (4, 24), generator=torch.Generator().manual_seed(0))
KNOBS = {
    "llama": {},
    "gpt-2": {"norm": "layer", "gated": False, "hidden_act": "gelu", "qkv_bias": True, "position_offset": 0},
    "gemma": {
        "norm": "rms_offset",
        "post_norm": True,
        "qk_norm": "one",
        "layers": per_layer(window=(0, 8, 0, 8)),
        "logit_softcap": 30.0,
    },
}


def replaced(model: Decoder, matrices: int4.Matrices) -> Decoder:
    """The decoder that the matrices stand for."""
    made = copy.deepcopy(model)
    for name in matrices:
        weight = matrices[name].weight().to(model.dtype)
        made.get_submodule(name).weight = nn.Parameter(weight, requires_grad=False)
    return made


@pytest.mark.parametrize("family", KNOBS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_matrix_of_the_layers_is_quantised(family: str, dtype: torch.dtype) -> None:
    plain = decoder()
    torch.manual_seed(1)
    model = Decoder(replace(plain.config, **KNOBS[family])).to(dtype).eval()
    before, shares = copy.deepcopy(model.state_dict()), list[float]()
    made = int4.quantised(model, ROWS % model.vocab_size, shares.append)
    wanted = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name != "head"]
    assert [*made] == wanted and len(shares) == 1 + model.n_layers and shares[0] == 0 and abs(sum(shares) - 1) < 1e-6
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    for name in made:
        weight: Tensor = model.get_submodule(name).weight  # type: ignore[assignment]
        assert made[name].weight().shape == weight.shape
        assert (made[name].weight() - weight).square().sum() < 0.02 * weight.float().square().sum()


def test_calibration_makes_outputs_nearer() -> None:
    model = decoder()
    rows = ROWS % model.vocab_size
    logits = model.train_forward(rows)
    with_text, without = (
        (replaced(model, int4.quantised(model, given)).train_forward(rows) - logits).square().mean()
        for given in (rows, None)
    )
    assert with_text < 0.8 * without
    for name, matrix in int4.quantised(model, None).items():
        weight: Tensor = model.get_submodule(name).weight  # type: ignore[assignment]
        assert torch.equal(matrix.codes, quantise(weight).codes)


def test_packed_matrices_are_refused() -> None:
    model = decoder()
    model.head = nn.Identity()  # type: ignore[assignment]
    with pytest.raises(ModelError, match="cannot be quantised; load it with packed=False"):
        int4.quantised(model, None)


@pytest.mark.slow
def test_perplexity_of_the_embedded_target_grows_by_less_than_one_percent() -> None:
    """On held-out text of every kind; docs/results.md has the figure of many more documents."""
    home = EMBEDDED / "target"
    model, words = checkpoint.load(home, packed=False), Tokenizer.load(home)
    small = replaced(model, int4.quantised(model, corpus_rows(words, model.context)[:4]))
    nats = {id(model): 0.0, id(small): 0.0}
    agreed, count = 0, 0
    for domain in DOMAINS:
        for document in islice(documents(domain, "held-out", seed=1), 1):
            tokens = torch.tensor([words.encode(document.text)[: model.context]])
            logits = {id(each): each.train_forward(tokens)[0, :-1] for each in (model, small)}
            for each, found in logits.items():
                nats[each] += float(F.cross_entropy(found, tokens[0, 1:], reduction="sum"))
            agreed += int((logits[id(model)].argmax(-1) == logits[id(small)].argmax(-1)).sum())
            count += tokens.shape[1] - 1
    assert (nats[id(small)] - nats[id(model)]) / count < 0.01 and agreed / count > 0.92


def same(one: int4.Matrices | None, other: int4.Matrices) -> bool:
    return (
        one is not None
        and one.columns == other.columns
        and all(torch.equal(one.tensors[k], other.tensors[k]) for k in one.tensors)
    )


@pytest.fixture
def home(copy_of_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that a test may damage, and a user's directory of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return copy_of_target


@pytest.mark.parametrize("columns", [64, 48, 33])
def test_two_codes_a_byte_are_what_they_were(columns: int, tmp_path: Path) -> None:
    matrix = quantise(torch.randn(5, columns, generator=torch.Generator().manual_seed(2)))
    made = int4.Matrices()
    made.add("a", matrix)
    int4.save(tmp_path / "a.safetensors", made, "0" * 16, "none")
    loaded = int4.load(tmp_path / "a.safetensors", "0" * 16, "none")
    assert loaded is not None
    found = loaded["a"]
    assert all(torch.equal(getattr(found, part), getattr(matrix, part)) for part in ("codes", "scale", "shift"))


def test_matrices_are_made_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Int4Calibration.read(None, Tokenizer.load(home)).text(home, "it", False, lambda step, share: None)
    made = int4.cached(home, text)
    assert made["layers.1.feed.down"].codes.shape == (32, 48)
    monkeypatch.setattr(int4, "quantised", None)
    assert same(int4.cached(home, text), made)


def damage(path: Path, how: str) -> None:
    """Spoil a saved file."""
    found, facts = load_file(path), json.loads(artifact.safe_open(path, "pt").metadata()[artifact.HEADER_KEY])
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[:-9])
            return
        case "format":
            facts["settings"]["format"] = int4.FORMAT + 1
        case "columns":
            facts["settings"]["columns"] = [1]
        case "missing":
            del found["layers.0.mixer.o.scale"]
        case "shape":
            found["layers.0.mixer.o.codes"] = found["layers.0.mixer.o.codes"][:, 1:].contiguous()
        case "dtype":
            found["layers.0.mixer.o.shift"] = found["layers.0.mixer.o.shift"].float()
    save_file(found, path, {artifact.HEADER_KEY: json.dumps(facts)})


@pytest.mark.parametrize("how", ["cut", "format", "columns", "missing", "shape", "dtype"])
def test_a_damaged_file_is_made_anew_and_one_sentence_says_so(
    how: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = int4.cached(home, int4.NO_TEXT)
    path = artifact.companion(home, "int4")
    damage(path, how)
    with pytest.raises(ModelError, match=r"int4 weights .*make it again with `draftwood generate --quantize int4`"):
        int4.load(path, int4.fingerprint(home), int4.NO_TEXT.name)
    with caplog.at_level(logging.WARNING):
        assert same(int4.cached(home, int4.NO_TEXT), made)
    assert len(caplog.messages) == 1 and "\n" not in caplog.messages[0] and len(caplog.messages[0]) < 400
    assert same(int4.load(path, int4.fingerprint(home), int4.NO_TEXT.name), made)


def test_a_file_of_other_weights_is_made_anew(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = int4.cached(home, int4.NO_TEXT)
    weights = load_file(home / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"] *= 2
    save_file(weights, home / "model.safetensors", {"format": "pt"})
    made = int4.cached(home, int4.NO_TEXT)
    assert len(caplog.messages) == 1 and "was trained for another model" in caplog.messages[0]
    scales = [each["layers.1.feed.down"].scale for each in (before, made)]
    assert torch.equal(2 * scales[0], scales[1])


def test_a_gguf_file_has_matrices_of_its_own(home: Path) -> None:
    file = gguf_files.write(home, home / "x.gguf")
    assert same(int4.cached(file, int4.NO_TEXT), int4.cached(home, int4.NO_TEXT))
    assert {path.name for path in (home / "int4").iterdir()} == {"x.safetensors", "int4.safetensors"}


def test_where_the_checkpoint_cannot_be_written_the_users_cache_keeps_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "int4").write_text("in the way")
    made = int4.cached(home, int4.NO_TEXT)
    kept = tmp_path / "user" / ".cache" / "draftwood" / "int4"
    assert [path.name for path in kept.iterdir()] == [f"{int4.fingerprint(home)}.safetensors"]
    with monkeypatch.context() as patch:
        patch.setattr(int4, "quantised", None)
        assert same(int4.cached(home, int4.NO_TEXT), made)
    monkeypatch.setenv("HOME", str(home / "int4"))  # no place at all: they are made each time
    assert same(int4.cached(home, int4.NO_TEXT), made)
