"""A decision model's judgement as a picture: ROC, calibration, and the overlap of MCSD's Figure 7.

Needs matplotlib. Refuses to know anything but the judgement.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from draftwood.depth.judgement import Judgement
from draftwood.errors import ConfigurationError

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#999999"  # told apart by the colour-blind


def draw_judgement(judgement: Judgement, path: Path, title: str, threshold: float = 0.4) -> None:
    """Write the figure; the suffix of `path` says which kind: .png, .svg or .pdf.

    ConfigurationError without matplotlib.
    """
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError(f"{error}; pip install 'draftwood[train]' for figures") from error
    figure = figures.Figure(figsize=(12, 3.8), layout="constrained")
    figure.suptitle(title)
    roc, calibration, overlap = figure.subplots(1, 3)
    _roc(roc, judgement)
    _calibration(calibration, judgement)
    _overlap(overlap, judgement, threshold)
    for axes in (roc, calibration, overlap):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, 1)
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    figure.savefig(partial, dpi=150)
    partial.replace(path)


def _roc(axes: Any, judgement: Judgement) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.plot(*zip(*judgement.roc, strict=True), color=BLUE)
    axes.set_title(f"ROC, area {judgement.auc:.3f}")
    axes.set(
        xlabel="rejected drafts predicted as accepted", ylabel="accepted drafts predicted as accepted", ylim=(0, 1.02)
    )


def _calibration(axes: Any, judgement: Judgement) -> None:
    most = max((count for _, _, count in judgement.calibration), default=1)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
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
    axes.axvline(threshold, color="black", linewidth=1, linestyle="--", label=f"threshold {threshold:g}")
    axes.set_title(f"Overlap {judgement.overlap:.2f}")
    axes.set(xlabel="predicted acceptance", ylabel="share of drafts")
    axes.legend(frameon=False, loc="upper center")
