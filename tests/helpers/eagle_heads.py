"""EAGLE-3 heads as they are published, with random weights, and what they say, in plain PyTorch from the format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from small_decoder import VOCAB
from torch import Tensor

from draftwood.models.decoder import Decoder

LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
READS = [1, 2, 3]


def config(original: bool = False, layers: int = 1, **more: Any) -> dict[str, Any]:
    """config.json of `speculators`, or of EAGLE's authors."""
    layer = {**LAYER, "num_hidden_layers": layers}
    if original:
        return {**layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB, **more}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": VOCAB,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": READS,
        "transformer_layer_config": layer,
        **more,
    }


def weights(raw: dict[str, Any], seed: int = 5, states: int = 3, embeds: bool = False) -> dict[str, Tensor]:
    """Random tensors by their published names."""
    generator = torch.Generator().manual_seed(seed)
    layer = raw.get("transformer_layer_config", raw)
    d, inner, known = layer["hidden_size"], layer["intermediate_size"], raw["draft_vocab_size"]
    q, kv = layer["num_attention_heads"] * layer["head_dim"], layer["num_key_value_heads"] * layer["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, states * d),
        "norm.weight": (d,),
        "lm_head.weight": (known, d),
    }
    for i in range(layer["num_hidden_layers"]):
        name, wide = ("midlayer" if raw is layer else f"layers.{i}"), 2 * d if i == 0 else d
        shapes |= {f"{name}.self_attn.{x}_proj.weight": (size, wide) for x, size in (("q", q), ("k", kv), ("v", kv))}
        shapes |= {f"{name}.self_attn.o_proj.weight": (d, q), f"{name}.mlp.down_proj.weight": (d, inner)}
        shapes |= {f"{name}.mlp.{x}_proj.weight": (inner, d) for x in ("gate", "up")}
        norms = ("input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if i == 0 else []))
        shapes |= {f"{name}.{x}.weight": (d,) for x in norms}
    if raw.get("norm_before_fc"):
        shapes["input_norm.weight"] = (states * d,)
    if raw.get("fc_norm"):
        shapes |= {f"fc_norm.{n}.weight": (d,) for n in range(states)}
    if raw.get("speculators_model_type") == "peagle":
        shapes["mask_hidden"] = (1, 1, states * d)
    if embeds:
        shapes["embed_tokens.weight"] = (layer["vocab_size"], d)
    made = {name: torch.randn(shape, generator=generator) * 0.3 + (len(shape) == 1) for name, shape in shapes.items()}
    if known < layer["vocab_size"]:
        words = torch.randperm(layer["vocab_size"], generator=generator)[:known].sort().values
        made["d2t"] = words - torch.arange(known)
        made["t2d"] = torch.zeros(layer["vocab_size"], dtype=torch.bool).index_fill(0, words, True)
    return made


def write(directory: Path, raw: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """A published head in a directory; its tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = weights(raw, **options)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors, directory / "model.safetensors")
    return tensors


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + LAYER["rms_norm_eps"]) * weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """x [n, heads, dim] rotated, the halves of a head as pairs."""
    half = x.shape[-1] // 2
    angle = positions[:, None].to(x.dtype) * LAYER["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def states(target: Decoder, tokens: Sequence[int], reads: Sequence[int] = READS) -> Tensor:
    """The target's output after some layers at each token, side by side [n, W]."""
    with torch.inference_mode():
        x = target.embedded(torch.tensor([list(tokens)]), torch.arange(len(tokens))[None])
        return torch.cat([target.train_layers(x, 0, layer)[0] for layer in reads], -1)


@torch.no_grad()
def says(
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    target: Decoder,
    tokens: Sequence[int],
    drafts: Sequence[int] = (),
    masks: int = 0,
) -> Tensor:
    """Logits [V] of the head after tokens and a path of drafts below them; -inf where it does not know a token.

    Row i has the embedding of token i + 1 and the fused states at token i; a draft's row its embedding, and what came
    out of the layers at the row before. Each row sees itself and those before it. So many `masks` follow the tokens in
    a pass of P-EAGLE.
    """
    layer = raw.get("transformer_layer_config", raw)
    kind = target.dtype
    w = {name.replace("midlayer.", "layers.0."): part for name, part in tensors.items()}
    w = {name: part.to(kind) if part.is_floating_point() else part for name, part in w.items()}
    table = w.get("embed_tokens.weight", target.embed.weight)
    own = raw if raw.get("eagle_aux_hidden_state_layer_ids") else raw.get("eagle_config", {})
    reads = own.get("eagle_aux_hidden_state_layer_ids", READS)
    given = states(target, tokens, reads)[:-1]
    if masks:
        given = torch.cat((given, w["mask_hidden"][0].expand(masks, -1)))
    if raw.get("norm_before_fc"):
        given = norm(given, w["input_norm.weight"])
    if raw.get("fc_norm"):
        parts = given.chunk(len(reads), -1)
        given = torch.cat([norm(part, w[f"fc_norm.{n}.weight"]) for n, part in enumerate(parts)], -1)
    rows, text = given @ w["fc.weight"].T, [*tokens[1:], *[raw.get("mask_token_id")] * masks]
    heads, kv, dim = (layer[x] for x in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    for draft in (*drafts, None):
        x, n = rows, len(rows)
        for i in range(layer["num_hidden_layers"]):
            part = {
                name.removeprefix(f"layers.{i}."): one for name, one in w.items() if name.startswith(f"layers.{i}.")
            }
            if i == 0:
                if raw.get("norm_before_residual"):
                    x = seen = norm(x, part["hidden_norm.weight"])
                else:
                    seen = norm(x, part["hidden_norm.weight"])
                seen = torch.cat((norm(table[torch.tensor(text)], part["input_layernorm.weight"]), seen), -1)
            else:
                seen = norm(x, part["input_layernorm.weight"])
            q, k, v = ((seen @ part[f"self_attn.{x}_proj.weight"].T).view(n, -1, dim) for x in "qkv")
            places = torch.arange(n)
            q, k = turned(q, places), turned(k, places)
            k, v = (one.repeat_interleave(heads // kv, 1) for one in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
            scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
            x = (
                x
                + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, -1) @ part["self_attn.o_proj.weight"].T
            )
            seen = norm(x, part["post_attention_layernorm.weight"])
            gate, up = (seen @ part[f"mlp.{x}_proj.weight"].T for x in ("gate", "up"))
            x = x + (torch.nn.functional.silu(gate) * up) @ part["mlp.down_proj.weight"].T
        if draft is not None:
            state = norm(x[-1:], w["norm.weight"]) if raw.get("norm_output") else x[-1:]
            rows, text = torch.cat((rows, state)), [*text, draft]
    logits = norm(x[-1], w["norm.weight"]) @ w["lm_head.weight"].T
    if "d2t" not in w:
        return logits
    whole = logits.new_full((layer["vocab_size"],), -torch.inf)
    whole[torch.arange(len(logits)) + w["d2t"]] = logits
    return whole
