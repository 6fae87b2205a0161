"""Runs a paper's evaluations into a directory that belongs to that reproduction alone, and reads what is there.

The evaluations are those of `draftwood eval`: each is a directory that can be resumed, and reported by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from draftwood.depth.decision import load_decision
from draftwood.engine import Engine
from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.eval.evaluation import evaluate
from draftwood.eval.experiments.learned import Places, learn_for
from draftwood.eval.reproduce.experiment import Evaluation, Experiment, Size
from draftwood.eval.reproduce.results import Results
from draftwood.eval.running import Job
from draftwood.eval.store import write_json
from draftwood.models import exit as exits
from draftwood.models import heads
from draftwood.models.artifact import fingerprints
from draftwood.reading import parse_json, read_text

PAPERS = ("dsbd", "mcsd", "eesd")
ABOUT, TRAINED = "reproduction.json", "trained"


def experiment(name: str) -> Experiment:
    """A paper's, by its short name."""
    if name not in PAPERS:
        raise ConfigurationError(f"there is no paper {name!r} to reproduce" + did_you_mean(name, PAPERS))
    found: Experiment = import_module(f"draftwood.eval.reproduce.{name}").EXPERIMENT
    return found


def claim(out: Path, about: Mapping[str, Any]) -> None:
    """Make `out` the place of one reproduction; ConfigurationError where it belongs to another one."""
    path = out / ABOUT
    if path.exists():
        try:
            there = parse_json(read_text(path))
        except (ValueError, OSError):
            raise ConfigurationError(f"{path} is not what `draftwood reproduce` wrote; choose another --out") from None
        if there != json.loads(json.dumps(about)):
            other = [key for key in about if not isinstance(there, dict) or there.get(key) != about[key]]
            raise ConfigurationError(
                f"{out} holds another reproduction (different: {', '.join(other)}); choose another --out, or repeat "
                "the first command to go on"
            )
        return
    if out.is_dir() and any(out.iterdir()):
        raise ConfigurationError(f"{out} holds something else; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, about)


def prepare(
    engine: Engine, paper: str, size: Size, out: Path, decision: Path | None, told: Callable[[str], None]
) -> Places:
    """Train what the paper's experiment needs for this pair, below `out`, once; and say what the pair lacks."""
    folder = out / TRAINED
    if any(sign in str(folder) for sign in ",=:"):
        raise ConfigurationError(f"--out is {out}, but methods name files below it; choose one without commas, = and :")
    if decision is not None:
        load_decision(decision, fingerprints(engine.drafts))
        return Places({"decision": str(decision)})
    found = learn_for(engine, experiment(paper).learn(size), folder, told)
    if paper != "eesd":
        return found
    exits.find(engine.target, None)  # raises where there is none, and says how to train one
    if not engine.drafts:
        found.missing["draft"] = "No draft model was given, so vanilla speculative decoding is left out."
    try:
        heads.find(engine.target, None)
    except ModelError as error:
        found.missing["medusa"] = f"Medusa is left out: {error}."
    if not size.whole:
        found.missing["exits"] = "Not measured: exits would have to be trained, which --scale full does."
    return found


def run(
    engine: Engine,
    evaluations: Sequence[Evaluation],
    out: Path,
    begun: Callable[[int, int], None] = lambda made, expected: None,
    told: Callable[[Job], None] = lambda job: None,
) -> None:
    """Make the runs that are missing. `begun` and `told` count over all evaluations."""
    plans = {each.name: each.plan(engine) for each in evaluations}
    counts = {name: len(plan.jobs()) for name, plan in plans.items()}
    total, before = sum(counts.values()), 0
    for name, plan in plans.items():
        done = before

        def counted(made: int, expected: int, done: int = done) -> None:
            begun(done + made, total)

        evaluate(engine, plan, out / name, counted, told)
        before += counts[name]


def read(evaluations: Sequence[Evaluation], out: Path) -> Results:
    """What is there so far."""
    return Results.read(out, {each.name: list(each.methods) for each in evaluations})
