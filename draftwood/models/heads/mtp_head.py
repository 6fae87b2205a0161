"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, §2.2): a layer that checkpoints come with drafts.

A product makes one row of the embedding of a token and the state of the token before it, both normalised; a layer of
the target's kind, a norm and the target's head follow. The state is the target's after its final norm; at a draft it is
what the head made of the token before, after its own norm.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.functions import NORMS
from draftwood.models.heads.state_head import TokenHead
from draftwood.models.modules import Linear


class MtpHead(TokenHead):
    """The layer of multi-token prediction of a checkpoint, as a `StateReader`; embeddings and head are the target's."""

    head_kind = "mtp"

    def __init__(self, target: Decoder) -> None:
        width = target.config.hidden_size
        super().__init__(shape(target), (target.n_layers,), width, target.vocab_size, target.embed)
        self.carried = self.n_layers
        self.fc = Linear(2 * width, width, bias=False)
        self.embed_norm = nn.Parameter(torch.ones(width))
        self.state_norm = nn.Parameter(torch.ones(width))
        self.decoder.head = target.head

    def inputs(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor | None]:
        config = self.decoder.config
        norm, given = NORMS[config.norm], given.to(self.computed)
        parts = ((embedded, self.embed_norm), (given, self.state_norm))
        made = [norm(x, weight.to(x.dtype), None, config.rms_norm_eps) for x, weight in parts]
        rows: Tensor = self.fc(torch.cat(made, -1))
        return rows, None


def shape(target: Decoder) -> DecoderConfig:
    """The config of the head's one layer: that of the target's last layer with attention.

    Raises ModelError where that layer cannot stand alone.
    """
    config = target.config
    last = max((n for n in range(target.n_layers) if config.layer(n).attends), default=None)
    layer = None if last is None else config.layer(last)
    if layer is None or layer.kv_layer is not None or layer.recurrent is not None or not layer.norm.startswith("rms"):
        raise ModelError(
            "the checkpoint's layer of multi-token prediction is of a kind that is not supported; use another draft"
        )
    return replace(layer, num_hidden_layers=1, layers=(), tie_word_embeddings=False)


def sketch(target: Decoder) -> MtpHead:
    """A head of a target without weights, but for the target's."""
    with torch.device("meta"):
        return MtpHead(target)
