"""What every benchmark does alike: describe the machine, take medians, write JSON.

Knows no model and no method.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import draftwood
from draftwood.eval.provenance import processor

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The git commit, with '+changes' when files differ from it."""
    root = Path(__file__).parent.parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", "draftwood", "benchmarks/*.py"], cwd=root, capture_output=True, text=True
    )
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")


def environment(dtype: str) -> dict[str, Any]:
    """Where a figure comes from."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "git_commit": commit(),
        "command": " ".join(["python", *sys.argv]),
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "draftwood": draftwood.__version__,
    }


def spread(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Median with a 95% bootstrap interval."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(1000))
    return {"median": statistics.median(values), "low": medians[25], "high": medians[974], "n": len(values)}


def write(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Save a result, by default under benchmarks/results."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    return path


def listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Of command-line values with commas between."""
    return lambda text: tuple(kind(part) for part in text.split(","))


def arguments(description: str) -> argparse.ArgumentParser:
    """Options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", default=None, help="checkpoint directory or hub id; default: the embedded pair")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="one by default: the embedded pair is tiny")
    parser.add_argument("--name", default=None, help="name of the result file")
    return parser
