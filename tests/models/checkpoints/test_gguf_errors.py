"""Bad GGUF files: each is refused with one sentence that names the file or tensor and the fix."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
from checkpoint_files import byte_level
from checkpoint_files import write as write_llama
from family_models import write as write_family

from draftwood.errors import ModelError
from draftwood.models.checkpoints import checkpoint, gguf_file
from draftwood.models.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A small file with a tokenizer, and its bytes."""
    place = tmp_path_factory.mktemp("whole")
    write_llama(place, vocab_size=300, num_hidden_layers=1, intermediate_size=64)
    words = gguf_files.byte_level(Tokenizer(byte_level(), ""), "gpt-2", 300, eos_token_id=3)
    file = gguf_files.write(place, place / "x.gguf", gguf_files.matrices("Q8_0"), words)
    return place, file.read_bytes()


def value(key: str, code: str, number: float) -> Callable[[bytes], bytes]:
    """Replace a number of the metadata."""

    def damage(data: bytes) -> bytes:
        at = data.index(key.encode()) + len(key) + 4
        return data[:at] + struct.pack("<" + code, number) + data[at + struct.calcsize(code) :]

    return damage


def tensor(name: str, place: int, code: str, number: int) -> Callable[[bytes], bytes]:
    """Replace a number at a place behind a matrix's name: count of axes 0, width 4, height 12, type 20, start 24."""

    def damage(data: bytes) -> bytes:
        at = data.index(name.encode()) + len(name) + place
        return data[:at] + struct.pack("<" + code, number) + data[at + struct.calcsize(code) :]

    return damage


def array(length: int) -> Callable[[bytes], bytes]:
    """Replace the number of tokens."""

    def damage(data: bytes) -> bytes:
        at = data.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
        return data[:at] + struct.pack("<Q", length) + data[at + 8 :]

    return damage


def text(old: str, new: str) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old.encode(), new.encode())


def start(place: int, code: str, number: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + struct.pack("<" + code, number) + data[place + struct.calcsize(code) :]


Q = "blk.0.attn_q.weight"
MANY = 2**62
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "damaged or truncated .* fetch it again"),
    "no GGUF file": (lambda data: b"version https://git-lfs", "does not begin as a GGUF file does"),
    "big-endian": (start(4, "I", 3 << 24), "is big-endian; give the little-endian file"),
    "old version": (start(4, "I", 1), "is of GGUF version 1, but 2 and 3 are read; convert the model again"),
    "many tensors": (start(8, "Q", MANY), "damaged or truncated"),
    "many values": (start(16, "Q", MANY), "damaged or truncated"),
    "long key": (start(24, "Q", MANY), "its header goes beyond its .* bytes"),
    "half of the tensors": (lambda data: data[:-20000], r"tensor '.*' ends at byte .* of .*; fetch it again"),
    "half of the header": (lambda data: data[:3000], "its header goes beyond its 3,000 bytes"),
    "long array": (array(MANY), r"its header goes beyond its .* bytes"),
    "unknown type": (tensor(Q, 20, "I", 99), "'blk.0.attn_q.weight' is stored as type 99, but read are F32, .* give a"),
    "other type": (tensor(Q, 20, "I", 22), "is stored as IQ2_S, but read are F32, .*, MXFP4; give a file"),
    "no axes": (tensor(Q, 0, "I", 0), "has 0 dimensions"),
    "wide tensor": (tensor(Q, 4, "Q", MANY), "ends at byte"),
    "torn blocks": (tensor(Q, 4, "Q", 33), r"of type Q8_0 has the shape \[32, 33\]"),
    "far tensor": (tensor(Q, 24, "Q", MANY), "ends at byte"),
    "other height": (
        tensor(Q, 12, "Q", 16),
        r"tensor blk.0.attn_q.weight \[16, 32\], .* does not fit its metadata",
    ),
    "twice": (text("blk.0.attn_k.weight", "blk.0.attn_v.weight"), "is there twice"),
    "missing tensor": (
        text("blk.0.attn_k.weight", "blk.0.attn_y.weight"),
        "tensor blk.0.attn_k.weight is missing",
    ),
    "architecture": (text("general.architecture", "general.architectura"), "architecture 'None' is not supported"),
    "no count": (
        text("llama.block_count", "llama.block_cound"),
        "llama.block_count is missing, but must be",
    ),
    "many layers": (value("llama.block_count", "I", 10**9), "asks for 1000000000 layers, but has 12 tensors"),
    "more layers": (
        value("llama.block_count", "I", 2),
        "asks for 2 layers, but tensor blk.1.ffn_down.weight ",
    ),
    "no heads": (
        value("llama.attention.head_count", "I", 0),
        "llama.attention.head_count is 0, but must be",
    ),
    "heads": (value("llama.attention.head_count", "I", 3), "3 attention heads, 2 key/value heads .* do not fit"),
    "eps": (value("llama.attention.layer_norm_rms_epsilon", "f", -1.0), "rms_norm_eps is -1.0, but must be"),
    "context": (value("llama.context_length", "I", 2**32 - 1), "llama.context_length is 4294967295, but must be"),
    "broken text": (
        lambda data: data.replace(b"llama.block_count", b"llama.block_\xff\xfe\xfd\xfct"),
        "codec can't decode",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_sentence_that_names_it(
    damage: str, whole: tuple[Path, bytes], tmp_path: Path
) -> None:
    harm, sentence = DAMAGES[damage]
    file = tmp_path / "x.gguf"
    file.write_bytes(harm(whole[1]))
    with pytest.raises(ModelError, match=sentence) as caught:
        checkpoint.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "mixture": (
        {"expert_count": 8},
        "expert_count is 8 and expert_used_count None, but both must be positive whole numbers",
    ),
    "gates": (
        {"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 2},
        "expert_gating_func 2 with expert_weights_norm true is not supported for this architecture",
    ),
    "yarn": ({"rope.scaling.type": "yarn"}, "rope.scaling.factor is None and yarn_log_multiplier 0.0; convert"),
    "rotary": (
        {"rope.scaling.type": "spiral"},
        "rotary scaling 'spiral' is not supported; supported are def",
    ),
    "rotary part": ({"rope.dimension_count": 4}, "partial_rotary_factor is not supported for this family"),
    "per layer": ({"attention.head_count_kv": [2, 1]}, r"head_count_kv differs from layer to layer \(\[2, 1\]\)"),
    "text": ({"context_length": "long"}, "llama.context_length is 'long', but must be a positive whole number"),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_the_decoder_cannot_do_is_refused(name: str, tmp_path: Path) -> None:
    metadata, sentence = WORDS[name]
    write_llama(tmp_path)
    with pytest.raises(ModelError, match=sentence):
        checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf", **metadata))


@pytest.mark.parametrize("count", [3, 5])
def test_factors_of_another_length_are_refused(count: int, tmp_path: Path) -> None:
    write_family(tmp_path, "phi3")
    factors = {f"rope_factors_{kind}.weight": np.ones(count, np.float32) for kind in ("short", "long")}
    with pytest.raises(ModelError, match=f"short_factor has {count} numbers, but the 8 rotated components of a head"):
        checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf", more=factors))


def test_any_cut_and_any_changed_byte_is_read_or_refused(whole: tuple[Path, bytes], tmp_path: Path) -> None:
    """Nothing but a ModelError comes out, and a cut file never loads."""
    data, rng = whole[1], random.Random(0)
    header = data.index(b"blk.0.ffn_norm.weight") + 200
    file = tmp_path / "x.gguf"
    for cut in [*range(40), *(rng.randrange(len(data)) for _ in range(60)), len(data) - 33]:
        file.write_bytes(data[:cut])
        with pytest.raises(ModelError):
            gguf_file.File(file)
    loaded = 0
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(header)] = rng.randrange(256)
        file.write_bytes(changed)
        try:
            Tokenizer.load(file)
            checkpoint.load(file, packed=False)
            loaded += 1
        except ModelError as error:
            assert "\n" not in str(error)
    assert loaded < 150


def test_a_file_that_shrinks_after_it_was_opened_is_refused(whole: tuple[Path, bytes], tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(whole[1])
    opened = gguf_file.File(file)
    file.write_bytes(whole[1][:5000])
    with pytest.raises(ModelError, match=r"has changed since it was opened .* load it again"):
        opened.rows(Q)


BITS = {"infinite": 0x7C00, "minus infinite": 0xFC00, "NaN": 0x7E01}
SCALES = [(kind, place) for kind, places in gguf_files.SCALES.items() for place in places or (0,)]


@pytest.mark.some(6)
@pytest.mark.parametrize(("kind", "place"), SCALES)
def test_a_scale_that_is_no_number_is_named(kind: str, place: int, tmp_path: Path) -> None:
    """Each scale of each type; bytes elsewhere in a block may be any."""
    write_family(tmp_path, "qwen2", hidden_size=256, intermediate_size=512, num_hidden_layers=1)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    damaged: dict[str, tuple[int, bytes]] = {}  # tensor -> row, bytes of the scale in the last block

    def random_blocks(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        data = array if array.ndim == 1 else gguf_files.blocks(kind, *array.shape, seed=1)
        if name in damaged:
            row, scale = damaged[name]
            at = data.shape[1] - size + place
            data[row, at : at + len(scale)] = np.frombuffer(scale, np.uint8)
        return data, "F32" if array.ndim == 1 else kind

    bits = [b"\xff"] if kind == "MXFP4" else [struct.pack("<H", each) for each in BITS.values()]
    for tensor_name, row in (("blk.0.ffn_down.weight", 200), ("token_embd.weight", 0)):
        for scale in bits:
            damaged = {tensor_name: (row, scale)}
            file = gguf_files.write(tmp_path, tmp_path / "x.gguf", random_blocks)
            with pytest.raises(ModelError, match=r"has a scale that is no finite number\); fetch it again") as caught:
                checkpoint.load(file)
            assert f"{file} is damaged (row {row} of tensor '{tensor_name}', of type {kind}" in str(caught.value)
    damaged = {}
    checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf", random_blocks))
