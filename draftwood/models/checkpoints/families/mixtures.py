"""More families with experts: dots.llm1, MiniMax-M2, Hunyuan-A13B, Granite's with a shared one, and Llama 4."""

from __future__ import annotations

from dataclasses import replace

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.dense import HUNYUAN, hunyuan, rotating_layers
from draftwood.models.checkpoints.families.experts import (
    GLM_4_MOE,
    GRANITE_MOE,
    MIXTRAL,
    QWEN_3_MOE,
    experts_of,
    granitemoe,
    grouped_experts,
    layers_with,
)
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    in_windows,
    layer_windows,
    llama_like,
    no_windows,
    renamed,
    shape_of,
    sliding_window,
    usual_rope,
)
from draftwood.models.checkpoints.tensor_names import HEAD_NORMS, LLAMA, Names
from draftwood.models.decoder_config import DecoderConfig, QueryGrowth, per_layer
from draftwood.models.experts_config import ExpertsConfig
from draftwood.util.safe_parsing import short_repr

_LAYER, _FEED = "model.layers.{i}", "layers.{i}.feed"
DOTS_1: Names = GLM_4_MOE
MINIMAX_M2: Names = {
    **MIXTRAL,
    **HEAD_NORMS,
    f"{_FEED}.selection_bias": (f"{_LAYER}.block_sparse_moe.e_score_correction_bias",),
}
HUNYUAN_MOE: Names = {
    **HUNYUAN,
    **{name: sources for name, sources in QWEN_3_MOE.items() if ".experts." in name},
    f"{_FEED}.router.weight": (f"{_LAYER}.mlp.gate.wg.weight",),
    f"{_FEED}.shared.gate_up.weight": tuple(f"{_LAYER}.mlp.shared_mlp.{x}_proj.weight" for x in ("gate", "up")),
    f"{_FEED}.shared.down.weight": (f"{_LAYER}.mlp.shared_mlp.down_proj.weight",),
}
GRANITE_MOE_SHARED: Names = {
    **GRANITE_MOE,
    f"{_FEED}.shared.gate_up.weight": (f"{_LAYER}.shared_mlp.input_linear.weight",),
    f"{_FEED}.shared.down.weight": (f"{_LAYER}.shared_mlp.output_linear.weight",),
}
_GATES = ("gate", "up")
LLAMA_4: Names = {
    **LLAMA,
    "layers.{i}.mixer.q_norm": (),
    "layers.{i}.mixer.k_norm": (),
    f"{_FEED}.gate_up.weight": tuple(f"{_LAYER}.feed_forward.{x}_proj.weight" for x in _GATES),
    f"{_FEED}.down.weight": (f"{_LAYER}.feed_forward.down_proj.weight",),
    f"{_FEED}.router.weight": (f"{_LAYER}.feed_forward.router.weight",),
    **{
        f"{_FEED}.experts.{{e}}.{x}.weight": (f"{_LAYER}.feed_forward.experts.{x}_proj[{{e}}]",)
        for x in ("gate_up", "down")
    },
    f"{_FEED}.shared.gate_up.weight": tuple(f"{_LAYER}.feed_forward.shared_expert.{x}_proj.weight" for x in _GATES),
    f"{_FEED}.shared.down.weight": (f"{_LAYER}.feed_forward.shared_expert.down_proj.weight",),
}


def dots1(raw: Raw) -> DecoderConfig:
    """dots.llm1: Qwen 3's attention and DeepSeek V3's experts; absent numbers of these are the published model's."""
    shape = shape_of(raw, 152064, 4608, 10944, 62, 32, 32, None)
    layers, last = shape["num_hidden_layers"], keys.whole_number(raw, "max_window_layers", 62)
    window = sliding_window(raw, 4096)
    windows = layer_windows(raw, layers, window, lambda layer: window > 0 and layer >= last)
    known = {**raw, "num_experts": raw.get("n_routed_experts", raw.get("num_local_experts"))}
    experts = grouped_experts({"norm_topk_prob": False, **raw}, experts_of(known, 128, 6, 1408), "sigmoid")
    dense = keys.whole_number(raw, "first_k_dense_replace", 0)
    return DecoderConfig(
        **llama_like(raw, shape, 2048),
        **attention_bias(raw),
        **layers_with(experts, [layer >= dense for layer in range(layers)], in_windows(windows)),
        qk_norm="one",
    )


def minimax_m2(raw: Raw) -> DecoderConfig:
    """MiniMax-M2: norms over all heads, a part of each rotated, sigmoids of experts."""
    no_windows(raw)
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 200064, 3072, 1536, 62, 48, 8, 128)
    if raw.get("rotary_dim") is not None and raw.get("partial_rotary_factor") is None:
        raw = {**raw, "partial_rotary_factor": keys.positive_int(raw, "rotary_dim", 64) / shape["head_dim"]}
    keys.only(raw, "moe_intermediate_size", shape["intermediate_size"])
    keys.only(raw, "scoring_func", "sigmoid")
    experts = ExpertsConfig(
        **experts_of(raw, 256, 8, shape["intermediate_size"]), scoring="sigmoid", normalised=True, selection_bias=True
    )
    return DecoderConfig(
        **llama_like(usual_rope(raw, 5e6), shape, 196608, partial=True), qk_norm="whole", experts=experts
    )


def hunyuan_moe(raw: Raw) -> DecoderConfig:
    """Hunyuan-A13B: its dense family's attention, experts and a shared one of their size."""
    raw = renamed(raw, num_experts_per_tok="moe_topk", num_local_experts="num_experts")
    config = hunyuan(raw)
    one = {
        key: value[0] if isinstance(value, list) and len(set(map(str, value))) == 1 else value
        for key, value in raw.items()
        if key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")
    }
    keys.only(one, "num_shared_expert", 1)
    keys.only(one, "moe_intermediate_size", config.intermediate_size)
    sizes = {"num_experts": one.get("num_experts"), "num_experts_per_tok": one.get("moe_topk")}
    known = experts_of(sizes, 1, 1, config.intermediate_size)
    return replace(config, experts=ExpertsConfig(**known, normalised=True, shared_size=config.intermediate_size))


def granitemoeshared(raw: Raw) -> DecoderConfig:
    config = granitemoe(raw)
    assert config.experts is not None
    shared = keys.whole_number(raw, "shared_intermediate_size", 0)
    return replace(config, experts=replace(config.experts, shared_size=shared))


def llama4(raw: Raw) -> DecoderConfig:
    """The text part of Llama 4: layers that rotate see a chunk of positions, others all, and their queries grow."""
    shape = shape_of(raw, 202048, 5120, 8192, 48, 40, 8, 128)
    layers, inner = shape["num_hidden_layers"], shape["intermediate_size"]
    experts = ExpertsConfig(
        **experts_of({**raw, "num_experts": raw.get("num_local_experts"), "moe_intermediate_size": None}, 16, 1, inner),
        scoring="sigmoid",
        weighs_inputs=True,
        shared_size=inner,
    )
    step, mixed = keys.positive_int(raw, "interleave_moe_layer_step", 1), raw.get("moe_layers")
    mixed = range(step - 1, layers, step) if mixed is None else mixed
    rotates = rotating_layers(raw, layers)
    chunk = 0 if raw.get("attention_chunk_size", 0) is None else keys.positive_int(raw, "attention_chunk_size", 8192)
    usual = ["chunked_attention" if chunk and turns else "full_attention" for turns in rotates]
    types = raw.get("layer_types") or usual
    if types != usual or not all(type(layer) is int for layer in mixed):
        raise ModelError(
            f"layer_types is {short_repr(types)} and moe_layers {short_repr(mixed)}, but layers that rotate must have "
            "chunked_attention, others full_attention, and moe_layers must be numbers of layers"
        )
    growth = None
    if raw.get("attn_temperature_tuning", True):
        beta = keys.positive_number(raw, "attn_scale", 0.1)
        growth = QueryGrowth(beta, keys.positive_int(raw, "floor_scale", 8192), 1)
    normed = "one" if keys.flag(raw, "use_qk_norm", True) else None
    knobs = per_layer(
        window=[chunk if turns else 0 for turns in rotates],
        chunked=[bool(chunk and turns) for turns in rotates],
        rotary_dim=[None if turns else 0 for turns in rotates],
        qk_norm=[normed if turns else None for turns in rotates],
        query_growth=[None if turns else growth for turns in rotates],
    )
    dense = keys.positive_int(raw, "intermediate_size_mlp", 16384)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 500_000.0), {**shape, "intermediate_size": dense}, 131072, 1e-5),
        **attention_bias(raw),
        **layers_with(experts, [layer in mixed for layer in range(layers)], {"layers": knobs}),
        late_qk_norm=True,
    )
