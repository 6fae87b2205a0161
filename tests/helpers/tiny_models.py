"""Tiny random checkpoints with one token per byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftwood.models.checkpoints import saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig

CONTEXT = 96
EOS = 256


def byte_tokenizer(extra: Sequence[str] = ()) -> Tokenizer:
    """One token for each byte, then an end token and `extra` tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", *extra])
    return tokenizer


def write(directory: Path, seed: int, extra: Sequence[str] = (), context: int = CONTEXT) -> Path:
    """A random decoder of width 32 with two layers, and its tokenizer."""
    tokenizer = byte_tokenizer(extra)
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(DecoderConfig(tokenizer.get_vocab_size(), 32, 48, 2, 2, 1, 16, context))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    saving.save(model, directory, eos_token_id=EOS)
    (directory / "generation_config.json").write_text('{"temperature": 1.0}')
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
