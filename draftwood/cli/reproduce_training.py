"""What `draftwood reproduce` trains before it measures. Kept below the reproduction's directory, so done once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.engine import Engine
    from draftwood.evidence.reproduce.experiment import Experiment, Made, Size

TRAINED = "trained"


def prepare(
    engine: Engine,
    experiment: Experiment,
    size: Size,
    out: Path,
    decision: Path | None,
    told: Callable[[str], None],
) -> Made:
    """What the paper's experiment needs to be trained for this pair."""
    from draftwood.evidence.reproduce.experiment import Made

    return Made()
