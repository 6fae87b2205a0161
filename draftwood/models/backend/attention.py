"""Attention of query rows to cached keys and values: `ordered` on a CPU, PyTorch's fused kernel elsewhere.

`ordered` gives a row the same bits whatever other rows the forward has, so that a token that was verified in a batch of
drafts has the logits of plain decoding.

Two properties of oneDNN and MKL make this possible (found by measurement, tested by tests/models/test_bitwise.py):
- a matrix product gives each row the same bits for every number of rows from `MIN_BITWISE_ROWS` on;
- sums over slots run in slot order, and masked slots behind the last add exact zeros, as long as the span is a multiple
  of `SPAN_MULTIPLE` and no kernel splits it into blocks that depend on its length: hence `SUM_BLOCK`.
PyTorch's fused kernel has neither property, and takes several times as long for a single row in bfloat16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.models.flat import PLAIN_SCORES, Scores

MIN_BITWISE_ROWS = 4  # products of fewer rows use another kernel in float32
SUM_BLOCK = {torch.float32: 192, torch.bfloat16: 512}  # number of slots that a kernel is known to sum in slot order
ROWS_AT_A_TIME = 16  # small products are not split among threads, and few scores are in memory at once


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask [B, ..., Q, S] to add to scores: 0 where `visible` [B, ..., Q, S] is True, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def folded(bias: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Repeat a mask [B, Q, S] of `additive` for the heads that share keys, as `ordered` wants it.

    A mask [1, 1, S] stays; else the result is [1 or B * kv_heads, Q * heads // kv_heads, S]. So it is of biases
    [B, heads, Q, S] of each head.
    """
    if bias.dim() == 4:
        b, _, n, span = bias.shape
        return bias.view(b, kv_heads, -1, n, span).transpose(2, 3).reshape(b * kv_heads, -1, span)
    b, n, span = bias.shape
    if n == 1 and b == 1:
        return bias
    group = heads // kv_heads
    if b == 1:
        return bias[:, :, None].expand(b, n, group, span).reshape(1, n * group, span)
    return bias[:, None, :, None].expand(b, kv_heads, n, group, span).reshape(b * kv_heads, n * group, span)


def ordered(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scores: Scores = PLAIN_SCORES) -> Tensor:
    """Attention with the same bits for a row whatever the other rows are, on a CPU.

    q [B, Q, heads, D], k and v [B, kv_heads, S, D], bias from `folded` -> [B, Q, heads * D]. Values may have another D,
    which the result then has. Heads that share keys are rows of one product, so that no key is copied.
    """
    n, block = q.shape[1], SUM_BLOCK.get(q.dtype)
    if n <= ROWS_AT_A_TIME:
        return products(q, k, v, bias, scores, block)
    rows, parts = bias.shape[1] // n, []  # 0 rows: one mask for all
    for first in range(0, n, ROWS_AT_A_TIME):
        first = max(0, min(first, n - MIN_BITWISE_ROWS))  # the last product repeats rows where few are left
        part = bias[:, first * rows : (first + ROWS_AT_A_TIME) * rows] if rows else bias
        parts.append(products(q[:, first : first + ROWS_AT_A_TIME], k, v, part, scores, block))
    parts[-1] = parts[-1][:, sum(part.shape[1] for part in parts) - n :]
    return torch.cat(parts, 1)


def products(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scores: Scores = PLAIN_SCORES, block: int | None = None
) -> Tensor:
    """`ordered` for all rows at once; sums over slots are made in blocks of `block` slots, or all at once (None)."""
    b, n, _, width = q.shape
    kv_heads, span = k.shape[1], k.shape[2]
    folds = b * kv_heads
    grouped = (
        q.view(b, n, kv_heads, -1, width).transpose(1, 2).reshape(folds, -1, width)
    )  # [B * kv_heads, Q * group, D]
    k, v = k.reshape(folds, span, width), v.reshape(folds, span, -1)
    if folds == 1:  # a single product would be shared out among threads by rows, which changes its kernel
        grouped, k, v = grouped.expand(2, -1, -1), k.expand(2, -1, -1), v.expand(2, -1, -1)
    scale, cap = scores.factor(width), scores.cap
    if cap is None:
        made = torch.baddbmm(bias, grouped, k.transpose(1, 2), alpha=scale)
    else:
        made = torch.bmm(grouped, k.transpose(1, 2)).mul_(scale / cap).tanh_().mul_(cap).add_(bias)
    if scores.sinks is None:
        weights = torch.softmax(made, -1)
    else:
        sinks = scores.sinks.view(1, kv_heads, 1, -1).expand(b, -1, n, -1).reshape(folds, -1, 1)
        weights = torch.softmax(torch.cat((made, sinks.expand(len(made), -1, -1)), -1), -1)[..., :-1]
    if block is None or span <= block:
        out = torch.bmm(weights, v)
    else:
        out = torch.bmm(weights[:, :, :block], v[:, :block])
        for start in range(block, span, block):
            out = torch.baddbmm(out, weights[:, :, start : start + block], v[:, start : start + block])
    return out[:folds].view(b, kv_heads, n, -1, v.shape[-1]).transpose(1, 2).reshape(b, n, -1)


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scores: Scores = PLAIN_SCORES) -> Tensor:
    """The same as `ordered`, by PyTorch's kernel where it can, and differentiable; bits depend on the batch.

    bias [B or 1, (1 or heads,) Q or 1, S] is from `additive`; None: a causal mask.
    """
    b, n, heads, width = q.shape
    kv_heads = k.shape[1]
    if bias is not None and bias.dim() == 3:
        bias = bias[:, None]
    if scores.cap is None and scores.sinks is None:
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k,
            v,
            attn_mask=bias,
            is_causal=bias is None,
            scale=scores.scale,
            enable_gqa=heads != kv_heads,
        )
        return out.transpose(1, 2).reshape(b, n, -1)
    if bias is None:
        bias = additive(torch.ones(1, 1, n, n, dtype=torch.bool, device=q.device).tril(), q.dtype)
    grouped = q.view(b, n, kv_heads, -1, width).permute(0, 2, 3, 1, 4)  # [B, kv_heads, group, Q, D]
    made = grouped @ k[:, :, None].transpose(-1, -2) * scores.factor(width)
    if scores.cap is not None:
        made = scores.cap * torch.tanh(made / scores.cap)
    made = made + (bias[:, None] if bias.shape[1] == 1 else bias.view(b, kv_heads, -1, *bias.shape[2:]))
    if scores.sinks is not None:
        sinks = scores.sinks.to(made.dtype).view(1, kv_heads, -1, 1, 1).expand(b, -1, -1, n, 1)
        made = torch.cat((made, sinks), -1)
    weights = made.softmax(-1, torch.promote_types(q.dtype, torch.float32)).to(q.dtype)[..., : k.shape[2]]
    return (weights @ v[:, :, None]).permute(0, 3, 1, 2, 4).reshape(b, n, -1)
