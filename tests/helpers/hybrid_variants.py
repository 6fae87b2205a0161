"""Configs of tiny models with recurrent layers, some with experts: names of variants, with type and config."""

from __future__ import annotations

from typing import Any

from family_variants import CONV, DELTA, GRANITE, IDS, SHAPE

HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("qwen3_5_text", {**SHAPE, **DELTA, "head_dim": 16}),
    "qwen3_5_types": (
        "qwen3_5_text",
        {
            **{**SHAPE, **DELTA, "head_dim": 16, "linear_num_value_heads": 2, "tie_word_embeddings": True},
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        },
    ),
    "lfm2": ("lfm2", {**SHAPE, "layer_types": CONV, "block_multiple_of": 8}),
    "lfm2_bias": (
        "lfm2",
        {
            **{**SHAPE, "full_attn_idxs": [0], "conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False},
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "granite_hybrid": ("granitemoehybrid", GRANITE),
    "granite_hybrid_rope": (
        "granitemoehybrid",
        {
            **{**GRANITE, "position_embedding_type": "rope", "mamba_n_groups": 2, "mamba_proj_bias": True},
            **{"mamba_conv_bias": False, "attention_bias": True, "layer_types": ["attention", "mamba", "attention"]},
        },
    ),
}
FALCON: dict[str, Any] = {**SHAPE, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
HYBRIDS |= {
    "falcon_h1": ("falcon_h1", {**FALCON, "num_key_value_heads": 2}),
    "falcon_h1_multipliers": (
        "falcon_h1",
        {
            **{**FALCON, "mamba_n_groups": 2, "mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True},
            **{"ssm_multipliers": [0.7, 1.2, 0.8, 1.3, 0.6], "mlp_multipliers": [0.8, 0.6], "ssm_in_multiplier": 1.2},
            **{f"attention_{end}_multiplier": factor for end, factor in (("in", 1.3), ("out", 0.8))},
            **{
                "key_multiplier": 0.7,
                "ssm_out_multiplier": 0.6,
                "embedding_multiplier": 2.0,
                "lm_head_multiplier": 0.5,
            },
        },
    ),
}
HYBRIDS["nemotron_h"] = (
    "nemotron_h",
    {
        **{**SHAPE, "num_hidden_layers": None, "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 8},
        **{"ssm_state_size": 8, "n_groups": 2, "layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
    },
)
HYBRIDS["mamba2"] = (
    "mamba2",
    {**IDS, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "num_hidden_layers": 3},
)
DELTA_MIXTURE: dict[str, Any] = {
    **{**SHAPE, **DELTA, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "shared_expert_intermediate_size": 16,
}
HYBRID_MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5_moe": ("qwen3_5_moe_text", DELTA_MIXTURE),
    "qwen3_next": ("qwen3_next", DELTA_MIXTURE),
    "qwen3_next_dense": ("qwen3_next", {**DELTA_MIXTURE, "mlp_only_layers": [1], "norm_topk_prob": False}),
    "nemotron_h_experts": (
        "nemotron_h",
        {
            **{**HYBRIDS["nemotron_h"][1], "layers_block_type": ["mamba", "moe", "attention", "moe"]},
            **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
            **{"moe_shared_expert_intermediate_size": 16, "routed_scaling_factor": 1.5},
        },
    ),
    "nemotron_h_latent": (
        "nemotron_h",
        {
            **{**HYBRIDS["nemotron_h"][1], "layers_block_type": ["mamba", "moe", "attention", "moe"]},
            **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_latent_size": 16},
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            **{**SHAPE, "layer_types": CONV, "num_dense_layers": 1, "moe_intermediate_size": 24, "num_experts": 6},
            **{"num_experts_per_tok": 2, "tie_word_embeddings": False},
        },
    ),
    "granite_hybrid_experts": ("granitemoehybrid", {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2}),
}
