"""The weights of a decoder: its layers, tables and norms, and which of them a layer's positions and window need."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwood.errors import ModelError
from draftwood.models.block import Block, norm_parameters
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.modules import Embedding, Linear, bytes_of
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.rotary import Rotary


class DecoderWeights(nn.Module):
    """The modules of a decoder. With `parallel` they are one process's part of the model."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.local = parallel.local(config)  # the shape of what is held here
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
        self.own_bits = False  # whether matrices are computed in the bits of a GGUF file
        self.home: Path | None = None  # the directory that it was loaded from
        self.draft_quantize: str | None = None  # how heads that draft for it are held, see matrix.held_alike
        rows = (config.vocab_size, self.context + (config.position_offset or 0)) if parallel.drives else (0, 0)
        self.embed: Any = Embedding(rows[0], config.hidden_size)  # or a NativeEmbedding
        self.position = None if config.position_offset is None else Embedding(rows[1], config.hidden_size)
        self.layers = nn.ModuleList(Block(self.local, parallel) for _ in range(config.num_hidden_layers))
        self.norm, self.norm_bias = norm_parameters(config, config.hidden_size)
        self.head: Any = Linear(config.hidden_size, self.local.vocab_size, bias=False)
        if config.tie_word_embeddings and parallel.size == 1:
            self.head.weight = self.embed.weight
        windows = config.windows[: self.n_layers] or (0,) * self.n_layers
        self.windows = sorted(set(windows))  # layers of one window are one kind
        self.kinds = [self.windows.index(window) for window in windows]  # of each layer: the index of its window
        c, self.rotary, self.local_rotary = config, None, None
        dim = c.rotary_dim or c.head_dim
        if c.position_offset is None:
            self.rotary = Rotary(c.rope_theta, dim, self.context, c.rope_scaling)
            if c.local_rope_theta is not None:
                self.local_rotary = Rotary(c.local_rope_theta, dim, self.context)

    def parts(self) -> list[list[tuple[Block, bool]]]:
        """The sublayers of each layer in order: (block, True for its attention and False for its MLP)."""
        return [layer.parts for layer in self.layers]  # type: ignore[misc]

    def rotary_of(self, window: int) -> Rotary | None:
        """Rotary positions of the layers with a window; None where positions are learned."""
        return self.rotary if not window or self.local_rotary is None else self.local_rotary

    def must_be_plain(self, purpose: str) -> None:
        """Raise ModelError where matrices are packed, quantised or in part, which cannot be undone."""
        if self.parallel.size > 1:
            raise ModelError(f"a model that is split among processes cannot be {purpose}; leave out tensor_parallel")
        if not all(
            isinstance(module, nn.Linear)
            for module in (self.head, *(block.qkv for parts in self.parts() for block, _ in parts))
        ):
            raise ModelError(f"a model whose matrices are packed cannot be {purpose}; load it with packed=False")

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def kinds_of_weights(self) -> list[str]:
        """The types that the matrices of the layers and the head are stored in, the one with the most bytes first."""
        sizes: Counter[str] = Counter()
        for module in self.modules():
            if getattr(module, "out_features", None) is not None:
                kind = getattr(module, "kind", None) or str(self.dtype).removeprefix("torch.")
                sizes[kind] += bytes_of(module)
        return list(dict.fromkeys(kind for kinds, _ in sizes.most_common() for kind in kinds.split(", ")))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads for any number of rows: all but the tables of embeddings."""
        own = sum(part.nbytes for part in self.parameters(recurse=False))
        apart = {self, self.embed, self.position, *self.embed.children()} - {self.head}
        return own + sum(bytes_of(module, recurse=False) for module in self.modules() if module not in apart)
