"""Quality of predicted acceptance chances: ROC, calibration, log loss, and the overlap of MCSD's Figure 7."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.util import plots
from draftwood.util.plots import FAINT, INK, PALETTE

THRESHOLDS = tuple(i / 10 for i in range(1, 10))
MAX_ROC_POINTS = 200


@dataclass(frozen=True, slots=True)
class CalibrationMetrics:
    """Quality of predicted acceptance chances on examples that training did not see."""

    examples: int
    accepted: float  # share
    log_loss: float
    base_loss: float  # of always predicting the share
    auc: float
    overlap: float  # common area of the two histograms of chances (MCSD Figure 7): 0 separates, 1 says nothing
    error: float  # expected calibration error
    calibration: list[tuple[float, float, int]]  # per bin: mean chance, share accepted, examples
    roc: list[tuple[float, float]]  # (false, true) positive rates, thresholds falling; thinned out
    histograms: tuple[list[float], list[float]]  # shares of accepted, of rejected examples in equal bins of chances
    thresholds: list[tuple[float, float, float]]  # (beta, share of accepted at or above it, share of rejected below)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def figures(self) -> dict[str, Any]:
        """The figures to print, without curves and histograms."""
        names = ("accepted", "log_loss", "base_loss", "auc", "overlap", "thresholds")
        figures = {name: getattr(self, name) for name in names}
        return {"held_out": self.examples, "calibration_error": self.error, **figures}


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


def histograms(chances: Tensor, accepted: Tensor, bins: int = 20) -> tuple[list[float], list[float]]:
    """Shares of the accepted and of the rejected examples in equal intervals of chances (MCSD Figure 7)."""
    positive = accepted > 0.5
    place = (chances * bins).long().clamp(0, bins - 1)
    counts = [torch.bincount(place[chosen], minlength=bins).double() for chosen in (positive, ~positive)]
    of_accepted, of_rejected = ((count / count.sum().clamp(min=1)).tolist() for count in counts)
    return of_accepted, of_rejected


def overlap(chances: Tensor, accepted: Tensor, bins: int = 20) -> float:
    """Common area of the histograms of chances of accepted and of rejected examples (MCSD Figure 7)."""
    return sum(map(min, *histograms(chances, accepted, bins)))


def judge(chances: Tensor, accepted: Tensor) -> CalibrationMetrics:
    """All metrics of chances [n] and labels [n] in [0, 1]; a label above one half counts as accepted."""
    chances, accepted = chances.double().cpu(), accepted.double().cpu()
    share = accepted.mean().clamp(1e-9, 1 - 1e-9)
    cross_entropy = nn.functional.binary_cross_entropy
    curve = roc_curve(chances, accepted)
    table = calibration_table(chances, accepted)
    positive, negative = chances[accepted > 0.5], chances[accepted <= 0.5]
    return CalibrationMetrics(
        len(chances),
        float(share),
        float(cross_entropy(chances, accepted)),
        float(cross_entropy(share.expand_as(accepted), accepted)),
        area_under(curve),
        overlap(chances, accepted),
        sum(n * abs(predicted - seen) for predicted, seen, n in table) / len(chances),
        table,
        curve[:: max(1, len(curve) // MAX_ROC_POINTS)] + curve[-1:],
        histograms(chances, accepted),
        [(beta, _share(positive >= beta), _share(negative < beta)) for beta in THRESHOLDS],
    )


def _share(where: Tensor) -> float:
    return float(where.double().mean()) if len(where) else 0.0


BLUE, ORANGE = PALETTE[:2]


def draw_calibration(judgement: CalibrationMetrics, path: Path, title: str, threshold: float = 0.4) -> None:
    """Write the figure; the suffix of `path` says which kind: .png, .svg or .pdf.

    ConfigurationError without matplotlib.
    """

    def paint(canvas: Any) -> None:
        canvas.suptitle(title)
        panels = canvas.subplots(1, 3)
        _roc(panels[0], judgement)
        _calibration(panels[1], judgement)
        _overlap(panels[2], judgement, threshold)
        for axes in panels:
            axes.set_xlim(0, 1)

    plots.save(plots.figure(paint, 12, 3.8), path, title)


def _roc(axes: Any, judgement: CalibrationMetrics) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    axes.plot(*zip(*judgement.roc, strict=True), color=BLUE)
    axes.set_title(f"ROC, area {judgement.auc:.3f}")
    axes.set(
        xlabel="rejected drafts predicted as accepted", ylabel="accepted drafts predicted as accepted", ylim=(0, 1.02)
    )


def _calibration(axes: Any, judgement: CalibrationMetrics) -> None:
    max_count = max((count for _, _, count in judgement.calibration), default=1)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    predicted, seen, counts = zip(*judgement.calibration, strict=True)
    axes.plot(predicted, seen, color=BLUE, linewidth=1)
    axes.scatter(predicted, seen, [10 + 90 * count / max_count for count in counts], color=BLUE)
    axes.set_title(f"Calibration, error {judgement.error:.3f}")
    axes.set(xlabel="predicted acceptance", ylabel="share accepted", ylim=(0, 1.02))


def _overlap(axes: Any, judgement: CalibrationMetrics, threshold: float) -> None:
    accepted, rejected = judgement.histograms
    width = 1 / len(accepted)
    left = [i * width for i in range(len(accepted))]
    axes.bar(left, accepted, width, align="edge", color=BLUE, alpha=0.6, label="accepted")
    axes.bar(left, rejected, width, align="edge", color=ORANGE, alpha=0.6, label="rejected")
    axes.axvline(threshold, color=INK, linewidth=1, linestyle="--", label=f"threshold {threshold:g}")
    axes.set_title(f"Overlap {judgement.overlap:.2f}")
    axes.set(xlabel="predicted acceptance", ylabel="share of drafts")
    axes.legend(loc="upper center")
