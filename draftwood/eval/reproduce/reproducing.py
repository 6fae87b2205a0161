"""Runs a paper's evaluations into a directory that belongs to that reproduction alone.

The evaluations are those of `draftwood eval`: each is a directory that can be resumed, and reported by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kinds.learned import Places, learn_for
from benchmarks.kinds.methods import Setting, expanded
from benchmarks.pairs import known
from draftwood.depth.decision import load_decision
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, ModelError
from draftwood.eval.evaluation import evaluate
from draftwood.eval.reproduce.paper import Declared, Paper, Scale
from draftwood.eval.running import Job, Plan
from draftwood.eval.tasks import parse
from draftwood.methods import Method
from draftwood.models.checkpoints.artifact import fingerprints
from draftwood.models.heads import exit as exits
from draftwood.models.heads import medusa
from draftwood.sampling.params import SamplingParams
from draftwood.util.files import write_json
from draftwood.util.safe_parsing import parse_json, read_text

ABOUT, TRAINED = "reproduction.json", "trained"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One run of `draftwood eval`."""

    settings: Mapping[str, Setting]  # by label; the first is plain decoding
    declared: Declared
    tasks: tuple[str, ...]
    scale: Scale

    def plan(self, engine: Engine) -> Plan:
        """What is to be measured."""
        chat = engine.tokenizer is not None and bool(engine.tokenizer.templates)
        tokens = {} if self.scale.tokens is None else {"max_new_tokens": self.scale.tokens}
        tasks = [parse(name, tokens) for name in self.tasks]
        asked = [(task, task.instances(self.scale.items * self.declared.times, chat)) for task in tasks]
        methods = [Method.parse(dict(setting.method)) for setting in self.settings.values()]
        return Plan(methods, asked, SamplingParams(**self.declared.sampling), range(self.scale.seeds))


Evaluations = Mapping[str, Evaluation]


def evaluations(paper: Paper, scale: str, made: Places) -> dict[str, Evaluation]:
    """A paper's by name, with the methods that this pair can have; none that plain decoding would have to itself."""
    found = {}
    for name, each in paper.evaluations.items():
        entries = [entry for entry in each.methods if entry.scale in ("", scale)]
        settings = {setting.label: setting for setting in expanded(entries, made)}
        if len(settings) > 1:
            found[name] = Evaluation(settings, each, each.tasks or tuple(paper.tasks), paper.scales[scale])
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
    engine: Engine, paper: Paper, scale: str, out: Path, decision: Path | None, told: Callable[[str], None]
) -> Places:
    """Train what the paper's evaluations need for this pair, below `out`, once; and say what the pair lacks."""
    folder = out / TRAINED
    if any(sign in str(folder) for sign in ",=:"):
        raise ConfigurationError(f"--out is {out}, but methods name files below it; choose one without commas, = and :")
    if decision is not None:
        load_decision(decision, fingerprints(engine.drafts))
        of = known(engine)
        return Places({"decision": str(decision)}, pair=of.name if of else "")
    found = learn_for(engine, paper.scales[scale].learn, folder, told)
    if not engine.drafts:
        found.missing["draft"] = "No draft model was given, so vanilla speculative decoding is left out."
    if any(entry.method == "eesd" for each in paper.evaluations.values() for entry in each.methods):
        exits.find(engine.target, None)  # raises where there is none, and says how to train one
    try:
        medusa.find(engine.target, None)
    except ModelError as error:
        found.missing["heads"] = f"Medusa is left out: {error}."
    if not found.exits:
        found.missing.setdefault("exits", "Not measured: exits would have to be trained, which --scale full does.")
    for name in ("decision", "hidden"):
        if name not in found.places:
            found.missing.setdefault(name, "No decision model was trained.")
    return found


def run(
    engine: Engine,
    evaluations: Evaluations,
    out: Path,
    begun: Callable[[int, int], None] = lambda made, expected: None,
    told: Callable[[Job], None] = lambda job: None,
) -> None:
    """Make the runs that are missing. `begun` and `told` count over all evaluations."""
    plans = {name: each.plan(engine) for name, each in evaluations.items()}
    counts = {name: len(plan.jobs()) for name, plan in plans.items()}
    before, total = 0, sum(counts.values())
    for name, plan in plans.items():

        def counted(made: int, expected: int, before: int = before) -> None:
            begun(before + made, total)

        evaluate(engine, plan, out / name, counted, told)
        before += counts[name]
