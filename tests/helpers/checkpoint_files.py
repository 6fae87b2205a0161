"""Tiny checkpoints for tests: random Llama models written by Hugging Face's own code, and small tokenizers.

Every weight is randomised, biases and norms too: Hugging Face starts them at 0 and 1, which would hide a loader that
drops them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from draftwood.core.forest import Forest
from draftwood.models.decoder import Decoder
from draftwood.runtime.session import Run, Session

logging.disable_progress_bar()

VOCAB = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def reference(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A random Hugging Face Llama whose logits spread over several units."""
    model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, **changes})).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.25 * noise)
    return model


def write(directory: Path, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """Write a random model to `directory` as Hugging Face does, and return it."""
    model = reference(seed, **changes)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def edit_json(path: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    """Change keys of a JSON file."""
    values = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in drop}), "utf-8")


def theirs(model: LlamaForCausalLM, tokens: list[int], positions: list[int] | None = None) -> torch.Tensor:
    """Hugging Face's logits [len(tokens), V]; any rising positions."""
    places = None if positions is None else torch.tensor([positions])
    mask = torch.ones(1, len(tokens), dtype=torch.int64)  # given, or jumps in position would be read as packed texts
    return model(torch.tensor([tokens]), position_ids=places, attention_mask=mask).logits[0]


def ours(model: Decoder, forest: Forest, session: Session | None = None) -> torch.Tensor:
    """Logits [len(forest), V] of all nodes of a forest, by one run."""
    from draftwood.runtime.executor import execute

    with torch.inference_mode():
        session = session or Session(model, model.new_cache(32))
        return execute([Run(session, forest, range(len(forest)))])[0].logits


def byte_level() -> Tokenizer:
    """A byte-level tokenizer (GPT-2, Llama 3) with a few merges and an end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ã", "©")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def llama_like() -> Tokenizer:
    """A tokenizer as Llama 2 has it: metaspace, byte fallback, and a post-processor that puts <s> in front."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for symbol in "▁abcdefghilnorst":
        vocab[symbol] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "in")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer
