"""Heads that draft from states of their target; token by token they read their own at drafts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.program import Program
from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.modules import Embedding, bytes_of
from draftwood.models.wrapper import DecoderWrapper

ABSENT_LOGIT = -1e30  # of tokens that a head does not know: finite, for grammars that allow no other token


@runtime_checkable
class StateReader(CausalModel, Protocol):
    """A draft model that reads a state at the token before each row's: the target's there, or its own.

    `Batch.hidden` [N, W] holds for each row either the target's output after the layers `reads`, side by side, or the
    model's own state (its output after layer `carried`) and NaN in the remaining columns. Rows at position 0, which
    have no token before, hold zeros, and no other row sees them.
    """

    reads: tuple[int, ...]
    carried: int


class StateHead(DecoderWrapper, nn.Module):
    """A decoder's layers, norm and head over states of a target, and a product before them.

    Embeddings are its own or the target's (`outer`). Its layers number one more than the decoder's: the state after the
    last but one is what goes into the final norm. Its vocabulary are the target's tokens `words`; None: all of them.
    """

    head_kind: ClassVar[str]  # of files that hold such heads
    before: ClassVar[int] = 1  # how many places before a token lies the state that is read at it
    fc: Any  # the product before the layers

    def __init__(
        self,
        config: DecoderConfig,
        reads: Sequence[int],
        width: int,
        vocabulary: int,
        outer: nn.Module | None,
        target: str = "",
        lent: Sequence[int] = (),
    ) -> None:
        """`config` describes the layers and the head; its vocabulary may be smaller than the target's `vocabulary`.

        The target is read after the layers `reads`, each state `width` wide; `target` is its fingerprint. `lent`: see
        `DecoderWeights`.
        """
        super().__init__()
        self.reads, self.vocab_size, self.vocabulary, self.target = tuple(reads), vocabulary, vocabulary, target
        self.n_layers, self.context = config.num_hidden_layers + 1, config.max_position_embeddings
        self.states, self.width = len(self.reads) * width, config.hidden_size
        self.decoder = Decoder(config, lent=lent)
        self.decoder.embed = Embedding(0, config.hidden_size).requires_grad_(False)
        self.embed = Embedding(vocabulary, config.hidden_size) if outer is None else None
        self._outer = [] if outer is None else [outer]  # in a list: it is borrowed, and not one of the parameters
        self._program: Program | None = None  # made when it is first needed
        self.words: Tensor | None = None  # [V_head] the target's tokens that it knows

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads; fc, which some rows do not need, counts too."""
        return super().weight_bytes + bytes_of(self.fc)

    def through(self, batch: Batch, cache: Cache, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """Logits [n, V] of the wanted rows of x [N, D], the layers' input, with what their first mixer reads beside.

        Wanted states before and after the final norm are put in `batch.kept`.
        With `batch.stop` the output [N, D] of the layers before it.
        """
        decoder, part = self.decoder, batch.stop is not None
        if decoder.native:
            inner = replace(batch, hidden=x)
            logits = self.program.forward(inner, cache, beside)
            batch.tops = inner.tops
            return logits
        metadata = decoder.attention_metadata(batch, cache)
        for meta in metadata:
            meta.beside = None if beside is None else beside[None]
        stores = decoder.kv_stores(batch, cache)
        stop = decoder.n_layers if batch.stop is None else batch.stop
        rows = decoder.run(x[None], metadata, stores, batch.start, stop)[0]
        if part:
            return rows
        own = rows[batch.wanted]
        if decoder.n_layers in batch.states:
            batch.kept[decoder.n_layers] = own
        if self.n_layers in batch.states:
            batch.kept[self.n_layers] = decoder.normed(own)
        return self.spread(decoder.logits(own)) if batch.head else own.new_empty(len(own), 0)

    @property
    def program(self) -> Program:
        """The native forward pass, whose logits are those of all of the target's tokens."""
        if self._program is None:
            self._program = Program(self.decoder, empty=1)
            if self.words is not None:
                self._program.name_tokens(self.words, self.vocabulary, ABSENT_LOGIT)
        return self._program

    @property
    def first(self) -> Any:
        """The first layer."""
        return self.decoder.layers[0]

    @property
    def computed(self) -> torch.dtype:
        """The dtype of rows between layers: native kernels read and write float32."""
        return torch.float32 if self.decoder.native else self.dtype

    def embedded(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of tokens."""
        table = self._outer[0] if self.embed is None else self.embed
        embeddings: Tensor = table(tokens)
        return embeddings.to(self.computed)

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [n, V_head] of the head's vocabulary -> [n, V] of the target's; ABSENT_LOGIT for those it lacks."""
        if self.words is None:
            return logits
        out = logits.new_full((len(logits), self.vocabulary), ABSENT_LOGIT)
        out[:, self.words] = logits
        return out


class TokenHead(StateHead):
    """A `StateReader`: a head that drafts token by token."""

    carried: int

    @abstractmethod
    def inputs(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows of the layers, and what their first mixer reads beside, from embeddings and `Batch.hidden`."""

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits [n, V] of the wanted rows; see `through`."""
        if batch.hidden is None:
            raise ModelError(
                "a head reads hidden states of its target; it cannot run alone as a draft model: use method eagle or "
                "mtp, or drafter=eagle or drafter=mtp with beams and mcsd"
            )
        if (program := self._program) is None and self.decoder.native:
            program = self.program
        if program is not None and program.embeds_beside:  # embeddings and states are its inputs: nothing to prepare
            return program.forward(batch, cache)
        return self.through(batch, cache, *self.entry(batch))

    def entry(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The `inputs` of a batch."""
        assert batch.hidden is not None
        return self.inputs(self.embedded(batch.tokens), batch.hidden)
