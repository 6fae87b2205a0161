"""A tiny target with a draft, and what is wrong with them in other ways; the command line run in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftwood.cli.main import run
from draftwood.models import checkpoint
from draftwood.models.decoder import Decoder, DecoderConfig

CONTEXT = 64
EOS = 256


def byte_tokenizer(extra: Sequence[str] = ()) -> Tokenizer:
    """One token for each byte, then an end token and `extra` tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", *extra])
    return tokenizer


def make_checkpoint(directory: Path, layers: int, seed: int, tokenizer: Tokenizer) -> Path:
    """A random decoder of width 32; its letters are likelier than other bytes, so that its text can be read."""
    torch.manual_seed(seed)
    model = Decoder(DecoderConfig(tokenizer.get_vocab_size(), 32, 48, layers, 2, 1, 16, CONTEXT))
    checkpoint.save(model, directory, eos_token_id=EOS)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "target", 2, 1, byte_tokenizer())


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "draft", 1, 2, byte_tokenizer())


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft with one token more, so with another tokenizer."""
    return make_checkpoint(tmp_path_factory.mktemp("models") / "stranger", 1, 3, byte_tokenizer(["<sep>"]))


@pytest.fixture
def copy_of_target(target: Path, tmp_path: Path) -> Path:
    """A target that a test may damage."""
    return Path(shutil.copytree(target, tmp_path / "copy"))


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        return json.loads(self.out)


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `draftwood ...` in this process."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as left:
            run([str(argument) for argument in arguments])
        code = left.value.code
        captured = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call
