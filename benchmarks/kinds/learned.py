"""What experiments train before they measure: decision models, the predictor of cali-ts, exits. Each is made once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.experiment import Rows, Strict
from benchmarks.pairs import Pair, growth_of, known, pair, weights
from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import DraftwoodError, ModelError
from draftwood.util.safe_parsing import parse_json, read_text

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from draftwood.depth.decision import DecisionKind

SEED = 0
CONTEXT, HELD_OUT, RATE, WARMUP = 256, 32, 3e-3, 25  # of training exits
SECONDS = "seconds.json"
Told = Callable[[str], None]
HEADS = re.compile(r"\{([a-z]+)\}")


class Recorded(Strict):
    """How many prompts of the embedded corpus are decoded for the examples, and how far."""

    prompts: int = 140
    tokens: int = 64


# The target's distributions on given text; given text alone; EESD's: text of the target, mixed with given text; and
# the target's distributions on that
Taught = Literal["distributions", "text", "mixture", "mixture-distributions"]
HOW: dict[Taught, str] = {
    "distributions": "",
    "text": ", on text alone",
    "mixture": ", the paper's way",
    "mixture-distributions": ", by distributions on the paper's texts",
}


class Exits(Strict):
    """Exits behind `layers` (numbers, or shares of all), of `depths` layers behind the first, taught by distributions.

    Those of the first shape that are `taught` otherwise stand beside them, and for the paper's way a head alone (§5.1).
    """

    layers: tuple[float, ...] = (0.08, 0.17, 0.25, 0.33, 0.5)
    depths: tuple[int, ...] = (1, 2, 3)
    taught: tuple[Taught, ...] = ("text", "mixture")
    steps: int = 100
    batch: int = 8
    rows: int = 2000  # to train on at most
    texts: int = 3000  # of the mixture, half of them the target's


class Steps(Strict):
    """Training steps that are timed (EESD Table 6)."""

    steps: int = 3
    batch: int = 4
    context: int = 128


class Learned(Strict):
    """What is to be trained."""

    decision: Recorded | None = None  # from the draft's probabilities
    hidden: Recorded | None = None  # a decision model from its hidden states
    calibration: Recorded | None = None
    exits: Exits | None = None
    costs: Steps | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """A trained exit: behind so many layers of the target, of `depth` layers."""

    layers: int
    depth: int
    taught: Taught = "distributions"
    place: str = ""

    def folder(self, spec: Exits) -> str:
        """Of its files, named after its recipe."""
        texts = f"-{spec.texts}" if self.taught.startswith("mixture") else ""
        return f"n{self.layers}-d{self.depth}-{self.taught}{texts}-{spec.rows}-{spec.steps}x{spec.batch}"

    @property
    def label(self) -> str:
        return f"exit, N={self.layers}, {self.depth} layer{'s' * (self.depth != 1)}{HOW[self.taught]}"


@dataclass(slots=True)
class Places:
    """What methods name in braces, where it lies; `missing` says in a sentence why something is left out."""

    places: dict[str, Any] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    rows: Rows = field(default_factory=list)  # of the exits: what training them took and gave
    judged: Rows = field(default_factory=list)  # of the decision models: how well they predict
    costs: Rows = field(default_factory=list)  # of training steps
    pair: str = ""  # the name of the pair, if it is one of ours


def resolved(method: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Any] | None:
    """The method with what its options name in braces; None where one of these is not there."""
    found = {}
    for key, value in method.items():
        names = HEADS.findall(value) if isinstance(value, str) else []
        if any(name not in places for name in names):
            return None
        found[key] = value.format(**places) if names else value
    return found


def learn(bench: Bench, wanted: Learned) -> Places:
    """For an experiment; what is trained lies beside the pair."""
    if wanted == Learned():
        return Places()
    return learn_for(bench.engine, wanted, bench.pair.learned, lambda what: bench.told(what, 0, None))


def learn_for(engine: Engine, wanted: Learned, folder: Path, told: Told) -> Places:
    """Put what is wanted into `folder`, trained where it is not there yet.

    What is learned for a pair of ours is kept beside the pair, too, for every experiment and reproduction. Exits of a
    target that was grown from the embedded one are trained on that one and grown alike.
    """
    from draftwood.models.heads import exit as exits

    of = known(engine)
    found = Places(pair=of.name if of else "")
    kept = of.learned if of else folder
    try:
        exits.find(engine.target, None)
    except ModelError:
        found.missing["exit"] = "The target has no exit, so drafts by it are left out."
    recorded: dict[str, tuple[Recorded | None, Callable[[Engine, Recorded, Path, Told], None]]] = {
        "decision": (wanted.decision, partial(_decision, "output")),
        "hidden": (wanted.hidden, partial(_decision, "hidden")),
        "calibration": (wanted.calibration, _calibration),
    }
    for name, (spec, make) in recorded.items():
        if spec is None:
            continue
        path = kept / f"{name}-{spec.prompts}x{spec.tokens}.safetensors"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                make(engine, spec, path, told)
            path = _copied(path, folder / path.name)
            found.places[name] = str(path)
            if name != "calibration":
                found.judged.append(judgement(path))
        except DraftwoodError as error:
            found.missing[name] = f"There is no model for {name} for this pair: {error}."
    if wanted.costs is not None:
        try:
            found.costs = _costs(engine, wanted.costs, folder / "costs.json", told)
        except DraftwoodError as error:
            found.missing["costs"] = f"Training steps could not be timed: {error}."
    if wanted.exits is not None and "exit" not in found.missing:
        try:
            _exits(engine, wanted.exits, folder, told, found)
        except DraftwoodError as error:
            found.missing["exits"] = f"Exits could not be trained: {error}."
    return found


def _copied(path: Path, out: Path) -> Path:
    if path != out and not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out)
    return out


def _counted(told: Told, what: str) -> Callable[[int, int], None]:
    return lambda done, total: told(f"{what}: {done} of {total} prompts")


def judgement(path: Path) -> dict[str, Any]:
    """How well a decision model predicts on prompts that it did not see, as it was noted in its file."""
    from draftwood.models.checkpoints import artifact

    found = artifact.load(path, "decision")
    noted = found.about["judgement"]
    names = ("examples", "accepted", "auc", "overlap", "log_loss", "base_loss", "error", "histograms")
    return {"kind": found.settings["kind"], **{name: noted[name] for name in names}}


def _costs(engine: Engine, spec: Steps, path: Path, told: Told) -> Rows:
    """Seconds of training steps of an exit, heads and a draft model, measured once."""
    from benchmarks.kinds.training import costs
    from draftwood.models.heads.exit import layered

    if not path.is_file():
        target, drafts = layered(engine.target).home, [getattr(draft, "home", None) for draft in engine.drafts]
        if target is None:
            raise ModelError("the target was not loaded from a directory")
        told("timing steps of training")
        rows = costs(target, next(filter(None, drafts), None), "float32", spec.steps, spec.batch, spec.context)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows), "utf-8")
    found: Rows = parse_json(read_text(path))
    return found


def _decision(kind: DecisionKind, engine: Engine, spec: Recorded, path: Path, told: Told) -> None:
    from draftwood.depth.decision import save_decision
    from draftwood.train.decisions import record, train_decision
    from draftwood.train.prompts import CORPUS, prompts_of

    progress = _counted(told, "recording drafts for the decision model")
    texts = prompts_of(CORPUS, spec.prompts, SEED)
    examples = record(engine, texts, kind, max_new_tokens=spec.tokens, seed=SEED, progress=progress)
    model, judged = train_decision(kind, *examples.tensors(), seed=SEED)
    about = {"prompts": len(texts), "max_new_tokens": spec.tokens, "examples": len(examples), "seed": SEED}
    save_decision(path, model, examples.draft, asdict(judged), about)


def _calibration(engine: Engine, spec: Recorded, path: Path, told: Told) -> None:
    from draftwood.depth.calibrated import PLACES, save_calibration
    from draftwood.methods import Method
    from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
    from draftwood.train.calibration import record, train_calibration
    from draftwood.train.prompts import CORPUS, prompts_of

    method = Method.parse({"name": "eesd", "gamma": PLACES})
    progress = _counted(told, "recording drafts for cali-ts")
    texts = prompts_of(CORPUS, spec.prompts, SEED)
    drafts = record(engine, method, texts, (0.0, 1.0), spec.tokens, SEED, progress)
    trained, judgement = train_calibration(drafts, seed=SEED)
    whose = fingerprints(method.models(engine.target, engine.drafts))
    about = {"prompts": len(texts), "drafts": len(drafts.place), "judgement": asdict(judgement)}
    save_calibration(path, trained, fingerprint(engine.target), whose, about)


def shapes(spec: Exits, layers: int) -> list[Exit]:
    """The exits of a target with so many layers."""
    behind = [max(1, round(n * layers)) if n < 1 else int(n) for n in spec.layers]
    behind = [n for n in dict.fromkeys(behind) if n < layers]
    found = [Exit(n, 1) for n in behind] + [Exit(behind[0], depth) for depth in spec.depths]
    found += [Exit(behind[0], 1, how) for how in spec.taught]
    found += [Exit(behind[0], 0, "mixture")] * ("mixture" in spec.taught)
    return list(dict.fromkeys(found))


def _exits(engine: Engine, spec: Exits, folder: Path, told: Told, found: Places) -> None:
    from benchmarks.grow.checkpoint import grown_layers, write_exit
    from benchmarks.grow.growth import Growth
    from draftwood.models.checkpoints import artifact, checkpoint
    from draftwood.models.heads.exit import layered

    home = layered(engine.target).home
    if home is None:
        raise ModelError("the target was not loaded from a directory")
    sizes = growth_of(home)
    small = EMBEDDED / "target" if sizes else home
    model = checkpoint.load(small, packed=False)
    growth = Growth.plan(model, **sizes) if sizes else None
    kept = pair("embedded").learned if small == EMBEDDED / "target" else folder
    for each in shapes(spec, model.n_layers):
        if growth is not None and grown_layers(each.layers, growth) != each.layers:
            continue  # it would lie behind all of the added layers
        name = each.folder(spec)
        trained = artifact.companion(kept / name, "exit")
        if not trained.is_file() or artifact.load(trained, "exit").about["trained"]["steps"] < spec.steps:
            _train(small, each, trained.parent, spec, kept, told)
        learned = artifact.load(trained, "exit").about["trained"]
        file = artifact.companion(folder / name, "exit")
        if growth is None:
            _copied(trained, file)
        elif not file.is_file():
            write_exit(trained.parent, model, growth, file.parent, "float32")
        found.exits.append(replace(each, place=str(file.parent)))
        row = {"exit": each.label, "layers": each.layers, "depth": each.depth, "taught": each.taught}
        row |= {"parameters": weights(file), **{key: learned[key] for key in ("steps", "acceptance", "agreement")}}
        seconds = kept / name / SECONDS
        found.rows.append(row | (parse_json(read_text(seconds)) if seconds.is_file() else {}))


def _texts(home: Path, spec: Exits, folder: Path, told: Told) -> Path:
    """Text that the target wrote after prompts of the corpus, mixed with given text of it, as EESD §3.2 has it."""
    from draftwood.engine.loading import load
    from draftwood.train.prompts import CORPUS
    from draftwood.train.self_distillation import write_texts
    from draftwood.train.settings import WritingSettings

    out = folder / f"texts-{spec.texts}.jsonl"
    for written in write_texts(load(home), WritingSettings(given=CORPUS, count=spec.texts, seed=SEED), out):
        told(f"writing texts to train on: {written} of {spec.texts}")
    return out


def _train(home: Path, shape: Exit, out: Path, spec: Exits, folder: Path, told: Told) -> None:
    """One that was broken off goes on from its last save."""
    import torch

    from draftwood.train.exit_layer import ExitRun
    from draftwood.train.runs import prepare
    from draftwood.train.settings import ExitSettings, TextSource

    settings = ExitSettings(
        layers=shape.layers,
        depth=shape.depth,
        steps=spec.steps,
        batch=spec.batch,
        rate=RATE,
        warmup=min(WARMUP, spec.steps),
        distill=float(shape.taught.endswith("distributions")),
        precision="float32",  # a processor without products of bfloat16 takes twice as long for them
        seed=SEED,
    )
    source = TextSource(context=CONTEXT, rows=min(spec.rows, spec.steps * spec.batch), held_out=HELD_OUT)
    if shape.taught.startswith("mixture"):
        source = source.model_copy(update={"data": str(_texts(home, spec, folder, told))})
    run = prepare(ExitRun, settings, out, source, home)
    for _ in run.train(50, spec.steps, torch.bfloat16):
        told(f"training {shape.label}: {run.progress.step} of {spec.steps} steps")
    seconds = {"seconds_per_step": run.progress.seconds / max(1, run.progress.step)}
    (out.parent / SECONDS).write_text(json.dumps(seconds), "utf-8")


def sizes(chosen: Pair) -> dict[str, int]:
    """Weights of the target and of what was learned for it."""
    from draftwood.models.checkpoints.artifact import companion

    found = {"target": weights(chosen.target), "draft": weights(chosen.draft) if chosen.draft else 0}
    found |= {kind: weights(companion(chosen.target, kind)) for kind in ("exit", "heads")}
    learned: Sequence[Path] = sorted(chosen.learned.glob("calibration-*.safetensors"))
    return found | {"calibration": weights(learned[0]) if learned else 0}
