"""Models split over several GGUF files compute what the one file does; parts that do not fit are refused by name."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf_files
import pytest
import torch
from checkpoint_files import byte_level, ours
from checkpoint_files import write as write_llama
from family_models import PROMPT, chain

import draftwood
from draftwood.errors import ModelError
from draftwood.models import int4
from draftwood.models.checkpoints import checkpoint, gguf_parts
from draftwood.models.text.tokenizer import Tokenizer

SHAPE = {"vocab_size": 300, "num_hidden_layers": 2, "intermediate_size": 64}
COUNT = 3


def write(place: Path, name: str, seed: int = 0, part_tensors: int = 8) -> list[Path]:
    """A model with a tokenizer as one file (NAME.gguf) and in parts, which are returned."""
    directory = place / f"{name}-checkpoint"
    torch.manual_seed(seed)
    write_llama(directory, **SHAPE)
    words = gguf_files.byte_level(Tokenizer(byte_level(), ""), "gpt-2", 300, eos_token_id=3)
    given = directory, place / f"{name}.gguf", gguf_files.matrices("Q8_0"), words
    gguf_files.write(*given)
    gguf_files.write(*given, part_tensors=part_tensors)
    return sorted(place.glob(f"{name}-0*.gguf"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one shape, whole and in three parts each, and the first one in two."""
    place = tmp_path_factory.mktemp("parts")
    assert [len(write(place, *given)) for given in (("x",), ("y", 1))] == [COUNT] * 2
    assert len(write(place, "z", 0, 12)) == 2
    return place


@pytest.fixture
def parts(written: Path, tmp_path: Path) -> list[Path]:
    """The first model's parts, which a test may damage."""
    return [Path(shutil.copy(path, tmp_path)) for path in sorted(written.glob("x-0*.gguf"))]


def test_any_part_stands_for_all(written: Path, parts: list[Path]) -> None:
    expected = ours(checkpoint.load(written / "x.gguf"), chain(PROMPT))
    whole = draftwood.load(written / "x.gguf", device="cpu")
    for path in parts:
        assert torch.equal(ours(checkpoint.load(path), chain(PROMPT)), expected)
        engine = draftwood.load(path, device="cpu")
        assert engine.end_tokens == whole.end_tokens and engine.names["dtype"] == whole.names["dtype"]
        results = [each.generate("ab", temperature=0, max_new_tokens=8) for each in (engine, whole)]
        assert results[0].text == results[1].text
    assert int4.fingerprint(parts[0]) == int4.fingerprint(parts[2])


def test_headers_are_read_once(parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = gguf_parts.opened(parts[1])
    monkeypatch.setattr(gguf_parts, "File", None)
    assert gguf_parts.opened(parts[0]).tensors == opened.tensors


def test_every_weight_counts_for_the_fingerprint(parts: list[Path]) -> None:
    before = int4.fingerprint(parts[0])
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    assert int4.fingerprint(parts[0]) != before


def number(key: str, code: str, value: int) -> Callable[[bytes], bytes]:
    """Replace a number of the metadata."""

    def damage(data: bytes) -> bytes:
        at = data.index(key.encode()) + len(key) + 4
        return data[:at] + struct.pack("<" + code, value) + data[at + struct.calcsize(code) :]

    return damage


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    sentence = "is one of 3 parts, but x-00002-of-00003.gguf is not beside it; fetch all parts into one directory"
    refused(parts[2], sentence)
    parts[0].unlink()
    refused(parts[2], "x-00001-of-00003.gguf, x-00002-of-00003.gguf are not beside it")


@pytest.mark.parametrize("name", ["x.gguf", "x-00001-of-00004.gguf", "x-00002-of-00003.gguf"])
def test_a_part_has_its_place_in_its_name(name: str, parts: list[Path]) -> None:
    refused(parts[0].rename(parts[0].with_name(name)), f"{name} is part 1 of 3 of a model, which its name does not say")


def test_a_cut_part_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-100])
    refused(parts[0], r"x-00003-of-00003.gguf is damaged or truncated \(tensor '.*' ends at byte")


def test_a_part_of_another_split_is_refused(written: Path, parts: list[Path]) -> None:
    shutil.copy(written / "z-00002-of-00002.gguf", parts[1])
    refused(parts[0], r"x-00002-of-00003.gguf does not belong to x-00001-of-00003.gguf \('split.count' differs\)")


def test_a_part_of_another_shape_is_refused(parts: list[Path], tmp_path: Path) -> None:
    directory = tmp_path / "other"
    write_llama(directory, **{**SHAPE, "intermediate_size": 96})
    gguf_files.write(directory, directory / "x.gguf", gguf_files.matrices("Q8_0"), part_tensors=8)
    shutil.copy(directory / parts[1].name, parts[1])
    refused(parts[0], r"x-00002-of-00003.gguf: tensor .* does not fit its metadata")


@pytest.mark.parametrize(
    ("part", "key", "code", "value", "sentence"),
    [
        (1, "split.no", "H", 2, r"x-00002-of-00003.gguf does not belong to .* \('split.no' differs\)"),
        (1, "split.count", "H", 0, r"x-00002-of-00003.gguf does not belong to .* \('split.count' differs\)"),
        (2, "split.tensors.count", "I", 9, r"x-00003-of-00003.gguf does not belong .* \('split.tensors.count' differs"),
        (0, "split.no", "H", 7, "x-00001-of-00003.gguf is part 8 of 3 of a model, which its name does not say"),
        (0, "split.count", "H", 2**16 - 1, "x-00001-of-00003.gguf is part 1 of 65535 of a model, which its name"),
        (0, "split.count", "H", 0, "x-00001-of-00003.gguf is part 1 of 0 of a model, which its name does not say"),
    ],
)
def test_wrong_numbers_are_refused(
    part: int, key: str, code: str, value: int, sentence: str, parts: list[Path]
) -> None:
    parts[part].write_bytes(number(key, code, value)(parts[part].read_bytes()))
    refused(parts[0], sentence)


def test_a_wrong_total_is_refused(parts: list[Path]) -> None:
    for path in parts:
        path.write_bytes(number("split.tensors.count", "i", 30)(path.read_bytes()))
    refused(parts[1], "x-00001-of-00003.gguf and the parts beside it have 21 tensors together, but split.tensors.count")


def test_a_tensor_in_two_parts_is_refused(parts: list[Path]) -> None:
    parts[2].write_bytes(number("split.no", "H", 2)(parts[1].read_bytes()))
    refused(parts[0], r"x-00003-of-00003.gguf has tensor '.*', which x-00002-of-00003.gguf has, too; fetch all parts")
