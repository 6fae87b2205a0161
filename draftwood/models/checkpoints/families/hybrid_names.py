"""The names of parameters in the checkpoints of families with recurrent layers; see `tensor_names`."""

from __future__ import annotations

from draftwood.models.checkpoints.families.experts import GRANITE_MOE, QWEN_2_MOE
from draftwood.models.checkpoints.families.hybrid import by_kind
from draftwood.models.checkpoints.tensor_names import LLAMA, QWEN_3, Names, both

_LAYER = "model.layers.{i}"


def _recurrent(module: str, into: tuple[str, ...] = ("in_proj",), conv: str = "conv1d", part: str = "mixer") -> Names:
    """The parameters of a recurrent part of a layer, which a checkpoint has in a module of the layer."""
    ours, theirs = f"layers.{{i}}.{part}", f"{_LAYER}.{module}"
    names: Names = {
        f"{ours}.conv": (f"{theirs}.{conv}.weight",),
        f"{ours}.conv_bias": (f"{theirs}.{conv}.bias",),
        f"{ours}.decay_log": (f"{theirs}.A_log",),
        f"{ours}.step_bias": (f"{theirs}.dt_bias",),
        f"{ours}.skip": (f"{theirs}.D",),
        f"{ours}.gated_norm": (f"{theirs}.norm.weight",),
    }
    for leaf in ("weight", "bias"):
        names[f"{ours}.into.{leaf}"] = tuple(f"{theirs}.{name}.{leaf}" for name in into)
        names[f"{ours}.out.{leaf}"] = (f"{theirs}.out_proj.{leaf}",)
    return names


QWEN_3_5: Names = {**QWEN_3, **_recurrent("linear_attn", tuple(f"in_proj_{x}" for x in ("z", "qkv", "b", "a")))}

_EXPERTS: Names = {name: sources for name, sources in QWEN_2_MOE.items() if name.startswith("layers.{i}.feed.")}
QWEN_3_5_MOE: Names = {**QWEN_3_5, **_EXPERTS}
QWEN_3_NEXT: Names = {**QWEN_3, **_EXPERTS, **_recurrent("linear_attn", ("in_proj_qkvz", "in_proj_ba"))}
QWEN_3_NEXT_ORDERS = {"layers.{i}.mixer.into.weight": by_kind}

LFM_2: Names = {
    **LLAMA,
    **_recurrent("conv", conv="conv"),
    "norm": ("model.embedding_norm.weight",),
    "layers.{i}.mixer.norm": (f"{_LAYER}.operator_norm.weight",),
    "layers.{i}.mixer.q_norm": (f"{_LAYER}.self_attn.q_layernorm.weight",),
    "layers.{i}.mixer.k_norm": (f"{_LAYER}.self_attn.k_layernorm.weight",),
    "layers.{i}.mixer.o.weight": (f"{_LAYER}.self_attn.out_proj.weight",),
    "layers.{i}.feed.norm": (f"{_LAYER}.ffn_norm.weight",),
    "layers.{i}.feed.gate_up.weight": (f"{_LAYER}.feed_forward.w1.weight", f"{_LAYER}.feed_forward.w3.weight"),
    "layers.{i}.feed.down.weight": (f"{_LAYER}.feed_forward.w2.weight",),
}

LFM_2_MOE: Names = {
    **LFM_2,
    "layers.{i}.feed.router.weight": (f"{_LAYER}.feed_forward.gate.weight",),
    "layers.{i}.feed.selection_bias": (f"{_LAYER}.feed_forward.expert_bias",),
    "layers.{i}.feed.experts.{e}.gate_up.weight": tuple(
        f"{_LAYER}.feed_forward.experts.{{e}}.{x}.weight" for x in ("w1", "w3")
    ),
    "layers.{i}.feed.experts.{e}.down.weight": (f"{_LAYER}.feed_forward.experts.{{e}}.w2.weight",),
}

GRANITE_HYBRID: Names = {
    **LLAMA,
    **_recurrent("mamba"),
    "layers.{i}.feed.gate_up.weight": (f"{_LAYER}.shared_mlp.input_linear.weight",),
    "layers.{i}.feed.down.weight": (f"{_LAYER}.shared_mlp.output_linear.weight",),
    **{name: sources for name, sources in GRANITE_MOE.items() if ".router." in name or ".experts." in name},
    "layers.{i}.feed.shared.gate_up.weight": (f"{_LAYER}.shared_mlp.input_linear.weight",),
    "layers.{i}.feed.shared.down.weight": (f"{_LAYER}.shared_mlp.output_linear.weight",),
}

FALCON_H1: Names = {
    **LLAMA,
    **_recurrent("mamba", part="beside"),
    **both("layers.{i}.feed.gate_up", *(f"{_LAYER}.feed_forward.{x}_proj" for x in ("gate", "up"))),
    **both("layers.{i}.feed.down", f"{_LAYER}.feed_forward.down_proj"),
    "norm": ("model.final_layernorm.weight",),
    "layers.{i}.beside.norm": (f"{_LAYER}.input_layernorm.weight",),
    "layers.{i}.feed.norm": (f"{_LAYER}.pre_ff_layernorm.weight",),
}

_BLOCK, _HALVES = "backbone.layers.{i}", ("up", "down")
NEMOTRON_H: Names = {
    **{
        parameter: tuple(name.replace("model.layers.{i}.mamba", f"{_BLOCK}.mixer") for name in names)
        for parameter, names in _recurrent("mamba").items()
    },
    "embed.weight": ("backbone.embeddings.weight",),
    "norm": ("backbone.norm_f.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.mixer.norm": (f"{_BLOCK}.norm.weight",),
    "layers.{i}.feed.norm": (f"{_BLOCK}.norm.weight",),
    **both("layers.{i}.mixer.qkv", *(f"{_BLOCK}.mixer.{x}_proj" for x in "qkv")),
    **both("layers.{i}.mixer.o", f"{_BLOCK}.mixer.o_proj"),
    **both("layers.{i}.feed.up", f"{_BLOCK}.mixer.up_proj"),
    **both("layers.{i}.feed.down", f"{_BLOCK}.mixer.down_proj"),
    "layers.{i}.feed.router.weight": (f"{_BLOCK}.mixer.gate.weight",),
    "layers.{i}.feed.selection_bias": (f"{_BLOCK}.mixer.gate.e_score_correction_bias",),
    **both("layers.{i}.feed.to_latent", f"{_BLOCK}.mixer.fc1_latent_proj"),
    **both("layers.{i}.feed.from_latent", f"{_BLOCK}.mixer.fc2_latent_proj"),
    **{
        f"layers.{{i}}.feed.experts.{{e}}.{x}.weight": (f"{_BLOCK}.mixer.experts.{{e}}.{x}_proj.weight",)
        for x in _HALVES
    },
    **{f"layers.{{i}}.feed.shared.{x}.weight": (f"{_BLOCK}.mixer.shared_experts.{x}_proj.weight",) for x in _HALVES},
}
MAMBA_2 = NEMOTRON_H  # some of whose layers are its
