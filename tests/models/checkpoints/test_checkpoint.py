"""Loading and saving checkpoints: layouts, the hub, nothing executed, nothing held twice, round trips."""

from __future__ import annotations

import json
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from checkpoint_files import edit_json, llama_like, ours, theirs, write
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

import draftwood
from draftwood.core.forest import Forest
from draftwood.errors import ModelError
from draftwood.models.backend.matrix import Packed
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.rotary import RopeScaling

TOKENS = [5, 90, 33, 33, 2, 71, 14]


def logits_of(decoder: Decoder) -> torch.Tensor:
    forest = Forest(trunk=[])
    parent = -1
    for token in TOKENS:
        parent = forest.add(parent, token)
    return ours(decoder, forest)


# layouts


def test_shards_and_one_file_give_the_same_weights(tmp_path: Path) -> None:
    model = write(tmp_path / "one", attention_bias=True)
    write(tmp_path / "many", max_shard_size="12KB", attention_bias=True)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = checkpoint.load(tmp_path / "one"), checkpoint.load(str(tmp_path / "many"))
    for (name, a), (_, b) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    torch.testing.assert_close(logits_of(many), theirs(model, TOKENS), atol=1e-4, rtol=0)


def test_files_that_hugging_face_would_not_read_are_not_read(tmp_path: Path) -> None:
    """Other formats of the weights beside model.safetensors must not replace its tensors."""
    write(tmp_path)
    expected = logits_of(checkpoint.load(tmp_path))
    wrong = {name: torch.zeros_like(t) for name, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(wrong, tmp_path / "zz_other.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "zz_other.safetensors"}}')
    assert torch.equal(logits_of(checkpoint.load(tmp_path)), expected)


def test_a_file_of_another_name_is_read_when_it_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path)
    expected = logits_of(checkpoint.load(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert torch.equal(logits_of(checkpoint.load(tmp_path)), expected)


def test_a_missing_head_is_tied_unless_the_config_forbids_it(tmp_path: Path) -> None:
    model = write(tmp_path, tie_word_embeddings=True)
    edit_json(tmp_path / "config.json", ("tie_word_embeddings",))
    decoder = checkpoint.load(tmp_path, packed=False)
    assert decoder.head.weight is decoder.embed.weight
    torch.testing.assert_close(logits_of(decoder), theirs(model, TOKENS), atol=1e-4, rtol=0)
    edit_json(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        checkpoint.load(tmp_path)


def test_dtype_auto_is_the_checkpoints_own(tmp_path: Path) -> None:
    write(tmp_path).bfloat16().save_pretrained(tmp_path)
    assert checkpoint.load(tmp_path, "auto").dtype == torch.bfloat16
    edit_json(tmp_path / "config.json", ("dtype",), torch_dtype="float64")
    assert checkpoint.load(tmp_path, "auto").dtype == torch.float64
    edit_json(tmp_path / "config.json", ("torch_dtype",))
    assert checkpoint.load(tmp_path, "auto").dtype == torch.bfloat16  # as stored
    assert checkpoint.load(tmp_path).dtype == torch.float32
    assert checkpoint.load(tmp_path, torch.float64).dtype == torch.float64


def test_dtype_auto_rounds_no_weight_that_a_cpu_has_no_kernels_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 everywhere; bfloat16 on processors without instructions for it, where PyTorch computes."""
    write(tmp_path).half().save_pretrained(tmp_path)
    wide = checkpoint.load(tmp_path, "auto")
    assert wide.dtype == torch.float32 and torch.equal(logits_of(wide), logits_of(checkpoint.load(tmp_path, "float32")))
    assert checkpoint.load(tmp_path, "auto", quantize="int8").dtype == torch.float32
    assert checkpoint.load(tmp_path, "float16").dtype == torch.float16  # asked for
    write(tmp_path).bfloat16().save_pretrained(tmp_path)
    short = checkpoint.load(tmp_path, "auto", backend="pytorch").dtype
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert checkpoint.load(tmp_path, "auto", backend="pytorch").dtype == torch.float32
    assert short == (torch.bfloat16 if torch.backends.cpu.get_cpu_capability() >= "AVX512" else short)
    assert checkpoint.load(tmp_path, "bfloat16", backend="pytorch").dtype == torch.bfloat16


def test_end_tokens(tmp_path: Path) -> None:
    write(tmp_path)
    assert checkpoint.end_tokens(tmp_path) == {2}
    edit_json(tmp_path / "generation_config.json", eos_token_id=[7, 9])
    assert checkpoint.end_tokens(tmp_path) == {7, 9}
    edit_json(tmp_path / "generation_config.json", ("eos_token_id",))
    assert checkpoint.end_tokens(tmp_path) == {2}
    edit_json(tmp_path / "config.json", eos_token_id=None)
    assert checkpoint.end_tokens(tmp_path) == frozenset()
    edit_json(tmp_path / "config.json", eos_token_id="</s>")
    with pytest.raises(ModelError, match="eos_token_id is '</s>', but must be a token id"):
        checkpoint.end_tokens(tmp_path)


# the hub


def test_a_hub_id_is_fetched_without_code_and_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path)
    calls: list[tuple[str, dict[str, list[str]]]] = []

    def fetch(name: str, **options: list[str]) -> str:
        calls.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    decoder = checkpoint.load("some-body/Tiny.Llama-1")
    torch.testing.assert_close(logits_of(decoder), theirs(model, TOKENS), atol=1e-4, rtol=0)
    ((name, options),) = calls
    assert name == "some-body/Tiny.Llama-1"
    repository = [
        "README.md",
        "config.json",
        "consolidated.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "modeling_evil.py",
        "onnx/config.json",
        "original/consolidated.00.pth",
        "pytorch_model.bin",
        "tokenizer.json",
        "tokenizer.model",
    ]
    patterns = {"allow_patterns": options["allow_patterns"], "ignore_patterns": options["ignore_patterns"]}
    assert list(huggingface_hub.utils.filter_repo_objects(repository, **patterns)) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
    ]


def test_a_hub_id_that_cannot_be_fetched_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, **options: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("a\nlong\ntext")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(ModelError) as caught:
        draftwood.load("nobody/nothing")
    assert str(caught.value) == (
        "nobody/nothing is neither a directory here nor a model that the hub gives (LocalEntryNotFoundError); "
        "check the path, or the hub id and the network"
    )


@pytest.mark.parametrize(
    "source", ["no-such-directory", "./no/such", "/no/such", "a/b/c", "~/no-such-models/x", "a b/c", ""]
)
def test_what_cannot_be_a_hub_id_never_reaches_the_hub(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match="is not a checkpoint directory; ") as caught:
        checkpoint.locate(source)
    assert "\n" not in str(caught.value)


def test_what_is_no_checkpoint_says_what_would_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models" / "tiny")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    for source, instead in (
        ("gpt2", r"give owner/gpt2, or a path \(openai-community/gpt2 is GPT-2's id\)"),
        ("x.gguf", "x.gguf is damaged or truncated .* fetch it again"),
        ("xx.gguf", "did you mean x.gguf"),
        ("models/tiny/model.safetensors", "it is a file: give the directory that holds .* such as models/tiny"),
        ("./models/tiny2", "did you mean models/tiny"),
        ("./nowhere/tiny", "there is no nowhere either: check the path"),
        ("./models/big", "nothing is there: check the path"),
        ("", "give a directory, or the hub id"),
        ("models", r"models has no config\.json; give one of the directories in it \(tiny\)"),
    ):
        with pytest.raises(ModelError, match=instead):
            draftwood.load(source)


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json is not a checkpoint directory; it is a file"):
        checkpoint.load(tmp_path / "config.json")


# nothing is executed, nothing is unpickled


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.flag,))


def test_code_and_pickles_in_a_checkpoint_are_never_run(tmp_path: Path) -> None:
    model = write(tmp_path)
    llama_like().save(str(tmp_path / "tokenizer.json"))
    flag = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(flag))
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (tmp_path / name).write_bytes(bomb)
    code = f"import pathlib\npathlib.Path({str(flag)!r}).touch()\n"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "__init__.py"):
        (tmp_path / name).write_text(code)
    auto_map = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    edit_json(tmp_path / "config.json", auto_map=auto_map, trust_remote_code=True)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}})
    )
    decoder = draftwood.load(tmp_path).target
    assert isinstance(decoder, Decoder)
    torch.testing.assert_close(logits_of(decoder), theirs(model, TOKENS), atol=1e-4, rtol=0)
    assert not flag.exists()
    pickle.loads(bomb)
    assert flag.exists()  # the trap works


# memory


class Allocations(TorchDispatchMode):
    """Most bytes of tensor storage that were alive at once among those made by torch operations."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if self.real(leaf)}
        out = func(*args, **(kwargs or {}))
        for leaf in filter(self.real, tree_leaves(out)):
            storage = leaf.untyped_storage()
            if storage._cdata not in before and storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.live.values()))
        return out

    @staticmethod
    def real(leaf: object) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_checkpoint_is_held_once(dtype: str, tmp_path: Path) -> None:
    """Fused and converted parameters included: the model is made, and one tensor at a time is read."""
    write(tmp_path, hidden_size=128, intermediate_size=256, num_hidden_layers=4, max_position_embeddings=16)
    with Allocations() as made:
        decoder = checkpoint.load(tmp_path, dtype, packed=False)
    weights = sum(p.numel() * p.element_size() for p in decoder.parameters())
    largest = 4 * 128 * 256  # bytes of the largest tensor as stored: one may be in flight
    assert weights <= made.peak <= weights + largest + 4096


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's /proc")
def test_matrices_are_packed_from_the_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dtype is that of the file nothing is copied before; fused matrices are put together first."""
    write(tmp_path, num_hidden_layers=2)

    def mapped(tensor: torch.Tensor) -> bool:
        areas = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
        bounds = [[int(bound, 16) for bound in area.split("-")] for area in areas]
        return any(start <= tensor.data_ptr() < end for start, end in bounds)

    seen: list[bool] = []

    def hold(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Module:
        seen.append(mapped(weight))
        return Packed(weight, bias)

    monkeypatch.setattr(checkpoint, "holder", lambda *_: hold)
    decoder = checkpoint.load(tmp_path)
    assert seen == [False, True, False, True] * 2 + [True]  # qkv, o, gate and up, down of each layer; head
    assert not any(map(mapped, decoder.parameters()))


def test_weights_do_not_hang_on_the_file(tmp_path: Path) -> None:
    """Saving over the directory that a model came from must not change, or crash, the loaded model."""
    write(tmp_path)
    decoder = checkpoint.load(tmp_path)
    expected = logits_of(decoder)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:  # in place, as a copy would
        file.write(bytes(path.stat().st_size))
    assert torch.equal(logits_of(decoder), expected)


def test_a_loaded_decoder_is_ready_for_inference(tmp_path: Path) -> None:
    write(tmp_path)
    decoder = checkpoint.load(tmp_path)
    assert not decoder.training and not any(p.requires_grad for p in decoder.parameters())
    assert {str(t.device) for t in [*decoder.parameters(), *decoder.buffers()]} == {"cpu"}
    assert all(p.is_contiguous() for p in decoder.parameters())


# round trip


SAVED: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16), "rope_theta": 500000.0},
    "shape": {"head_dim": 12, "num_key_value_heads": 1, "rms_norm_eps": 0.01, "hidden_act": "gelu"},
}


@pytest.mark.parametrize("name", SAVED)
def test_save_then_load_here_and_by_hugging_face(name: str, tmp_path: Path) -> None:
    shape = {"head_dim": 8, "num_key_value_heads": 2, **SAVED[name]}
    decoder = Decoder(DecoderConfig(96, 32, 40, 2, 4, **shape)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1))
    saving.save(decoder, tmp_path, eos_token_id=7)
    again = checkpoint.load(tmp_path, packed=False)
    assert again.config == decoder.config
    assert torch.equal(logits_of(again), logits_of(decoder))
    assert checkpoint.end_tokens(tmp_path) == {7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Hugging Face warns of is not under test
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(logits_of(decoder), theirs(model.eval(), TOKENS).detach(), atol=1e-4, rtol=0)


def test_saving_in_another_dtype(tmp_path: Path) -> None:
    write(tmp_path / "source")
    decoder = checkpoint.load(tmp_path / "source", packed=False)
    with pytest.raises(ModelError, match="packed cannot be saved; load it with packed=False"):
        saving.save(checkpoint.load(tmp_path / "source"), tmp_path / "half")
    saving.save(decoder, tmp_path / "half", torch.bfloat16)
    half = checkpoint.load(tmp_path / "half", "auto", packed=False)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.layers[0].mixer.qkv.weight, decoder.layers[0].mixer.qkv.weight.bfloat16())


def test_a_shape_that_llama_cannot_say_is_not_saved(tmp_path: Path) -> None:
    decoder = Decoder(DecoderConfig(96, 32, 40, 1, 4, 4, 8, qkv_bias=True))
    with pytest.raises(ModelError, match="biases in all of q, k, v and o or in none"):
        saving.save(decoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
