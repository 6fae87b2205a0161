"""Effect of the type of weights on perplexity, the most probable token and the distribution, against float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from draftwood.corpus import DOMAINS, documents
from draftwood.eval.intervals import perplexity_ratio, ratio
from draftwood.models import int4
from draftwood.models.backend.matrix import Int8
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.quantise import quantise
from draftwood.models.text.tokenizer import Tokenizer

TYPES = ("float32", "bfloat16", "int8", "int4", "int4, not calibrated", "int4, head too")


class Quantisation(Kind):
    """The target with each of the `types` of weights reads `documents` held-out documents of each kind."""

    types: tuple[str, ...] = TYPES
    documents: int = 24
    calibration: int = int4.CALIBRATION_ROWS  # rows of text

    def measure(self, bench: Bench) -> dict[str, Rows]:
        home = bench.pair.target
        words = Tokenizer.load(home)
        texts = [
            words.encode(document.text)
            for domain in DOMAINS
            for document in islice(documents(domain, "held-out", seed=1), self.documents)
        ]
        matrices = cache(partial(self.matrices, home, words))
        exact_model = cache(partial(checkpoint.load, home, "float32"))
        found = {
            name: bench.once(
                ["type", name],
                lambda: read(self.model(home, name, matrices), texts, exact_model()),  # noqa: B023
            )
            for name in bench.track(self.types, "types of weights")
        }
        exact, short = found["float32"], found["bfloat16"]
        rows: Rows = []
        for name, each in found.items():
            counts = list(map(len, each["greedy"]))
            agreed = [sum(map(int.__eq__, *both)) for both in zip(each["greedy"], exact["greedy"], strict=True)]
            rows.append(
                {
                    "type": name,
                    "tokens": sum(counts),
                    "perplexity": math.exp(sum(each["nats"]) / sum(counts)),
                    "to_bfloat16": perplexity_ratio(each["nats"], counts, short["nats"], counts),
                    "agreement": ratio(agreed, counts),
                    "kl": ratio(each["divergence"], counts),
                }
            )
        return {"quality": rows}

    def matrices(self, home: Path, words: Tokenizer, calibrated: bool) -> int4.Matrices:
        model = checkpoint.load(home, packed=False)
        return int4.quantised(model, int4.calibration(words, model.context)[: self.calibration] if calibrated else None)

    def model(self, home: Path, name: str, matrices: Callable[[bool], int4.Matrices]) -> Decoder:
        """The target with a type of weights; int4 in float32, with what the codes stand for as weights."""
        if not name.startswith("int4"):
            quantize, dtype = ("int8", "float32") if name == "int8" else (None, name)
            return checkpoint.load(home, dtype, quantize=quantize)
        model: Any = checkpoint.load(home, packed=False)
        for path, matrix in matrices("not" not in name).items():
            model.get_submodule(path).weight = nn.Parameter(matrix.weight(), requires_grad=False)
        head = model.head.weight
        if name.endswith("head too"):
            model.head.weight = nn.Parameter(quantise(head).weight(), requires_grad=False)
        else:
            model.head = Int8(head, None)
        found: Decoder = model
        return found


@torch.inference_mode()
def read(model: Decoder, texts: list[list[int]], exact: Decoder | None = None) -> dict[str, list[Any]]:
    """Perplexity of texts under a model, and how far its distributions are from those of an exact one.

    For each text the nats of its tokens behind the first, the most probable token at each of their places, and the sum
    over these of the Kullback-Leibler divergence from the exact model's distribution, in nats.
    """
    found: dict[str, list[Any]] = {"nats": [], "greedy": [], "divergence": []}
    for text in texts:
        tokens = torch.tensor([text[: model.context]])
        logits = model.train_forward(tokens)[0, :-1].float()
        found["nats"].append(float(F.cross_entropy(logits, tokens[0, 1:], reduction="sum")))
        found["greedy"].append(logits.argmax(-1).tolist())
        if exact is not None:
            right = exact.train_forward(tokens)[0, :-1].double().log_softmax(-1)
            found["divergence"].append(
                float(F.kl_div(logits.double().log_softmax(-1), right, reduction="sum", log_target=True))
            )
    return found
