"""Prompts of models that fill in what stands between two texts."""

from __future__ import annotations

from draftwood.models.text.tokenizer import Tokenizer
from draftwood.serve.errors import ApiError

INFILL_TOKENS = (  # before what stands in front, before what follows, before what is filled in
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),  # Codestral
)


def infill_prompt(tokenizer: Tokenizer, before: str, after: str, param: str = "suffix") -> list[int]:
    """Ids of what stands in front and what follows, as the model was trained on them; ApiError where it was not."""
    named = [[tokenizer.id_of(token) for token in tokens] for tokens in INFILL_TOKENS]
    front, back, middle = next((ids for ids in named if None not in ids), (None, None, None))
    if front is None or back is None or middle is None:
        raise ApiError(
            400, "this model has no tokens for text that is filled in; use a model for code, or leave it out", param
        )
    begin = tokenizer.encode("")  # a beginning-of-text token, if texts have one
    return [*begin, front, *tokenizer.encode(before, False), back, *tokenizer.encode(after, False), middle]
