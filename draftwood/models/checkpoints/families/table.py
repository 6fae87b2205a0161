"""The table of model families."""

from __future__ import annotations

from draftwood.models.checkpoints.families import dense, experts, gemma, gpt, hybrid, llama, parallel
from draftwood.models.checkpoints.families.family import PAIRS, PAIRS_AND_NORMS, Family
from draftwood.models.checkpoints.families.hybrid_names import (
    FALCON_H1,
    GRANITE_HYBRID,
    LFM_2,
    NEMOTRON_H,
    QWEN_3_5,
    QWEN_3_5_MOE,
    QWEN_3_NEXT,
    QWEN_3_NEXT_ORDERS,
)
from draftwood.models.checkpoints.tensor_names import GEMMA_2, GEMMA_3, GEMMA_4, GPT_2, LLAMA, OPT, PHI_3, QWEN_3

FAMILIES: dict[str, Family] = {
    "llama": Family(llama.llama, LLAMA),
    "mistral": Family(llama.mistral, LLAMA),
    "ministral": Family(llama.ministral, LLAMA),
    "ministral3": Family(llama.ministral3, LLAMA),
    "qwen2": Family(llama.qwen2, LLAMA),
    "qwen2_vl_text": Family(llama.qwen2_vl, LLAMA),
    "qwen2_5_vl_text": Family(llama.qwen2_vl, LLAMA),
    "qwen3": Family(llama.qwen3, QWEN_3),
    "qwen3_vl_text": Family(llama.qwen3_vl, QWEN_3),
    "phi3": Family(llama.phi3, PHI_3),
    "gemma": Family(gemma.gemma, LLAMA),
    "gemma2": Family(gemma.gemma2, GEMMA_2),
    "gemma3_text": Family(gemma.gemma3, GEMMA_3),
    "opt": Family(gpt.opt, OPT),
    "gpt2": Family(
        gpt.gpt2,
        GPT_2,
        "transformer.",
        frozenset(f"layers.{{i}}.{x}.weight" for x in ("mixer.qkv", "mixer.o", "feed.up", "feed.down")),
    ),
    "qwen2_moe": Family(experts.qwen2_moe, experts.QWEN_2_MOE),
    "qwen3_moe": Family(experts.qwen3_moe, experts.QWEN_3_MOE),
    "qwen3_vl_moe_text": Family(
        experts.qwen3_vl_moe, experts.QWEN_3_VL_MOE, transposed=experts.STACKED, either_way=True
    ),
    "mixtral": Family(experts.mixtral, experts.MIXTRAL),
    "olmoe": Family(experts.olmoe, experts.OLMOE),
    "granitemoe": Family(experts.granitemoe, experts.GRANITE_MOE),
    "ernie4_5_moe": Family(experts.ernie4_5_moe, experts.ERNIE_4_5_MOE, orders=PAIRS),
    "glm4_moe": Family(experts.glm4_moe, experts.GLM_4_MOE),
    "qwen3_5_text": Family(hybrid.qwen3_5, QWEN_3_5),
    "qwen3_5_moe_text": Family(hybrid.qwen3_5_moe, QWEN_3_5_MOE),
    "qwen3_next": Family(hybrid.qwen3_next, QWEN_3_NEXT, orders=QWEN_3_NEXT_ORDERS),
    "lfm2": Family(hybrid.lfm2, LFM_2),
    "falcon_h1": Family(hybrid.falcon_h1, FALCON_H1),
    "nemotron_h": Family(hybrid.nemotron_h, NEMOTRON_H, "backbone."),
    "granitemoehybrid": Family(hybrid.granite_hybrid, GRANITE_HYBRID),
    "gpt_oss": Family(experts.gpt_oss, experts.GPT_OSS, "model.", experts.STACKED, experts.GPT_OSS_ORDERS),
    "smollm3": Family(dense.smollm3, LLAMA),
    "olmo": Family(dense.olmo, dense.OLMO),
    "olmo2": Family(dense.olmo2, dense.OLMO_2),
    "olmo3": Family(dense.olmo3, dense.OLMO_2),
    "granite": Family(dense.granite, LLAMA),
    "seed_oss": Family(dense.seed_oss, LLAMA),
    "arcee": Family(dense.arcee, dense.ARCEE),
    "hunyuan_v1_dense": Family(dense.hunyuan, dense.HUNYUAN),
    "exaone4": Family(dense.exaone4, dense.OLMO_2),
    "ernie4_5": Family(dense.ernie4_5, LLAMA, orders=PAIRS),
    "helium": Family(dense.helium, LLAMA, orders=PAIRS),
    "glm": Family(dense.glm, dense.GLM, orders=PAIRS),
    "glm4": Family(dense.glm4, dense.GLM_4, orders=PAIRS),
    "cohere": Family(parallel.cohere, parallel.COHERE, orders=PAIRS_AND_NORMS, variants=parallel.cohere_names),
    "cohere2": Family(parallel.cohere2, parallel.COHERE, orders=PAIRS),
    "phi": Family(parallel.phi, parallel.PHI),
    "stablelm": Family(parallel.stablelm, parallel.STABLELM, variants=parallel.stablelm_names),
    "gpt_neox": Family(parallel.gpt_neox, parallel.GPT_NEOX, "gpt_neox.", orders=parallel.TOGETHER),
    "starcoder2": Family(parallel.starcoder2, parallel.STARCODER_2),
    "nemotron": Family(parallel.nemotron, parallel.NEMOTRON),
    "persimmon": Family(parallel.persimmon, parallel.PERSIMMON, orders=parallel.TOGETHER),
    "falcon": Family(
        parallel.falcon, parallel.FALCON, "transformer.", orders=parallel.TOGETHER, variants=parallel.falcon_names
    ),
    "internlm3": Family(dense.internlm3, LLAMA),
    "gpt_bigcode": Family(gpt.gpt_bigcode, GPT_2, "transformer.", orders=parallel.TOGETHER),
    "gptj": Family(gpt.gptj, gpt.GPT_J, "transformer.", orders=PAIRS),
    "gpt_neo": Family(gpt.gpt_neo, gpt.GPT_NEO, "transformer."),
    "gemma4_text": Family(gemma.gemma4, GEMMA_4, variants=gemma.gemma4_names),
}
