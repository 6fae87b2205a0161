"""A decision model's judgement as a picture: ROC, calibration, and the overlap of MCSD's Figure 7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood import plots
from draftwood.plots import FAINT, INK, PALETTE
from draftwood.train.judgement import Judgement

BLUE, ORANGE = PALETTE[:2]


def draw_judgement(judgement: Judgement, path: Path, title: str, threshold: float = 0.4) -> None:
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


def _roc(axes: Any, judgement: Judgement) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    axes.plot(*zip(*judgement.roc, strict=True), color=BLUE)
    axes.set_title(f"ROC, area {judgement.auc:.3f}")
    axes.set(
        xlabel="rejected drafts predicted as accepted", ylabel="accepted drafts predicted as accepted", ylim=(0, 1.02)
    )


def _calibration(axes: Any, judgement: Judgement) -> None:
    most = max((count for _, _, count in judgement.calibration), default=1)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    predicted, seen, counts = zip(*judgement.calibration, strict=True)
    axes.plot(predicted, seen, color=BLUE, linewidth=1)
    axes.scatter(predicted, seen, [10 + 90 * count / most for count in counts], color=BLUE)
    axes.set_title(f"Calibration, error {judgement.error:.3f}")
    axes.set(xlabel="predicted acceptance", ylabel="share accepted", ylim=(0, 1.02))


def _overlap(axes: Any, judgement: Judgement, threshold: float) -> None:
    accepted, rejected = judgement.histograms
    width = 1 / len(accepted)
    left = [i * width for i in range(len(accepted))]
    axes.bar(left, accepted, width, align="edge", color=BLUE, alpha=0.6, label="accepted")
    axes.bar(left, rejected, width, align="edge", color=ORANGE, alpha=0.6, label="rejected")
    axes.axvline(threshold, color=INK, linewidth=1, linestyle="--", label=f"threshold {threshold:g}")
    axes.set_title(f"Overlap {judgement.overlap:.2f}")
    axes.set(xlabel="predicted acceptance", ylabel="share of drafts")
    axes.legend(loc="upper center")
