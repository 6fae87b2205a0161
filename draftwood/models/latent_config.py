"""The knobs of latent attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1): keys and values come from a small vector.

    Its latent [kv_rank] is normalised and expanded to the heads' keys, but for the components that are rotated, which
    all heads share, and values [value_dim]. Queries come from a latent [q_rank] of their own, or from the rows.
    """

    kv_rank: int
    value_dim: int
    q_rank: int | None = None
    eps: float = 1e-6  # of the norms of latents
