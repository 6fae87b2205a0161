"""Names of methods, models and scores on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.methods import METHODS

FOLDERS = re.compile(r"[^:=,]*[/\\]")  # of a file that an option names
LOWER_IS_BETTER = {"perplexity"}
SCORES = {
    "em": "exact match",
    "f1": "F1 (overlap of words)",
    "correct": "share of correct answers",
    "execution": "share of queries that return the right rows",
    "passed": "share of programs that pass",
    "rating": "rating by the judge, 1 to 10",
    "perplexity": "perplexity under the target (lower is better)",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}


def score_bounds(metric: str) -> tuple[float, float]:
    """The least and the greatest value of a score."""
    return {"perplexity": (1, math.inf), "rating": (1, 10)}.get(metric, (0, 1))


def score_name(metric: str) -> str:
    """A score in words."""
    return SCORES.get(metric, metric)


def method_names(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each method: with the options that are not the usual ones. No two are equal."""
    names = []
    for method in methods:
        name = method["name"]
        usual = METHODS[name].model_construct().model_dump(mode="json") if name in METHODS else {}
        changed = [key for key in method if key != "name" and (key not in usual or usual[key] != method[key])]
        own = METHODS[name].__annotations__ if name in METHODS else {}
        changed.sort(key=lambda key: key not in own)  # the method's own options first
        names.append(" ".join([name, *(f"{key}={_short(method[key])}" for key in changed)]))
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names)]


def _short(value: Any) -> str:
    """An option as it is written behind --set, but for spaces and the folders of files."""
    if isinstance(value, list):
        return ",".join(_short(each) for each in value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_short(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return FOLDERS.sub("", value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def models_line(models: Mapping[str, Any]) -> str:
    """Target, drafts, dtype and device in one line, and whether a model was grown."""
    drafts = ", ".join(map(str, models.get("draft") or ())) or "none"
    parts = [f"target {models.get('target', 'unknown')}", f"draft {drafts}"]
    parts += [str(models[key]) for key in ("dtype", "quantize", "device") if models.get(key)]
    parts += ["compiled"] if models.get("compiled") else []
    return " · ".join(parts)


def grown_line(models: Mapping[str, Any]) -> str | None:
    """A sentence about grown models; None where there are none."""
    grown = models.get("grown") or {}
    said = [f"target from {grown['target']}"] if grown.get("target") else []
    said += [f"draft from {origin}" for origin in grown.get("draft") or () if origin]
    if not said:
        return None
    return (
        f"Models were grown ({', '.join(said)}): they answer as the small ones do, and cost what their shape costs. "
        "Speed and acceptance are measured; the quality is that of the small models."
    )


def sampling_line(sampling: Mapping[str, Any]) -> str:
    """Sampling options that are set."""
    neutral = {"top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    parts = [f"temperature {sampling.get('temperature', 1):g}"]
    parts += [
        f"{key} {_short(value)}"
        for key, value in sampling.items()
        if key != "temperature" and value and value != neutral.get(key)
    ]
    return ", ".join(parts)
