"""What experiments train before they measure: a decision model, the predictor of cali-ts, exits. Each is made once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftwood.engine import Engine
from draftwood.errors import DraftwoodError, ModelError
from draftwood.eval.experiments.experiment import Rows, Strict
from draftwood.eval.experiments.pairs import PAIRS, Pair, pair, weights
from draftwood.reading import parse_json, read_text

if TYPE_CHECKING:
    from draftwood.eval.experiments.bench import Bench

SEED = 0
CONTEXT, ROWS, HELD_OUT, RATE, WARMUP = 256, 2000, 32, 3e-3, 25  # of training exits
SECONDS = "seconds.json"
Told = Callable[[str], None]
HEADS = re.compile(r"\{([a-z]+)\}")


class Recorded(Strict):
    """How many prompts of the embedded corpus are decoded for the examples, and how far."""

    prompts: int = 140
    tokens: int = 64
    kind: Literal["output", "hidden"] = "output"  # of a decision model's inputs


class Exits(Strict):
    """Exits behind `layers` (numbers, or shares of all), of `depths` layers behind the first, one on text alone."""

    layers: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)
    depths: tuple[int, ...] = (1, 2, 3)
    text: bool = True
    steps: int = 250
    batch: int = 8


class Learned(Strict):
    """What is to be trained."""

    decision: Recorded | None = None
    calibration: Recorded | None = None
    exits: Exits | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """A trained exit: behind so many layers of the target, of `depth` layers; distilled, or trained on given text."""

    layers: int
    depth: int
    distilled: bool
    place: str = ""

    @property
    def label(self) -> str:
        how = "" if self.distilled else ", on text alone"
        return f"exit, N={self.layers}, {self.depth} layer{'s' * (self.depth > 1)}{how}"


@dataclass(slots=True)
class Places:
    """What methods name in braces, where it lies; `missing` says in a sentence why something is left out."""

    places: dict[str, Any] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    rows: Rows = field(default_factory=list)  # of the exits: what training them took and gave


def resolved(method: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Any] | None:
    """The method with what its options name in braces; None where one of these is not there."""
    found = {}
    for key, value in method.items():
        names = HEADS.findall(value) if isinstance(value, str) else []
        if any(name not in places for name in names):
            return None
        if names and value == f"{{{names[0]}}}":
            found[key] = places[names[0]]
        else:
            found[key] = value.format(**places) if names else value
    return found


def learn(bench: Bench, wanted: Learned) -> Places:
    """For an experiment; what is trained lies beside the pair."""
    if wanted == Learned():
        return Places()
    return learn_for(
        bench.engine, wanted, bench.pair.made / "learned", lambda what: bench.told(what, 0, None), bench.pair
    )


def learn_for(engine: Engine, wanted: Learned, folder: Path, told: Told, of: Pair | None = None) -> Places:
    """Train what is missing in `folder`. Exits of a grown pair are trained on the small one and grown alike."""
    from draftwood.models import exit as exits

    found = Places()
    try:
        own, layers = exits.find(engine.target, None), exits.layered(engine.target).n_layers
        found.places["behind"] = list(range(own.layers, layers))  # what an early exit does not compute
    except ModelError:
        layers = 0
    for name, spec, make in (
        ("decision", wanted.decision, _decision),
        ("calibration", wanted.calibration, _calibration),
    ):
        if spec is None:
            continue
        path = folder / f"{name}-{spec.kind}-{spec.prompts}x{spec.tokens}.safetensors"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                make(engine, spec, path, told)
            found.places[name] = str(path)
        except DraftwoodError as error:
            found.missing[name] = f"There is no {name} for this pair: {error}."
    if wanted.exits is not None and layers:
        try:
            _exits(engine, wanted.exits, folder, told, of, layers, found)
        except DraftwoodError as error:
            found.missing["exits"] = f"Exits could not be trained: {error}."
    return found


def _counted(told: Told, what: str) -> Callable[[int, int], None]:
    return lambda done, total: told(f"{what}: {done} of {total} prompts")


def _decision(engine: Engine, spec: Recorded, path: Path, told: Told) -> None:
    from draftwood.depth.decision import save_decision
    from draftwood.prompts import CORPUS, prompts_of
    from draftwood.train.decisions import record, train_decision

    progress = _counted(told, "recording drafts for the decision model")
    texts = prompts_of(CORPUS, spec.prompts, SEED)
    examples = record(engine, texts, spec.kind, max_new_tokens=spec.tokens, seed=SEED, progress=progress)
    model, judgement = train_decision(spec.kind, *examples.tensors(), seed=SEED)
    about = {"prompts": len(texts), "max_new_tokens": spec.tokens, "examples": len(examples), "seed": SEED}
    save_decision(path, model, examples.draft, asdict(judgement), about)


def _calibration(engine: Engine, spec: Recorded, path: Path, told: Told) -> None:
    from draftwood.depth.calibrated import PLACES, save_calibration
    from draftwood.methods import Method
    from draftwood.models.artifact import fingerprint, fingerprints
    from draftwood.prompts import CORPUS, prompts_of
    from draftwood.train.calibration import record, train_calibration

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
    found = [Exit(n, 1, True) for n in behind] + [Exit(behind[0], depth, True) for depth in spec.depths]
    return list(dict.fromkeys([*found, *[Exit(behind[0], 1, False)] * spec.text]))


def _exits(engine: Engine, spec: Exits, folder: Path, told: Told, of: Pair | None, layers: int, found: Places) -> None:
    from draftwood.models import artifact, checkpoint
    from draftwood.models import exit as exits
    from draftwood.models.grow import Growth
    from draftwood.models.grown import grown_layers, write_exit

    shape = PAIRS.get(of.name, {}).get("target") if of else None
    home = pair("embedded").target if shape else exits.layered(engine.target).home
    if home is None:
        raise ModelError("the target was not loaded from a directory")
    model = checkpoint.load(home, packed=False)
    growth = Growth.plan(model, **shape) if shape else None
    small = pair("embedded").made / "learned" if shape else folder
    for each in shapes(spec, model.n_layers if shape else layers):
        if growth is not None and grown_layers(each.layers, growth) != each.layers:
            continue  # it would lie behind all of the added layers
        how = "distilled" if each.distilled else "text"
        name = f"n{each.layers}-d{each.depth}-{how}-{spec.steps}x{spec.batch}"
        file = artifact.companion(small / name, "exit")
        if not file.is_file() or artifact.load(file, "exit").about["trained"]["steps"] < spec.steps:
            _train(home, each, file.parent, spec, told)
        learned = artifact.load(file, "exit").about["trained"]
        if growth is not None:
            grown = artifact.companion(folder / name, "exit")
            if not grown.is_file():
                write_exit(file.parent, model, growth, grown.parent, "float32")
            file = grown
        place = file.parent
        found.exits.append(Exit(each.layers, each.depth, each.distilled, str(place)))
        size = weights(file)
        row = {"exit": each.label, "layers": each.layers, "depth": each.depth, "text": not each.distilled}
        row |= {"parameters": size, **{key: learned[key] for key in ("steps", "acceptance", "agreement")}}
        seconds = small / name / SECONDS
        found.rows.append(row | (parse_json(read_text(seconds)) if seconds.is_file() else {}))


def _train(home: Path, shape: Exit, out: Path, spec: Exits, told: Told) -> None:
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
        distill=float(shape.distilled),
        seed=SEED,
    )
    source = TextSource(context=CONTEXT, rows=min(ROWS, spec.steps * spec.batch), held_out=HELD_OUT)
    run = prepare(ExitRun, settings, out, source, home)
    for _ in run.train(50, spec.steps, torch.bfloat16):
        told(f"training {shape.label}: {run.progress.step} of {spec.steps} steps")
    seconds = {"seconds_per_step": run.progress.seconds / max(1, run.progress.step)}
    (out.parent / SECONDS).write_text(json.dumps(seconds), "utf-8")


def sizes(chosen: Pair) -> dict[str, int]:
    """Weights of the target and of what was learned for it."""
    from draftwood.models.artifact import companion

    found = {"target": weights(chosen.target), "draft": weights(chosen.draft)}
    found |= {kind: weights(companion(chosen.target, kind)) for kind in ("exit", "heads")}
    learned: Sequence[Path] = sorted((chosen.made / "learned").glob("calibration-*.safetensors"))
    return found | {"calibration": weights(learned[0]) if learned else 0}
