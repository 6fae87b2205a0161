"""What one request produced: its texts, its rounds (records.py) and their metrics (metrics.py), as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from draftwood.core.records import Beam, EmittedToken, Judged, Kind, Layer, Outcome, Round, TopLogprobs
from draftwood.metrics import Metrics

__all__ = [
    "Beam",
    "EmittedToken",
    "GenerationResult",
    "Judged",
    "Kind",
    "Layer",
    "Metrics",
    "Outcome",
    "Round",
    "TopLogprobs",
]


@dataclass(slots=True)
class GenerationResult:
    """What one request produced. `tokens` are the generated ids only; `text` excludes a stop string that was met."""

    text: str
    tokens: list[int]
    logprobs: list[float]  # per token, under the target before warping
    warped_logprobs: list[float]  # per token, under T∘p
    top_logprobs: list[TopLogprobs]  # per token, before warping, where asked for
    warped_top_logprobs: list[TopLogprobs]  # per token, under T∘p
    kinds: list[Kind]  # per token
    finish_reason: str  # eos, stop, length, cancelled
    metrics: Metrics
    rounds: list[Round]
    prompt_tokens: list[int]
    seed: int
    method: dict[str, Any]
    sampling: dict[str, Any]
    lossless: bool
    beams: list[Beam] = field(default_factory=list)  # of methods with several hypotheses: the best, first `tokens`

    @property
    def predicted_layers(self) -> float | None:
        """What Theorem 3.2 predicts of `metrics.layers_per_round`; None where it says nothing.

        It speaks of DSBD with draws with replacement; without, the chances of layers are no probabilities.
        """
        if "threshold" not in self.method or not self.method.get("replacement", True):
            return None
        return self.metrics.predicted_layers(1.0 if self.method.get("width") else self.method["threshold"])

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data (rounds in short form), ready for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "logprobs": self.logprobs,
            "warped_logprobs": self.warped_logprobs,
            "top_logprobs": self.top_logprobs,
            "warped_top_logprobs": self.warped_top_logprobs,
            "kinds": self.kinds,
            "prompt_tokens": self.prompt_tokens,
            "seed": self.seed,
            "method": self.method,
            "sampling": self.sampling,
            "lossless": self.lossless,
            "beams": [{**asdict(beam), "perplexity": beam.perplexity} for beam in self.beams],
            "metrics": {**self.metrics.as_dict(), "predicted_layers": self.predicted_layers},
            "rounds": [
                {
                    "position": r.position,
                    "tokens": r.tokens,
                    "drafted": r.drafted,
                    "draws": r.draws,
                    "accepted": r.accepted,
                    "kinds": r.kinds,
                    "seconds": r.seconds,
                    "forest_token": r.forest_token,
                    "forest_parent": r.forest_parent,
                    "roots": r.roots,
                    "root_parents": r.root_parents,
                    "layers": [layer.as_dict() for layer in r.layers],
                }
                for r in self.rounds
            ],
        }
