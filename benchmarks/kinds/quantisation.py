"""Effect of the type of weights on perplexity, the most probable token and the distribution, against float32."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import perplexity_ratio
from draftwood.corpus import DOMAINS, documents
from draftwood.errors import ConfigurationError
from draftwood.eval.intervals import ratio
from draftwood.models.base import Batch, Segment

EXACT, BASE = "float32", "bfloat16"


class Quantisation(Kind):
    """The target with each of the `types` of weights reads `documents` held-out documents of each kind.

    Behind a type may stand in which one keys and values are stored: "bfloat16, keys int8".
    """

    types: tuple[str, ...] = (EXACT, BASE, "int8", "int4")
    documents: int = 24

    def measure(self, bench: Bench) -> dict[str, Rows]:
        found: dict[str, dict[str, list[Any]]] = {}
        failures: Rows = []
        for name in bench.track(self.types, "types of weights"):
            try:
                found[name] = bench.once(["type", name], partial(self.read, bench, name))
            except ConfigurationError as error:  # int4 needs the native kernels
                failures.append({"type": name, "failure": str(error)})
        exact, base = found[EXACT], found[BASE]
        counts = list(map(len, exact["greedy"]))
        rows: Rows = []
        for name, each in found.items():
            agreed = [sum(map(int.__eq__, *both)) for both in zip(each["greedy"], exact["greedy"], strict=True)]
            rows.append(
                {
                    "type": name,
                    "tokens": sum(counts),
                    "perplexity": math.exp(sum(each["nats"]) / sum(counts)),
                    "to_bfloat16": perplexity_ratio(each["nats"], counts, base["nats"], counts),
                    "agreement": ratio(agreed, counts),
                    "kl": ratio(each["divergence"], counts),
                }
            )
        return {"quality": rows, "failures": failures}

    def read(self, bench: Bench, name: str) -> dict[str, list[Any]]:
        """Read the documents with a type of weights; quantised weights are computed in float32."""
        weights, _, keys = name.partition(", keys ")
        quantize = weights if weights.startswith("int") else None
        model = bench.engine_of(EXACT if quantize else weights, quantize, kv_dtype=keys or "auto").target
        exact = bench.engine_of(EXACT)
        assert exact.tokenizer is not None
        texts = [
            exact.tokenizer.encode(document.text)[: exact.target.context]
            for domain in DOMAINS
            for document in islice(documents(domain, "held-out", seed=1), self.documents)
        ]
        return read(model, texts, exact.target)


@torch.inference_mode()
def read(model: Any, texts: list[list[int]], exact: Any) -> dict[str, list[Any]]:
    """Perplexity of texts under a model, and how far its distributions are from those of an exact one.

    For each text the nats of its tokens behind the first, the most probable token at each of their places, and the sum
    over these of the Kullback-Leibler divergence from the exact model's distribution, in nats.
    """
    found: dict[str, list[Any]] = {"nats": [], "greedy": [], "divergence": []}
    for text in texts:
        mine, right = (logits_of(each, text)[:-1].double().log_softmax(-1) for each in (model, exact))
        found["nats"].append(float(F.nll_loss(mine, torch.tensor(text[1:]), reduction="sum")))
        found["greedy"].append(mine.argmax(-1).tolist())
        found["divergence"].append(float(F.kl_div(mine, right, reduction="sum", log_target=True)))
    return found


def logits_of(model: Any, tokens: list[int]) -> Tensor:
    """The logits [token, vocabulary] of one forward pass over a text."""
    count, cache = len(tokens), model.new_cache()
    segment = Segment.causal(cache.lend(count), 0, count)
    logits: Tensor = model(Batch.of(model, tokens, range(count), [segment], slice(None)), cache)
    return logits
