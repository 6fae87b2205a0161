"""DFlash heads as they are published, with random weights, and what they say, in plain PyTorch from the format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from eagle_heads import LAYER, READS, norm, states, turned
from safetensors.torch import save_file
from small_decoder import VOCAB
from torch import Tensor

from draftwood.models.decoder import Decoder

BLOCK, MASK = 5, 7
QWEN_LAYER = {**LAYER, "model_type": "qwen3", "num_hidden_layers": 2}
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "use_sliding_window": True,
}


def config(authors: bool = False, layer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """config.json of `speculators`, or of DFlash's authors."""
    inner = {**QWEN_LAYER, **(layer or {})}
    if authors:
        own = {"target_layer_ids": [n - 1 for n in READS], "mask_token_id": MASK, **more.pop("dflash_config", {})}
        return {**inner, "architectures": ["DFlashDraftModel"], "block_size": BLOCK, "dflash_config": own, **more}
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "draft_vocab_size": VOCAB,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": READS,
        "mask_token_id": MASK,
        "transformer_layer_config": inner,
        **more,
    }


def weights(raw: dict[str, Any], seed: int = 5) -> dict[str, Tensor]:
    """Random tensors by their published names."""
    generator = torch.Generator().manual_seed(seed)
    layer = raw.get("transformer_layer_config", raw)
    d, inner, dim = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    q, kv = layer["num_attention_heads"] * dim, layer["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(READS) * d),
        "norm.weight": (d,),
        "hidden_norm.weight": (d,),
    }
    for i in range(layer["num_hidden_layers"]):
        name = f"layers.{i}"
        shapes |= {f"{name}.self_attn.{x}_proj.weight": (size, d) for x, size in (("q", q), ("k", kv), ("v", kv))}
        shapes |= {f"{name}.self_attn.{x}_norm.weight": (dim,) for x in "qk"}
        shapes |= {f"{name}.self_attn.o_proj.weight": (d, q), f"{name}.mlp.down_proj.weight": (d, inner)}
        shapes |= {f"{name}.mlp.{x}_proj.weight": (inner, d) for x in ("gate", "up")}
        shapes |= {f"{name}.{x}_layernorm.weight": (d,) for x in ("input", "post_attention")}
    known = raw.get("draft_vocab_size", VOCAB)
    if known < VOCAB:
        shapes["lm_head.weight"] = (known, d)
    if rank := raw.get("markov_rank"):
        shapes |= {"markov_head.markov_w1.weight": (VOCAB, rank), "markov_head.markov_w2.weight": (known, rank)}
        shapes |= {"confidence_head.proj.weight": (1, d + rank), "confidence_head.proj.bias": (1,)}
        if raw.get("markov_head_type") == "gated":
            shapes |= {"markov_head.gate_proj.weight": (rank, d + rank), "markov_head.gate_proj.bias": (rank,)}
    made = {name: torch.randn(shape, generator=generator) * 0.3 + (len(shape) == 1) for name, shape in shapes.items()}
    if known < VOCAB:
        words = torch.randperm(VOCAB, generator=generator)[:known].sort().values
        made["d2t"] = words - torch.arange(known)
        made["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, words, True)
    return made


def write(directory: Path, raw: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """A published head in a directory; its tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = weights(raw, **options)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors, directory / "model.safetensors")
    return tensors


def seen(raw: dict[str, Any], slides: bool, context: int) -> Tensor:
    """Which of `context` tokens, and behind them of the block's own rows, each row sees [block, context + block]."""
    layer, size = raw.get("transformer_layer_config", raw), raw["block_size"]
    rows, columns = torch.arange(size)[:, None], torch.arange(-context, size)[None]  # places from the anchor
    visible = torch.ones(size, context + size, dtype=torch.bool)
    if not slides:
        return visible
    window = layer["sliding_window"]
    if "speculators_model_type" in raw:
        inside = columns >= -window
        return inside if raw.get("sliding_window_non_causal") else inside & (columns <= rows)
    inside = rows - columns < window
    return inside & (columns - rows < window) if raw.get("is_causal") is False else inside & (columns <= rows)


@torch.no_grad()
def says(
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    target: Decoder,
    tokens: Sequence[int],
    drafts: Sequence[int] = (),
) -> Tensor:
    """Logits [drafts, V] of the block behind the last of some tokens; -inf where it does not know a token.

    Keys and values of context come from the fused states of the target at all tokens but the last; the block's rows are
    the embeddings of the last and of masks. DSpark adds what the token before a place says: the last, then `drafts`.
    """
    layer, size = raw.get("transformer_layer_config", raw), raw["block_size"]
    w = {name: part.to(target.dtype) if part.is_floating_point() else part for name, part in tensors.items()}
    heads, kv, dim = (layer[x] for x in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    n = len(tokens) - 1
    context = norm(states(target, tokens)[:-1] @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = target.embed(torch.tensor([tokens[-1], *[MASK] * (size - 1)]))
    before, here = torch.arange(n), torch.arange(n, n + size)
    types = layer.get("layer_types") or ["full_attention"] * layer["num_hidden_layers"]
    for i, kind in enumerate(types):
        part = {name.removeprefix(f"layers.{i}."): one for name, one in w.items() if name.startswith(f"layers.{i}.")}
        rows = norm(x, part["input_layernorm.weight"])

        def heads_of(x: Tensor, name: str, places: Tensor, part: dict[str, Tensor] = part) -> Tensor:
            made = (x @ part[f"self_attn.{name}_proj.weight"].T).view(len(x), -1, dim)
            return made if name == "v" else turned(norm(made, part[f"self_attn.{name}_norm.weight"]), places)

        q = heads_of(rows, "q", here)
        k, v = (torch.cat((heads_of(context, name, before), heads_of(rows, name, here))) for name in "kv")
        k, v = (one.repeat_interleave(heads // kv, 1) for one in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        scores = scores.masked_fill(~seen(raw, kind == "sliding_attention", n), -torch.inf)
        made = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(size, -1)
        x = x + made @ part["self_attn.o_proj.weight"].T
        rows = norm(x, part["post_attention_layernorm.weight"])
        gate, up = (rows @ part[f"mlp.{x}_proj.weight"].T for x in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ part["mlp.down_proj.weight"].T
    from_anchor = raw.get("sample_from_anchor", raw.get("speculators_model_type") == "dspark")
    x = norm(x, w["norm.weight"])[0 if from_anchor else 1 :]
    more: Any = 0
    if raw.get("markov_rank"):
        before = w["markov_head.markov_w1.weight"][torch.tensor([tokens[-1], *drafts])]
        if "markov_head.gate_proj.weight" in w:
            made = torch.cat((x, before), -1) @ w["markov_head.gate_proj.weight"].T + w["markov_head.gate_proj.bias"]
            before = made.sigmoid() * before
        more = before @ w["markov_head.markov_w2.weight"].T
    if "d2t" not in w:
        return x @ target.head.weight.T + more
    whole = x.new_full((len(x), VOCAB), -torch.inf)
    whole[:, torch.arange(len(w["d2t"])) + w["d2t"]] = x @ w["lm_head.weight"].T + more
    return whole
