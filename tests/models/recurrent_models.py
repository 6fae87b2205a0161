"""A small model of recurrent layers alone, each a mixer between residual sums, for sessions to decode with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from draftwood.models.backend.attention import fused
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, CachedKV
from draftwood.models.layers.recurrent import RECURRENCES
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig
from draftwood.models.recurrent_fold import CachedStates
from draftwood.models.recurrent_states import RecurrentShape, RecurrentStates

WIDTH, VOCAB = 32, 50
CONFIGS = [
    RecurrentConfig(DELTA, 4, key_heads=2, key_dim=8, value_heads=4, value_dim=8),
    RecurrentConfig(SSM, 4, key_heads=2, key_dim=8, value_heads=4, value_dim=8, conv_bias=True, norm_groups=2),
    RecurrentConfig(CONV, 3),
]


class RecurrentModel(nn.Module):
    """Embeddings, delta rule, state space, short convolution, head."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.vocab_size, self.context, self.n_layers = VOCAB, 4096, len(CONFIGS)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        whole = DecoderConfig(VOCAB, WIDTH, 1, 1, 1, 1, 2, rms_norm_eps=1e-6, attends=False)
        self.layers = nn.ModuleList(RECURRENCES[one.kind](replace(whole, recurrent=one)) for one in CONFIGS)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        self.to(dtype).requires_grad_(False)
        if dtype == torch.float32:
            pack(self.layers, holder(dtype, torch.device("cpu"), None, "pytorch"))  # else bits go by the number of rows

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def padded_rows(self, count: int) -> int:
        return count

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        shapes = [RecurrentShape(i, c.inputs(WIDTH), c.state(WIDTH)) for i, c in enumerate(CONFIGS)]
        budget, dtype = budget or MemoryBudget(), self.embed.weight.dtype
        cache = Cache([(1, 1, torch.float32)], self.device, slots, budget)
        cache.states = RecurrentStates(shapes, self.n_layers, self.device, dtype, budget, cache.slot_bytes)
        return cache

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        assert isinstance(cache.states, RecurrentStates)
        plan = cache.states.plan(batch)
        x = self.embed(batch.tokens) if batch.hidden is None else batch.hidden
        stop = self.n_layers if batch.stop is None else batch.stop
        for number in range(batch.start, stop):
            x = self._through(number, x[None], CachedKV(cache, -1, x, CachedStates(cache.states, plan, number)))[0]
            if number + 1 in batch.states:
                batch.kept[number + 1] = x[batch.wanted]
        cache.states.commit(plan)
        return self._logits(x[batch.wanted]) if stop == self.n_layers else x

    def _through(self, number: int, x: Tensor, store: CachedKV | None) -> Tensor:
        out: Tensor = self.layers[number](x, AttentionMetadata(None, None, fused), store)
        return out

    def _logits(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, V], row by row."""
        return torch.stack([self.head.weight @ row for row in x]) if len(x) else x.new_empty(0, VOCAB)

    @torch.inference_mode()
    def plain(self, tokens: list[int]) -> Tensor:
        """Logits [T, V] of a text, without any cache."""
        x = self.embed(torch.tensor([tokens]))
        for number in range(self.n_layers):
            x = self._through(number, x, None)
        return self._logits(x[0])
