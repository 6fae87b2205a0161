"""Configs of tiny models of families whose layers all attend: names of variants, with type and config."""

from __future__ import annotations

from typing import Any

from checkpoint_files import VOCAB

IDS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE: dict[str, Any] = {
    **IDS,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
OPT = {**SHAPE, "ffn_dim": 40}
GPT_2: dict[str, Any] = {**IDS, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 40, "n_positions": 64}
GEMMA = {**SHAPE, "head_dim": 12}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 16}
LONG_ROPE = {  # beyond 8 tokens the long factors hold
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "attention_factor": 1.25,
    "short_factor": [1.0, 1.125, 1.25, 1.75],
    "long_factor": [1.5, 2.0, 3.0, 8.0],
}
SLIDING, FULL = "sliding_attention", "full_attention"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {**SHAPE, "sliding_window": 5, "head_dim": 12}),
    "mistral_1": ("mistral", {**SHAPE, "sliding_window": 1}),
    "mistral_unlimited": ("mistral", {**SHAPE, "sliding_window": None}),
    "ministral": ("ministral", {**SHAPE, "head_dim": 12, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}),
    "ministral3": (
        "ministral3",
        {
            **SHAPE,
            "head_dim": 12,
            "rope_parameters": {
                **{**YARN, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.4},
                **{"mscale": 1.0, "mscale_all_dim": 0.5},
            },
        },
    ),
    "qwen2": ("qwen2", SHAPE),
    "qwen2_windows": (
        "qwen2",
        {
            **SHAPE,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("qwen3", {**SHAPE, "head_dim": 16}),
    "qwen3_bias_windows": (
        "qwen3",
        {
            **SHAPE,
            "head_dim": 12,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": [FULL, SLIDING, FULL],
        },
    ),
    "llama_yarn": ("llama", {**SHAPE, "rope_parameters": YARN}),
    "qwen3_yarn": (
        "qwen3",
        {**SHAPE, "head_dim": 12, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False}},
    ),
    "qwen2_dynamic": ("qwen2", {**SHAPE, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    "phi3": ("phi3", {**SHAPE, "sliding_window": 6}),
    "phi3_partial": (
        "phi3",
        {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ),
    "phi3_long": ("phi3", {**SHAPE, "original_max_position_embeddings": 8, "rope_parameters": LONG_ROPE}),
    "gemma": ("gemma", {**GEMMA, "num_key_value_heads": 1}),
    "gemma_bias": ("gemma", {**GEMMA, "hidden_act": "gelu", "attention_bias": True, "tie_word_embeddings": False}),
    "gemma2": (
        "gemma2",
        {
            **GEMMA,
            "sliding_window": 5,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma2_uncapped": (
        "gemma2",
        {**GEMMA, "sliding_window": 5, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "gemma3_text",
        {**GEMMA, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING], "final_logit_softcapping": 4.0},
    ),
    "gemma3_scaled": (
        "gemma3_text",
        {
            **GEMMA,
            "sliding_window": 4,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "opt": ("opt", OPT),
    "opt_plain": ("opt", {**OPT, "enable_bias": False, "tie_word_embeddings": False, "activation_function": "gelu"}),
    "gpt2": ("gpt2", GPT_2),
    "gpt2_default_inner": ("gpt2", {**GPT_2, "n_inner": None, "activation_function": "relu"}),
}
EXPERTS: dict[str, Any] = {
    **SHAPE,
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
LOCAL = {**{key: value for key, value in EXPERTS.items() if "moe" not in key}, "num_local_experts": 6}
VARIANTS |= {
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "qwen3_moe_mixed": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": False}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 2}),
    "mixtral": ("mixtral", {**LOCAL, "sliding_window": 5}),
    "olmoe": ("olmoe", {**{k: v for k, v in EXPERTS.items() if "moe" not in k}, "num_key_value_heads": 4}),
    "granitemoe": (
        "granitemoe",
        {
            **LOCAL,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        {
            **EXPERTS,
            "n_routed_experts": 6,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**SHAPE, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "tie_word_embeddings": False},
    ),
    "gpt_oss": ("gpt_oss", {**LOCAL, "sliding_window": 4, "swiglu_limit": 0.8}),
}
WHOLE = {**SHAPE, "num_key_value_heads": 4}
ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}
HALF = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
VARIANTS |= {
    "smollm3": ("smollm3", {**SHAPE, "no_rope_layer_interval": 2}),
    "smollm3_windows": (
        "smollm3",
        {**SHAPE, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5},
    ),
    "olmo": ("olmo", {**WHOLE, "clip_qkv": 0.8}),
    "olmo2": ("olmo2", SHAPE),
    "olmo3": (
        "olmo3",
        {**SHAPE, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING], "rope_parameters": {FULL: YARN}},
    ),
    "granite": (
        "granite",
        {
            **SHAPE,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "seed_oss": ("seed_oss", {**SHAPE, "head_dim": 12}),
    "arcee": ("arcee", SHAPE),
    "hunyuan": ("hunyuan_v1_dense", {**SHAPE, "head_dim": 8, "rope_parameters": ALPHA}),
    "exaone4": ("exaone4", {**SHAPE, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}),
    "exaone4_whole": ("exaone4", {**SHAPE, "sliding_window": None, "layer_types": [FULL] * 3}),
    "ernie4_5": ("ernie4_5", {**SHAPE, "head_dim": 12, "use_bias": True}),
    "helium": ("helium", {**WHOLE, "head_dim": 8}),
    "glm": ("glm", {**SHAPE, "head_dim": 8}),
    "glm4": ("glm4", {**SHAPE, "head_dim": 8}),
    "cohere": ("cohere", {**SHAPE, "logit_scale": 2.0}),
    "cohere2": ("cohere2", {**SHAPE, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING], "logit_scale": 2.0}),
    "phi": ("phi", {**SHAPE, "rope_parameters": HALF}),
    "stablelm": ("stablelm", {**SHAPE, "use_qkv_bias": True, "rope_parameters": HALF}),
    "gpt_neox": ("gpt_neox", {**WHOLE, "rope_parameters": HALF}),
    "gpt_neox_serial": ("gpt_neox", {**WHOLE, "use_parallel_residual": False, "rope_parameters": HALF}),
    "starcoder2": ("starcoder2", {**SHAPE, "sliding_window": 5}),
    "nemotron": ("nemotron", {**SHAPE, "head_dim": 8, "rope_parameters": HALF}),
    "cohere_norms": ("cohere", {**SHAPE, "use_qk_norm": True, "logit_scale": 2.0}),
    "stablelm_norms": (
        "stablelm",
        {**SHAPE, "qk_layernorm": True, "use_parallel_residual": True, "rope_parameters": HALF},
    ),
    "persimmon": ("persimmon", {**WHOLE, "rope_parameters": HALF}),
    "falcon": ("falcon", {**SHAPE, "bias": True}),
    "falcon_new": ("falcon", {**SHAPE, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_one_norm": (
        "falcon",
        {**SHAPE, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon_serial": ("falcon", {**SHAPE, "parallel_attn": False, "multi_query": False}),
    "internlm3": ("internlm3", {**SHAPE, "head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    "gpt_bigcode": ("gpt_bigcode", GPT_2),
    "gpt_bigcode_heads": ("gpt_bigcode", {**GPT_2, "multi_query": False}),
    "gptj": ("gptj", {**GPT_2, "rotary_dim": 4}),
    "gpt_neo": (
        "gpt_neo",
        {
            **{**IDS, "hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_position_embeddings": 64},
            **{"attention_types": [[["local", "global"], 1], [["local"], 1]], "window_size": 5},
        },
    ),
}
VARIANTS |= {
    "dots1": (
        "dots1",
        {
            **{**EXPERTS, "n_routed_experts": 6, "n_shared_experts": 2, "n_group": 2, "topk_group": 1},
            **{"first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "sliding_window": 5, "max_window_layers": 2},
        },
    ),
    "minimax_m2": ("minimax_m2", {**LOCAL, "rotary_dim": 4}),
    "hunyuan_moe": ("hunyuan_v1_moe", {**SHAPE, "head_dim": 8, "num_experts": 6, "moe_topk": 2}),
    "llama4": (
        "llama4_text",
        {
            **{**LOCAL, "num_hidden_layers": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2},
            **{"attention_chunk_size": 5, "no_rope_layers": [1, 1, 0, 1], "floor_scale": 3, "attn_scale": 0.4},
        },
    ),
    "llama4_plain": (
        "llama4_text",
        {
            **{**LOCAL, "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "attention_chunk_size": None},
            **{"use_qk_norm": False, "attn_temperature_tuning": False},
        },
    ),
    "granitemoeshared": ("granitemoeshared", {**LOCAL, "shared_intermediate_size": 24, "residual_multiplier": 0.3}),
}
BLOOM = {**{key: value for key, value in SHAPE.items() if key != "num_hidden_layers"}, "n_layer": 3, "n_head": 4}
LONG_AND_SHORT = {**LONG_ROPE, "short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 64}
VARIANTS |= {
    "bloom": ("bloom", BLOOM),
    "bloom_heads": ("bloom", {**BLOOM, "hidden_size": 48, "n_head": 6, "tie_word_embeddings": False}),
    "mpt": ("mpt", {**IDS, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}),
    "mpt_heads": (
        "mpt",
        {
            **{**IDS, "d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 64},
            "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.5},
        },
    ),
    "falcon_rw": ("falcon", {**SHAPE, "alibi": True, "bias": True, "parallel_attn": False, "multi_query": False}),
    "apertus": ("apertus", {**SHAPE, "rope_parameters": HALF | {"partial_rotary_factor": 1.0}}),
    "bitnet": ("bitnet", SHAPE),
    "phimoe": ("phimoe", {**SHAPE, "num_local_experts": 6, "lm_head_bias": True, "attention_bias": True}),
    "phimoe_long": (
        "phimoe",
        {**SHAPE, "num_local_experts": 6, "router_jitter_noise": 0.3, "rope_parameters": LONG_AND_SHORT},
    ),
}
LATENT = {
    **{**SHAPE, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12},
}
ROUTED = {
    **{**LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 1},
    **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
}
MSCALE = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}
VARIANTS |= {
    "deepseek_v2": ("deepseek_v2", {**ROUTED, "topk_method": "group_limited_greedy", "n_shared_experts": 2}),
    "deepseek_v2_lite": ("deepseek_v2", {**ROUTED, "q_lora_rank": None, "rope_parameters": MSCALE}),
    "deepseek_v3": ("deepseek_v3", {**ROUTED, "attention_bias": True}),
    "deepseek_v3_yarn": ("deepseek_v3", {**ROUTED, "rope_parameters": MSCALE, "v_head_dim": 8}),
    "glm4_moe_lite": ("glm4_moe_lite", ROUTED),
    "mistral4": (
        "mistral4",
        {**ROUTED, "rope_parameters": {**MSCALE, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.4}},
    ),
    "youtu": ("youtu", LATENT),
    "minicpm3": ("minicpm3", {**LATENT, "dim_model_base": 16}),
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "full_attention_interval": 2,
}
GRANITE: dict[str, Any] = {
    **SHAPE,
    "num_local_experts": 0,
    "shared_intermediate_size": 40,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "layer_types": ["mamba", "attention", "mamba"],
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.2,
}
CONV = ["conv", FULL, "conv"]
GEMMA_4 = {
    **SHAPE,
    **{"head_dim": 12, "global_head_dim": 16, "hidden_size_per_layer_input": 0, "sliding_window": 4},
    "layer_types": [SLIDING, FULL, FULL],
}
GEMMA_4_E = {
    **{**GEMMA_4, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    **{"layer_types": [SLIDING, FULL] * 3, "hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": 96},
}
VARIANTS |= {
    "gemma4": ("gemma4_text", {**GEMMA_4, "num_global_key_value_heads": 1, "attention_k_eq_v": True}),
    "gemma3n": (
        "gemma3n_text",
        {
            **{**SHAPE, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": [SLIDING, FULL] * 3},
            **{"sliding_window": 4, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 90},
            **{"laurel_rank": 6, "altup_active_idx": 1, "altup_num_inputs": 3, "intermediate_size": [40, 24] * 3},
            "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.8, 0.0],
        },
    ),
    "gemma4_per_layer": ("gemma4_text", GEMMA_4_E),
    "gemma4_experts": (
        "gemma4_text",
        {
            **{**GEMMA_4, "attention_k_eq_v": True, "enable_moe_block": True},
            **{"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24},
        },
    ),
    "gemma4_values": ("gemma4_text", {**GEMMA_4, "num_hidden_layers": 4, "layer_types": None}),
}
