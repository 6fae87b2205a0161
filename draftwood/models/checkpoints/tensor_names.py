"""The names of the decoder's parameters in the checkpoints of each family.

A table maps a parameter to the checkpoint's tensors, concatenated along dimension 0; {i} is the layer. A parameter
that a table has and a config does not ask for is optional in the family.
"""

from __future__ import annotations

Names = dict[str, tuple[str, ...]]
EMBED_WEIGHT, HEAD_WEIGHT, PER_LAYER_TABLE = "embed.weight", "head.weight", "per_layer_embeddings.table.weight"
UNREAD = "unread."  # begins the keys of tensors that checkpoints hold and nothing reads


def both(parameter: str, *modules: str) -> Names:
    """Weight and bias of a linear layer made of the given modules."""
    return {f"{parameter}.{x}": tuple(f"{module}.{x}" for module in modules) for x in ("weight", "bias")}


def _layer_norm(parameter: str, module: str) -> Names:
    return {parameter: (f"{module}.weight",), f"{parameter}_bias": (f"{module}.bias",)}


_LAYER = "model.layers.{i}"
LLAMA: Names = {
    "embed.weight": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.mixer.norm": (f"{_LAYER}.input_layernorm.weight",),
    "layers.{i}.feed.norm": (f"{_LAYER}.post_attention_layernorm.weight",),
    **both("layers.{i}.mixer.qkv", *(f"{_LAYER}.self_attn.{x}_proj" for x in "qkv")),
    **both("layers.{i}.mixer.o", f"{_LAYER}.self_attn.o_proj"),
    **both("layers.{i}.feed.gate_up", *(f"{_LAYER}.mlp.{x}_proj" for x in ("gate", "up"))),
    **both("layers.{i}.feed.down", f"{_LAYER}.mlp.down_proj"),
}

HEAD_NORMS: Names = {
    "layers.{i}.mixer.q_norm": ("model.layers.{i}.self_attn.q_norm.weight",),
    "layers.{i}.mixer.k_norm": ("model.layers.{i}.self_attn.k_norm.weight",),
}

_HEAD_LAYER = "layers.{i}"
_HEAD: Names = {  # of a trained head with layers of its own
    "fc.weight": ("fc.weight",),
    "decoder.norm": ("norm.weight",),
    "decoder.head.weight": ("lm_head.weight",),
    **{
        f"decoder.{name}": tuple(source.removeprefix("model.") for source in LLAMA[name])
        for name in LLAMA
        if name.startswith("layers.")
    },
    **{f"decoder.layers.{{i}}.mixer.{x}_norm": (f"{_HEAD_LAYER}.self_attn.{x}_norm.weight",) for x in "qk"},
}
EAGLE: Names = {
    **_HEAD,
    "fused_norm": ("input_norm.weight",),
    "embed.weight": ("embed_tokens.weight",),
    "decoder.layers.0.mixer.norm": ("layers.0.hidden_norm.weight",),
    "decoder.layers.0.mixer.input_norm": ("layers.0.input_layernorm.weight",),
    "mask": ("mask",),  # made of a row of embeddings
    "mask_states": ("mask_hidden",),
}
DFLASH: Names = {
    **_HEAD,
    "state_norm": ("hidden_norm.weight",),
    "mask": ("mask",),
    **{f"markov.{x}.weight": (f"markov_head.markov_{x}.weight",) for x in ("w1", "w2")},
    **both("markov.gate", "markov_head.gate_proj"),
}

QWEN_3: Names = {**LLAMA, **HEAD_NORMS}

PHI_3: Names = {
    **LLAMA,
    **both("layers.{i}.mixer.qkv", f"{_LAYER}.self_attn.qkv_proj"),
    **both("layers.{i}.feed.gate_up", f"{_LAYER}.mlp.gate_up_proj"),
}

GEMMA_2: Names = {
    **LLAMA,
    "layers.{i}.mixer.post_norm": ("model.layers.{i}.post_attention_layernorm.weight",),
    "layers.{i}.feed.norm": ("model.layers.{i}.pre_feedforward_layernorm.weight",),
    "layers.{i}.feed.post_norm": ("model.layers.{i}.post_feedforward_layernorm.weight",),
}

GEMMA_3: Names = {**GEMMA_2, **HEAD_NORMS}

PER_LAYER_EMBEDDINGS: Names = {
    PER_LAYER_TABLE: ("model.embed_tokens_per_layer.weight",),
    "per_layer_embeddings.project.weight": ("model.per_layer_model_projection.weight",),
    "per_layer_embeddings.norm": ("model.per_layer_projection_norm.weight",),
    "layers.{i}.per_layer_input.gate.weight": (f"{_LAYER}.per_layer_input_gate.weight",),
    "layers.{i}.per_layer_input.project.weight": (f"{_LAYER}.per_layer_projection.weight",),
    "layers.{i}.per_layer_input.post_norm": (f"{_LAYER}.post_per_layer_input_norm.weight",),
}

_ALTUP = {"predictions": "prediction_coefs", "corrections": "correction_coefs", "router": "modality_router"}
GEMMA_3N: Names = {
    **GEMMA_3,
    **PER_LAYER_EMBEDDINGS,
    **{f"layers.{{i}}.altup.{x}.weight": (f"{_LAYER}.altup.{name}.weight",) for x, name in _ALTUP.items()},
    "layers.{i}.altup.router_norm": (f"{_LAYER}.altup.router_norm.weight",),
    "layers.{i}.altup.scale": (f"{_LAYER}.altup.correct_output_scale",),
    **{f"layers.{{i}}.laurel.{x}.weight": (f"{_LAYER}.laurel.linear_{x}.weight",) for x in ("left", "right")},
    "layers.{i}.laurel.norm": (f"{_LAYER}.laurel.post_laurel_norm.weight",),
}

GEMMA_4: Names = {
    **GEMMA_3,
    **PER_LAYER_EMBEDDINGS,
    **{f"layers.{{i}}.{last}.scalar": (f"{_LAYER}.layer_scalar",) for last in ("feed", "per_layer_input")},
    "layers.{i}.feed.router.weight": (f"{_LAYER}.router.proj.weight",),
    "layers.{i}.feed.router_norm": (f"{_LAYER}.router.scale",),
    "layers.{i}.feed.expert_scale": (f"{_LAYER}.router.per_expert_scale",),
    "layers.{i}.feed.experts_norm": (f"{_LAYER}.pre_feedforward_layernorm_2.weight",),
    "layers.{i}.feed.experts_post_norm": (f"{_LAYER}.post_feedforward_layernorm_2.weight",),
    "layers.{i}.feed.shared_post_norm": (f"{_LAYER}.post_feedforward_layernorm_1.weight",),
    "layers.{i}.feed.experts.{e}.gate_up.weight": (f"{_LAYER}.experts.gate_up_proj[{{e}}]",),
    "layers.{i}.feed.experts.{e}.down.weight": (f"{_LAYER}.experts.down_proj[{{e}}]",),
    **{f"layers.{{i}}.feed.shared.{x}.weight": LLAMA[f"layers.{{i}}.feed.{x}.weight"] for x in ("gate_up", "down")},
}

_OPT_LAYER = "model.decoder.layers.{i}"
OPT: Names = {
    "embed.weight": ("model.decoder.embed_tokens.weight",),
    "position.weight": ("model.decoder.embed_positions.weight",),
    "head.weight": ("lm_head.weight",),
    **_layer_norm("norm", "model.decoder.final_layer_norm"),
    **_layer_norm("layers.{i}.mixer.norm", f"{_OPT_LAYER}.self_attn_layer_norm"),
    **_layer_norm("layers.{i}.feed.norm", f"{_OPT_LAYER}.final_layer_norm"),
    **both("layers.{i}.mixer.qkv", *(f"{_OPT_LAYER}.self_attn.{x}_proj" for x in "qkv")),
    **both("layers.{i}.mixer.o", f"{_OPT_LAYER}.self_attn.out_proj"),
    **both("layers.{i}.feed.up", f"{_OPT_LAYER}.fc1"),
    **both("layers.{i}.feed.down", f"{_OPT_LAYER}.fc2"),
}

GPT_2: Names = {
    "embed.weight": ("transformer.wte.weight",),
    "position.weight": ("transformer.wpe.weight",),
    "head.weight": ("lm_head.weight",),
    **_layer_norm("norm", "transformer.ln_f"),
    **_layer_norm("layers.{i}.mixer.norm", "transformer.h.{i}.ln_1"),
    **_layer_norm("layers.{i}.feed.norm", "transformer.h.{i}.ln_2"),
    **both("layers.{i}.mixer.qkv", "transformer.h.{i}.attn.c_attn"),
    **both("layers.{i}.mixer.o", "transformer.h.{i}.attn.c_proj"),
    **both("layers.{i}.feed.up", "transformer.h.{i}.mlp.c_fc"),
    **both("layers.{i}.feed.down", "transformer.h.{i}.mlp.c_proj"),
}
