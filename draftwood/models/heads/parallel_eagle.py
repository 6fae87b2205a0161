"""P-EAGLE (parallel EAGLE): an EAGLE-3 head that drafts several tokens in one pass.

Behind the row of the last token come rows of tokens that are not known yet: the embedding of a mask, and a learned
vector in place of the target's states. Each sees the rows before it, and has a distribution of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads.block_head import answers, blocks_of, repeated, wanted_rows
from draftwood.models.heads.eagle_head import EAGLE_3, EagleHead, EagleNorms


class ParallelEagleHead(EagleHead):
    """An `EagleHead` whose answer at a row is a block: logits of `block` tokens behind the row's."""

    def __init__(
        self,
        config: DecoderConfig,
        reads: Sequence[int],
        width: int,
        vocabulary: int,
        outer: nn.Module | None,
        norms: EagleNorms = EAGLE_3,
        target: str = "",
        block: int = 8,
    ) -> None:
        """As of an `EagleHead`; a block has `block` rows, the first that of a token."""
        super().__init__(config, reads, width, vocabulary, outer, norms, target)
        self.block = self.count = block
        self.vocab_size = block * vocabulary
        self.mask = nn.Parameter(torch.zeros(config.hidden_size))  # the embedding of a token that is not known
        self.mask_states = nn.Parameter(torch.zeros(self.states))  # in place of the target's states before it

    def tell_states_apart(self) -> None:
        """Nothing: all that it reads is the target's."""

    def padded_rows(self, count: int) -> int:
        """Rows of the batch are not those of products, which are padded where they are made."""
        return count

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits [n, count * V] of the blocks behind the wanted rows; states, [n, count * D], as of any head."""
        if batch.hidden is None:
            raise ModelError("a P-EAGLE head reads hidden states of its target; use it with method eagle")
        made, source, ahead = self._expanded(batch)
        index, known = (torch.tensor(each, device=self.device) for each in (source, [not k for k in ahead]))
        embedded = torch.where(known[:, None], self.embedded(batch.tokens[index]), self.mask.to(self.computed))
        given = torch.where(known[:, None], batch.hidden[index], self.mask_states.to(batch.hidden.dtype))
        out = self.through(made, cache, *self.inputs(repeated(embedded, len(made)), repeated(given, len(made))))
        for layer, states in made.kept.items():
            batch.kept[layer] = answers(states, self.count, batch)
        return answers(out, self.count, batch)

    def _expanded(self, batch: Batch) -> tuple[Batch, list[int], list[int]]:
        """A batch with all rows of blocks; of each the row of `batch` that it is or lies behind, and how far."""
        source: list[int] = []
        ahead: list[int] = []
        segments: list[Segment] = []
        for segment, blocks in zip(batch.segments, blocks_of(batch, self.block), strict=True):
            first, behind = sum(map(len, batch.segments[: len(segments)])), {one.row: one.slots[1:] for one in blocks}
            slots: list[int] = []
            seen: list[int] = []
            paths: list[Sequence[int]] = []
            for row, slot in enumerate(segment.slots, first):
                more, path = behind.get(row, ()), segment.paths[row - first]
                for k in range(1 + len(more)):
                    slots.append((slot, *more)[k])
                    seen.append(segment.seen[row - first])
                    paths.append(path[: len(path) - len(more) + k])
                    source.append(row)
                    ahead.append(k)
            segments.append(Segment(segment.extent, slots, segment.trunk, seen, paths))
        anchors = set(wanted_rows(batch))
        made = Batch.of(
            self.decoder,
            [batch.numbers[row] for row in source],
            [batch.numbers[len(batch) + row] + k for row, k in zip(source, ahead, strict=True)],
            segments,
            [place for place, row in enumerate(source) if row in anchors],
            head=batch.head,
            states=batch.states,
        )
        return made, source, ahead
