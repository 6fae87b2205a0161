"""draftwood on a GGUF file, for file_cell.py: texts through the public API, forwards through the decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from draftwood import __version__

CHUNK_TOKENS = 512  # of a long context, read at once


def start(threads: int) -> str:
    """Import PyTorch, above which memory is counted."""
    import torch

    torch.set_num_threads(threads)
    return __version__


class Model:
    """The file in the job's dtype."""

    def __init__(self, job: dict[str, Any]) -> None:
        from draftwood.engine.loading import load

        self.engine = load(job["file"], dtype=job["dtype"], quantize=job.get("quantize"), reuse_prefixes=False)

    def decode(self, prompt: list[int], count: int) -> list[int]:
        method = "autoregressive"
        return self.engine.generate(prompt, method, temperature=0, max_new_tokens=count, ignore_eos=True).tokens

    def forward(self, context: list[int], tokens: list[int]) -> Callable[[], object]:
        return self._forward(context, tokens, False)

    def tree(self, context: list[int], tokens: list[int]) -> Callable[[], object]:
        """The same of a binary tree behind the context, two nodes below each."""
        return self._forward(context, tokens, True)

    def _forward(self, context: list[int], tokens: list[int], tree: bool) -> Callable[[], object]:
        import torch

        from draftwood.models.base import Batch, Segment

        model: Any = self.engine.target
        cache, first = model.new_cache(), len(context)
        extent = cache.lend(first + len(tokens))

        @torch.inference_mode()
        def read(tokens: list[int], first: int, wanted: Any, tree: bool = False) -> object:
            segment, places = Segment.causal(extent, first, len(tokens)), list(range(first, first + len(tokens)))
            if tree:
                paths = branches(places)
                segment = Segment(extent, places, segment.trunk[:first], [first] * len(paths), paths)
                places = [first + len(path) - 1 for path in paths]
            return model(Batch.of(model, tokens, places, [segment], wanted), cache)

        for start in range(0, first, CHUNK_TOKENS):
            some = context[start : start + CHUNK_TOKENS]
            read(some, start, [len(some) - 1])
        return partial(read, tokens, first, slice(None), tree)

    def nats(self, text: list[int]) -> float:
        return -math.fsum(filter(None, self.engine.score(text).logprobs))


def branches(slots: list[int]) -> list[list[int]]:
    """The path to each node of a binary tree whose nodes lie in slots, layer by layer."""
    paths = [slots[:1]]
    for node in range(1, len(slots)):
        paths.append([*paths[(node - 1) // 2], slots[node]])
    return paths
