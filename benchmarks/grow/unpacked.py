"""A GGUF file of the Llama family as a Hugging Face directory in float32, which can be grown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.text.tokenizer import Tokenizer


def unpack(file: Path, out: Path) -> None:
    """Write the model of a GGUF file, dequantised, and its tokenizer into a directory.

    ModelError where it is not of the Llama family.
    """
    model, words = checkpoint.load(file, "float32", "cpu", packed=False), Tokenizer.load(file)
    backend: Any = words.backend  # of the library tokenizers, as all of GGUF files are
    saving.save(model, out, eos_token_id=sorted(checkpoint.end_tokens(file)))
    (out / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(words.config), "utf-8")
