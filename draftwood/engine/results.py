"""The result of one request: its text, its tokens, its rounds and their metrics, as plain data."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from draftwood.core.records import Beam, Kind, Round, TopLogprobs
from draftwood.engine.metrics import Metrics


@dataclass(slots=True, repr=False)
class GenerationResult:
    """The result of one request. `tokens` are the generated ids only; `text` excludes a stop string that was met.

    `str(result)` is the text; notebooks show it with the main figures.
    """

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
    structured: dict[str, Any] | None  # what the text had to be
    beams: list[Beam] = field(default_factory=list)  # of methods with several hypotheses: the best, first `tokens`

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return (
            f"GenerationResult({text!r}, {len(self.tokens)} tokens, {self.finish_reason!r}, "
            f"method={self.method['name']!r}, tau={self.metrics.tau:.2f})"
        )

    def _repr_html_(self) -> str:
        m = self.metrics
        drafts = f", {m.acceptance_rate:.0%} of {m.drafted} drafts accepted" if m.drafted else ""
        figures = f"{self.method['name']}: {len(self.tokens)} tokens, {m.tau:.2f} per target forward{drafts}"
        return (
            f"<p style='white-space: pre-wrap'>{html.escape(self.text)}</p><p><small>{html.escape(figures)}</small></p>"
        )

    @property
    def predicted_layers(self) -> float | None:
        """The lower bound of Theorem 3.2 on `metrics.layers_per_round`; None where the theorem does not apply.

        It speaks of DSBD with draws with replacement; without, the chances of layers are no probabilities.
        """
        if "threshold" not in self.method or not self.method.get("replacement", True):
            return None
        return self.metrics.predicted_layers(1.0 if self.method.get("width") else self.method["threshold"])

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data (rounds in short form), ready for JSON."""
        plain = {name: getattr(self, name) for name in PLAIN_FIELDS}
        rounds = [
            {name: getattr(r, name) for name in ROUND_FIELDS} | {"layers": [layer.as_dict() for layer in r.layers]}
            for r in self.rounds
        ]
        beams = [{**asdict(beam), "perplexity": beam.perplexity} for beam in self.beams]
        metrics = {**self.metrics.as_dict(), "predicted_layers": self.predicted_layers}
        return {**plain, "beams": beams, "metrics": metrics, "rounds": rounds}


# what `as_dict` has of a result and of its rounds as it is
ROUND_FIELDS = (
    *("position", "tokens", "drafted", "draws", "accepted", "forced", "kinds", "seconds"),
    *("forest_token", "forest_parent", "roots", "root_parents"),
)
PLAIN_FIELDS = [one.name for one in fields(GenerationResult) if one.name not in ("metrics", "rounds", "beams")]
