"""Gemma 4's assistants: a small model whose layers read the target's keys and values, and have none of their own.

A product makes one row of the target's embedding of a token and the state of the token before it: the target's after
its final norm, or at a draft what another product made of the assistant's own. All drafts of a round lie at the place
of its first token, and see what the target has computed before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.heads.state_head import ABSENT_LOGIT, TokenHead
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.modules import Embedding, Linear, bytes_of

SIZES = ("head_dim", "num_key_value_heads")  # of a layer that must be those of the target's


class AssistantHead(TokenHead):
    """An assistant as a `StateReader` and a `SubModel`; embeddings are the target's, the head is its own.

    With `clusters` (their number, and how many are computed) the head has its tokens in clusters of equal size: those
    whose centroids score highest are computed, and other tokens get ABSENT_LOGIT.
    """

    head_kind = "mtp"  # the method that it drafts by
    full_model: Decoder
    ordering: Tensor  # [clusters, tokens of one] of the tokens

    def __init__(self, config: DecoderConfig, target: Decoder, clusters: tuple[int, int] | None = None) -> None:
        width, vocabulary = target.config.hidden_size, target.vocab_size
        super().__init__(config, (target.n_layers,), width, vocabulary, target.embed, lent=target.first_planes)
        self.__dict__["full_model"] = target  # not registered: it is borrowed
        self.carried = config.num_hidden_layers
        self.context = min(self.context, target.context)
        self.fc = Linear(2 * width, config.hidden_size, bias=False)
        self.post = Linear(config.hidden_size, width, bias=False)
        self.chosen = 0 if clusters is None else clusters[1]
        if clusters is not None:
            self.centroids = Linear(config.hidden_size, clusters[0], bias=False)
            self.table: Any = Embedding(vocabulary, config.hidden_size)  # or a NativeEmbedding
            self.decoder.head = nn.Identity()  # the table takes its place

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward of one row reads."""
        read = super().weight_bytes + bytes_of(self.post)
        if not self.chosen:
            return read
        table = bytes_of(self.table)
        own_head = table if self.decoder.native else 0  # which counts as the decoder's
        return read - own_head + bytes_of(self.centroids) + table * self.chosen // len(self.ordering)

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        return self.full_model.new_cache(slots, budget)

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.full_model.embedded(tokens, tokens).to(self.computed)  # the target has no learned positions

    def inputs(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor | None]:
        rows: Tensor = self.fc(torch.cat((embedded, given.to(self.computed)), -1))
        return rows, None

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        whole = replace(batch, states=(self.n_layers,), head=batch.head and not self.chosen)
        logits = super().forward(whole, cache)
        state = batch.kept[self.n_layers]
        batch.kept[self.carried] = self.post(state)
        return self._of_clusters(state) if batch.head and self.chosen else logits

    def _of_clusters(self, states: Tensor) -> Tensor:
        """Logits [n, V] after normalised states [n, D]; each row's product is its own, so that its bits are."""
        best = self.centroids(states).topk(self.chosen, -1).indices
        dtype = torch.promote_types(states.dtype, torch.float32)
        out = torch.full((len(states), self.vocab_size), ABSENT_LOGIT, device=states.device, dtype=dtype)
        for row, state, clusters in zip(out, states, best, strict=True):
            tokens = self.ordering[clusters.sort().values].flatten()
            row[tokens] = (self.table(tokens).to(state.dtype) @ state).to(dtype)
        return out


def shape(config: DecoderConfig, target: Decoder) -> DecoderConfig:
    """The config of an assistant whose layers read the target's last keys and values of their kind.

    `config` is as its config.json has it. Raises ModelError where the target has none of that kind and size.

    As in transformers, the newest tokens that a window sees are `window` + 1, of which none is the row's own.
    """
    native = target.native
    each = [config.layer(number) for number in range(config.num_hidden_layers)]
    return replace(
        config,
        tie_word_embeddings=False,
        logit_softcap=None,
        layers=per_layer(
            # a row lies behind all that it sees; native kernels count what it sees, PyTorch's masks go by positions
            window=[c.window and c.window + (1 if native else 2) for c in each],
            kv_layer=[lender(c, target) for c in each],
            **{name: [getattr(c, name) for c in each] for name in ("rope_theta", "rope_scaling", *SIZES)},
            intermediate_size=[c.intermediate_size for c in each],
        ),
    )


def lender(own: DecoderConfig, target: Decoder) -> int:
    """The number of the target's layer whose keys and values a layer of an assistant reads."""
    kind = "a window" if own.window else "no window"
    each = [target.config.layer(n) for n in range(target.n_layers)]
    alike = [n for n, c in enumerate(each) if c.attends and bool(c.window) == bool(own.window)]
    if not alike:
        raise ModelError(
            f"the assistant has layers with {kind}, but its target has none; give the assistant of this target"
        )
    number = alike[-1]
    sizes, wanted = ([getattr(c, name) for name in SIZES] for c in (each[number], own))
    if sizes != wanted:
        raise ModelError(
            f"the assistant reads {wanted[1]} heads of {wanted[0]} components in layers with {kind}, but its target "
            f"has {sizes[1]} of {sizes[0]}; give the assistant of this target"
        )
    borrowed = each[number].kv_layer
    return number if borrowed is None else borrowed
