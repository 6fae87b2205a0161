"""What benchmarks/early_exit.py trains, and where it is kept: exits, the predictor of cali-ts, and their grown forms.

Training is done once, on the small model that a grown pair comes from: what it gives is grown as the model was, so that
a grown target drafts with the same exits at its own cost. Knows no speed-ups.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from early_exit_settings import ExitShape, Trained
from pairs import RECIPES, Pair, home, pair
from rich.progress import track
from safetensors import safe_open

import draftwood
from draftwood.depth.calibrated import PLACES, Calibration, load_calibration, save_calibration, train_calibration
from draftwood.depth.calibrated import Trained as Predictor
from draftwood.loading import EMBEDDED
from draftwood.methods import Method
from draftwood.models import checkpoint, skip
from draftwood.models import exit as exits
from draftwood.models import heads as medusa
from draftwood.models.decoder import Decoder
from draftwood.models.grow import Growth
from draftwood.models.grow_exit import grown_fingerprint, grown_layers, write_exit
from draftwood.models.grow_heads import write_heads
from draftwood.models.grow_skip import write_grown_skipped
from draftwood.models.identity import fingerprint, fingerprints
from draftwood.models.replicas import Copies
from draftwood.models.tokenizer import Tokenizer
from draftwood.prompts import prompts_of
from draftwood.train.calibration import record
from draftwood.train.exit_layer import ExitRun, Settings
from draftwood.train.texts import read_texts

SEED = 0
RATE, WARMUP, ROWS, HELD_OUT, CONTEXT = 3e-3, 25, 2000, 32, 256  # as the shipped exit's, but shorter
BESIDE = {  # what lies beside a target, and the file whose content says which it is
    "exit": f"{exits.BESIDE}/{exits.WEIGHTS}",
    "heads": f"{medusa.BESIDE}/heads.safetensors",
    "skip": skip.BESIDE,
}


def kept(chosen: Pair) -> Path:
    """The directory of what was trained for a pair."""
    return chosen.made / "early-exit"


def source(chosen: Pair) -> Pair:
    """The pair that is trained with: the embedded one where the pair was grown from it, else the pair itself."""
    return pair("embedded") if RECIPES.get(chosen.name) else chosen


def growth(chosen: Pair, model: Decoder) -> Growth | None:
    """How the pair's target came from the embedded `model`; None where it was not grown here."""
    shape = RECIPES.get(chosen.name, {}).get("target")
    return Growth.plan(model, **shape) if shape else None


def digest(*files: Path) -> str:
    """Of the content of files; one that is missing counts as that."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.read_bytes() if file.is_file() else b"missing")
        whole.update(b"|")
    return whole.hexdigest()[:12]


def companions(chosen: Pair) -> None:
    """Grow exit layer, heads and skip set beside a grown target where they are missing or of an earlier training."""
    if not RECIPES.get(chosen.name):
        return
    place = Path(str(EMBEDDED / "target"))
    files = [place / name for name in BESIDE.values()]
    now, stamp = digest(*files), kept(chosen) / "grown-from"
    wanted = [name for name in BESIDE.values() if (place / name).is_file()]
    fresh = stamp.is_file() and stamp.read_text("utf-8") == now
    if fresh and all((chosen.target / name).is_file() for name in wanted):
        return
    model = checkpoint.load(place, packed=False)
    grown = growth(chosen, model)
    assert grown is not None
    out = chosen.target
    if BESIDE["exit"] in wanted:
        write_exit(exits.load(place / exits.BESIDE, model, packed=False), model, grown, out, "float32")
    if BESIDE["heads"] in wanted:
        write_heads(medusa.load(place / medusa.BESIDE, model, packed=False), model, grown, out, "float32")
    if BESIDE["skip"] in wanted:
        write_grown_skipped(skip.load_skipped(place / skip.BESIDE, model), model, grown, out, "float32")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(now, "utf-8")


# -- the predictor of cali-ts ------------------------------------------------------------------------------------------


def calibration(chosen: Pair, prompts: int, tokens: int) -> str:
    """Name of the predictor for the pair's exit, below `kept`; trained, or lifted to the grown shape, where missing."""
    small = source(chosen)
    about = f"{digest(small.target / BESIDE['exit'])}-{prompts}x{tokens}"
    name = f"calibration-{about}.safetensors"
    made = kept(small) / name
    if not made.exists():
        _calibrate(small, made, prompts, tokens)
    if small != chosen and not (kept(chosen) / name).exists():
        _lift(small, chosen, made, kept(chosen) / name)
    return name


def _calibrate(chosen: Pair, path: Path, prompts: int, tokens: int) -> None:
    engine = draftwood.load(chosen.target)
    method = Method.parse({"name": "eesd", "gamma": PLACES})
    texts = prompts_of("corpus", prompts, SEED)
    bar = iter(track(range(len(texts)), "recording for cali-ts"))

    def advance(count: int) -> None:
        for _ in range(count):
            next(bar, None)

    next(bar, None)
    drafts = record(engine, method, texts, max_new_tokens=tokens, seed=SEED, advance=advance)
    trained = train_calibration(drafts, seed=SEED)
    whose = fingerprints(method.models(engine.target, []))
    save_calibration(path, trained, fingerprint(engine.target), whose, {"prompts": len(texts), "drafts": len(drafts)})


def _lift(small: Pair, chosen: Pair, path: Path, out: Path) -> None:
    model = checkpoint.load(small.target, packed=False)
    own = exits.load(small.target / exits.BESIDE, model, packed=False)
    trained = load_calibration(path, fingerprint(model), fingerprint(own))
    grown = growth(chosen, model)
    assert grown is not None
    lifted = lift(trained.model, Copies.of(grown.before, grown.config))
    about = json.loads(path.with_suffix(".json").read_text("utf-8"))
    said = {name: about[name] for name in ("prompts", "drafts")} | {"judgement": about["judgement"], "lifted": True}
    whose = grown_fingerprint(model, grown, torch.float32)
    numbers = trained.model_deviation, trained.sample_deviation, trained.theta0
    engine_target = checkpoint.load(chosen.target)
    drafting = fingerprint(exits.find(engine_target, None))
    save_calibration(out, Predictor(lifted, *numbers), whose, drafting, said)


def lift(model: Calibration, copies: Copies) -> Calibration:
    """The predictor that says of a grown model's states what `model` says of the small one's.

    Each of a channel's replicas gets its share of the weight; silent channels get none.
    """
    axis = copies.channels
    known, places = axis.source >= 0, axis.source.clamp(min=0)
    share = (axis.share * known).float()
    return Calibration(
        model.target[:, places] * share, model.draft[places] * share, model.bias, model.mean[places] * known
    )


# -- exits -------------------------------------------------------------------------------------------------------------


def trained_exits(
    chosen: Pair, wanted: Sequence[ExitShape], steps: int, batch: int, train: bool = True
) -> dict[ExitShape, str]:
    """Directories of exits below `kept`, by shape, trained where missing (with `train`), and grown for a grown pair.

    Where growing added layers, an exit behind more layers than were kept first would lie behind all of the added ones:
    such exits are left out, since no one would train them.
    """
    small = source(chosen)
    model = checkpoint.load(small.target, packed=False)
    grown = growth(chosen, model)
    found = {}
    for shape in wanted:
        if shape.layers >= model.n_layers or (grown and grown_layers(shape.layers, grown) != shape.layers):
            continue
        name = f"exits/{shape.name}-{steps}x{batch}-{fingerprint(model)}"
        first, place = kept(small) / name / exits.BESIDE, kept(chosen) / name
        if not _is_done(first, steps):
            if not train:
                continue
            _train(model, small, shape, first, steps, batch)
        if grown is not None and not (place / exits.BESIDE / exits.ABOUT).is_file():
            write_exit(exits.load(first, model, packed=False), model, grown, place, "float32")
        found[shape] = f"{name}/{exits.BESIDE}"
    return found


def _is_done(directory: Path, steps: int) -> bool:
    about = directory / exits.ABOUT
    return about.is_file() and json.loads(about.read_text("utf-8"))["trained"]["steps"] >= steps


def _train(model: Decoder, chosen: Pair, shape: ExitShape, out: Path, steps: int, batch: int) -> None:
    """Train an exit; one that was broken off goes on from its last save."""
    end = min(checkpoint.end_tokens(chosen.target), default=0)
    context = min(CONTEXT, model.context)
    rows = min(ROWS, steps * batch)
    texts = read_texts("corpus", Tokenizer.load(chosen.target), end, context, rows, HELD_OUT, SEED)
    weight = 1.0 if shape.distilled else 0.0
    run = ExitRun(
        model,
        texts,
        Settings(shape.layers, shape.depth, steps, batch, 1, RATE, min(WARMUP, steps), weight, SEED),
        out,
    )
    left = steps - run.progress.step
    for _ in track(run.train(50, steps, torch.bfloat16), f"training {shape.name}", total=left):
        pass


def learned(chosen: Pair, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is known of trained exits, by name: steps, held-out acceptance, weights."""
    small = source(chosen)
    found = {}
    for name in names:
        about = json.loads((kept(small) / name / exits.ABOUT).read_text("utf-8"))
        found[name] = {**about["trained"], "parameters": weights(kept(chosen) / name / exits.WEIGHTS)}
    return found


# -- sizes -------------------------------------------------------------------------------------------------------------


def weights(file: Path) -> int:
    """How many weights a file of tensors holds; 0 where there is none."""
    if not file.is_file():
        return 0
    with safe_open(file, "pt") as opened:
        return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118


def sizes(chosen: Pair, trained: Trained) -> dict[str, int]:
    """Weights of the target and of all that is trained beside it."""
    return {
        "target": sum(map(weights, chosen.target.glob("*.safetensors"))),
        "draft": sum(map(weights, chosen.draft.glob("*.safetensors"))),
        "exit": weights(chosen.target / BESIDE["exit"]),
        "heads": weights(chosen.target / BESIDE["heads"]),
        "calibration": weights(kept(chosen) / trained.calibration),
    }


def trained_for(
    chosen: Pair,
    wanted: Sequence[ExitShape],
    steps: int,
    batch: int,
    prompts: int,
    tokens: int,
    train: bool = True,
) -> tuple[Trained, str]:
    """All that the settings need, made where it is missing, and a digest of it; `home()` keeps what is shared."""
    home().mkdir(parents=True, exist_ok=True)
    companions(chosen)
    about = chosen.target / exits.BESIDE / exits.ABOUT
    if not about.is_file():
        raise SystemExit(f"{chosen.target} has no exit layer beside it; train one with `draftwood train eesd`")
    shipped = int(json.loads(about.read_text("utf-8"))["layers"])
    layers = int(checkpoint.read_config(chosen.target)["num_hidden_layers"])
    name = calibration(chosen, prompts, tokens)
    found = trained_exits(chosen, wanted, steps, batch, train)
    files = [chosen.target / file for file in BESIDE.values()] + [kept(chosen) / name]
    return Trained(name, found, shipped, layers), digest(*files)
