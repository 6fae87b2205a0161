"""Checkpoints of models that also read images or sound: their text part is a family's model under other names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.decoder_config import DecoderConfig
from draftwood.util.safe_parsing import short_repr

WRAPPERS = {  # model_type -> that of its text_config, where this does not say
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
FLAT = ("qwen2_vl", "qwen2_5_vl")  # published with the text part's keys beside the others
SHARED_KEYS = ("dtype", "torch_dtype", "quantization_config")  # of the whole checkpoint
PLACES = (("model.language_model.", ""), ("language_model.model.", "language_model."), ("model.text_model.", ""))
OTHER_PARTS = re.compile(
    r"(model\.)?(visual|vision_\w+|audio_tower|image_\w+|embed_vision|embed_audio|multi_modal_projector|mm_projector|connector)"
    r"(\..*)?"
)


def text_part(raw: Raw) -> Raw:
    """The config of the text part of a model that reads more; any other config as it is."""
    kind = str(raw.get("model_type"))
    if kind not in WRAPPERS:
        return raw
    inner = raw.get("text_config")
    if inner is None and kind in FLAT:
        inner = {key: value for key, value in raw.items() if key != "model_type"}
    if not isinstance(inner, dict):
        raise ModelError(f"text_config is {short_repr(inner)}, but must be an object; fetch config.json again")
    shared = {key: raw[key] for key in SHARED_KEYS if raw.get(key) is not None}
    tied = [each["tie_word_embeddings"] for each in (raw, inner) if each.get("tie_word_embeddings") is not None]
    if tied:  # either says it, in checkpoints of different ages
        shared["tie_word_embeddings"] = next((each for each in tied if each is not False), False)
    return {"model_type": WRAPPERS[kind], **inner, **shared}


def wrapped(family: Family) -> Family:
    """A family whose tensors lie among those of other parts."""

    def read(raw: Raw) -> DecoderConfig:
        config = family.read(raw)
        if config.logit_scale != 1:
            raise ModelError(
                "the text part scales its logits (logit_scale or logits_scaling), which transformers' class for images "
                "leaves out, so that it is not known which distribution is meant; give a text model"
            )
        return config

    return replace(family, read=read, other_parts=OTHER_PARTS)


def placed(family: Family) -> Iterator[Family]:
    """The family with the names that its tensors have in checkpoints of different ages."""
    for inside, outside in PLACES:
        yield replace(
            family,
            names={
                key: tuple(
                    inside + name.removeprefix("model.") if name.startswith("model.") else outside + name
                    for name in names
                )
                for key, names in family.names.items()
            },
        )
