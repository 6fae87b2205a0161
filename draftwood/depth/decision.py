"""Decision models (MCSD §3.3): small networks that foretell whether drafts will be accepted, and stop the drafting.

Kind 'hidden' reads the draft's last hidden state, kind 'output' its top-k probabilities and their entropy. Knows
training, judging, saving and loading. Refuses to know models: examples are arrays that were recorded.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftwood.depth.rules import Growth
from draftwood.errors import ConfigurationError
from draftwood.sampling import Streams
from draftwood.trace import Round

DecisionKind = Literal["hidden", "output"]


def output_features(logits: Tensor, k: int) -> Tensor:
    """concat(top-k probabilities, entropy) [n, k + 1] of draft logits [n, V]; a small vocabulary is filled with 0."""
    log_q = torch.log_softmax(logits.float(), -1)
    q = log_q.exp()
    entropy = -(q * log_q.clamp(min=torch.finfo(torch.float32).min)).sum(-1, keepdim=True)
    top = q.topk(min(k, q.shape[-1]), -1).values
    return torch.cat((nn.functional.pad(top, (0, k - top.shape[-1])), entropy), -1)


def hidden_label(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p(x)/q(x)) of drafted tokens, the label of kind 'hidden' (the paper misprints max, spec §9.6)."""
    return (p / q).clamp(max=1.0)


class Decision(nn.Module):
    """An MLP from features [n, inputs] to the logit of acceptance [n]: three layers for 'hidden', two for 'output'.

    Features are standardised as the training examples were.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, kind: DecisionKind, inputs: int, width: int = 64) -> None:
        super().__init__()
        self.kind, self.inputs, self.width = kind, inputs, width
        layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
        if kind == "hidden":
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def forward(self, features: Tensor) -> Tensor:
        logit: Tensor = self.layers((features.float() - self.mean) / self.scale)[..., 0]
        return logit

    def chance(self, features: Tensor) -> Tensor:
        """The foretold chance of acceptance [n]."""
        with torch.no_grad():
            return torch.sigmoid(self(features))


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well chances foretell acceptance, on examples that training did not see."""

    examples: int
    accepted: float  # share
    log_loss: float
    base_loss: float  # of always foretelling the share
    auc: float
    overlap: float  # common area of the two histograms of chances (MCSD Figure 7): 0 separates, 1 says nothing
    error: float  # expected calibration error
    calibration: list[tuple[float, float, int]]  # per bin: mean chance, share accepted, examples
    roc: list[tuple[float, float]]  # (false, true) positive rates, thresholds falling


def roc_curve(chances: Tensor, accepted: Tensor) -> list[tuple[float, float]]:
    """(share of rejected, share of accepted examples) whose chance reaches a threshold, for each threshold, falling."""
    positive = accepted > 0.5
    order = chances.argsort(descending=True, stable=True)
    ranked, hits = chances[order], positive[order].double()
    last = torch.cat((ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)))  # equal chances move together
    true = hits.cumsum(0)[last] / max(float(hits.sum()), 1.0)
    false = (1 - hits).cumsum(0)[last] / max(float((1 - hits).sum()), 1.0)
    return [(0.0, 0.0), *zip(false.tolist(), true.tolist(), strict=True)]


def area_under(curve: list[tuple[float, float]]) -> float:
    """Area under a ROC curve: that an accepted example has the larger chance, ties counted half."""
    return sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(curve))


def calibration_table(chances: Tensor, accepted: Tensor, bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean chance, share accepted, examples) of equal intervals of chances, empty ones left out."""
    place = (chances * bins).long().clamp(0, bins - 1)
    table = []
    for i in range(bins):
        inside = place == i
        if bool(inside.any()):
            table.append((float(chances[inside].mean()), float(accepted[inside].mean()), int(inside.sum())))
    return table


def overlap(chances: Tensor, accepted: Tensor, bins: int = 20) -> float:
    """Common area of the histograms of chances of accepted and of rejected examples (MCSD Figure 7)."""
    positive = accepted > 0.5
    place = (chances * bins).long().clamp(0, bins - 1)
    histograms = [torch.bincount(place[chosen], minlength=bins).double() for chosen in (positive, ~positive)]
    a, b = (counts / counts.sum().clamp(min=1) for counts in histograms)
    return float(torch.minimum(a, b).sum())


def judge(chances: Tensor, accepted: Tensor) -> Judgement:
    """All figures at once; chances and labels [n] (labels between 0 and 1 count as accepted above one half)."""
    chances, accepted = chances.double().cpu(), accepted.double().cpu()
    share = accepted.mean().clamp(1e-9, 1 - 1e-9)
    cross_entropy = nn.functional.binary_cross_entropy
    curve = roc_curve(chances, accepted)
    table = calibration_table(chances, accepted)
    return Judgement(
        len(chances),
        float(share),
        float(cross_entropy(chances, accepted)),
        float(cross_entropy(share.expand_as(accepted), accepted)),
        area_under(curve),
        overlap(chances, accepted),
        sum(n * abs(foretold - seen) for foretold, seen, n in table) / len(chances),
        table,
        curve,
    )


def train_decision(
    kind: DecisionKind,
    features: Tensor,
    labels: Tensor,
    width: int = 64,
    held_out: float = 0.2,
    epochs: int = 30,
    batch: int = 256,
    rate: float = 3e-3,
    seed: int = 0,
) -> tuple[Decision, Judgement]:
    """Train on features [n, inputs] and labels [n] in [0, 1]; the judgement is on the `held_out` share, drawn by seed.

    The epoch that is best on a second held-out share, of the same size, is kept.
    """
    count = len(features)
    aside = int(count * held_out)
    if not 0 < held_out < 0.5 or aside < 1 or count - 2 * aside < 1:
        raise ConfigurationError(f"{count} examples cannot be split with held_out {held_out}; record more rounds")
    if not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ConfigurationError("labels must lie between 0 and 1; record them as accepted or min(1, p/q)")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    features, labels = features.float(), labels.float()
    test, tune, rest = order[:aside], order[aside : 2 * aside], order[2 * aside :]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decision(kind, features.shape[1], width)
    model.mean.copy_(features[rest].mean(0))
    model.scale.copy_(features[rest].std(0, unbiased=False).clamp(min=1e-6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    best, kept = float("inf"), {name: value.clone() for name, value in model.state_dict().items()}
    loss = nn.functional.binary_cross_entropy_with_logits
    for _ in range(epochs):
        for chosen in torch.split(rest[torch.randperm(len(rest), generator=generator)], batch):
            optimizer.zero_grad()
            loss(model(features[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            now = float(loss(model(features[tune]), labels[tune]))
        if now < best:
            best, kept = now, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    model.eval()
    return model, judge(model.chance(features[test]), labels[test])


def fingerprint(draft: Mapping[str, Any]) -> str:
    """A hash of a draft model's configuration."""
    return hashlib.sha256(json.dumps(draft, sort_keys=True, default=str).encode()).hexdigest()[:16]


def save_decision(path: Path, model: Decision, draft: Mapping[str, Any], judgement: Judgement | None = None) -> None:
    """Write PATH (safetensors) and beside it PATH with .json: the shape, the draft's hash, the judgement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    about = {
        "kind": model.kind,
        "inputs": model.inputs,
        "width": model.width,
        "draft": fingerprint(draft),
        "judgement": asdict(judgement) if judgement else None,
    }
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def load_decision(path: Path, draft: Mapping[str, Any]) -> Decision:
    """A saved decision model; ConfigurationError where it is missing, damaged or of another draft."""
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if not file.is_file():
            raise ConfigurationError(f"decision model {file} does not exist; train it with `draftwood train decision`")
    try:
        about = json.loads(beside.read_text("utf-8"))
        model = Decision(about["kind"], about["inputs"], about["width"])
        trained_for = about["draft"]
        model.load_state_dict(load_file(path))
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise ConfigurationError(f"decision model {path} cannot be read ({error}); train it again") from error
    if trained_for != fingerprint(draft):
        raise ConfigurationError(
            f"decision model {path} was trained for another draft (its hash is {trained_for}, this draft's "
            f"{fingerprint(draft)}); train one for this draft with `draftwood train decision`"
        )
    model.eval()
    return model


class OutputDecision:
    """Stop when the foretold acceptance of every sequence is below `threshold` (MCSD's beta), at `limit` at the latest.

    The first layer is always drafted: before it nothing is known of the draft's output.
    """

    needs: frozenset[str] = frozenset({"logits"})

    def __init__(self, model: Decision, limit: int, threshold: float = 0.4) -> None:
        if model.kind != "output":
            raise ConfigurationError(
                f"this controller reads the draft's output, but the decision model is of kind {model.kind}; "
                "train one with --kind output"
            )
        if not 0 <= threshold <= 1:
            raise ConfigurationError(f"threshold is {threshold}, but must lie between 0 and 1")
        self.model, self.limit, self.threshold = model, limit, threshold

    def start(self, streams: Streams) -> None:
        pass

    def deeper(self, growth: Growth) -> bool:
        if growth.depth >= self.limit:
            return False
        if growth.depth == 0 or growth.logits is None:
            return True
        rows = sorted({row for row, _ in growth.picked}) or list(range(len(growth.logits)))  # of sequences that go on
        features = output_features(growth.logits[rows], self.model.inputs - 1)
        return bool((self.model.chance(features.to(self.model.mean.device)) >= self.threshold).any())

    def observe(self, news: Round) -> None:
        pass
