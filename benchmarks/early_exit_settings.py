"""What benchmarks/early_exit.py compares: methods with their options, group by group, and what each is about.

Knows names and options. What was trained for a pair is named below `KEPT`, which stands for the directory where it is
kept, so that no place of one machine gets into results. Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

from beams_settings import Setting

PLAIN = "plain"
TEMPERATURES = (0.0, 1.0)
MOST = 10  # EESD §4.1: drafting step K; controllers end rounds before it
SWEEP = (1, 2, 3, 4, 6, 8, 10)  # Figure 3
TREES = ((2, 1, 1, 1, 1, 1), (3, 1, 1, 1, 1), (2, 2, 1, 1))  # of Table 7, whose shape the paper does not say
KEPT = "{kept}"

# part -> groups, each of which has turns of its own; `breakdown` reads the runs of Tables 1-3
PARTS: dict[str, tuple[str, ...]] = {
    "tables": ("tables",),
    "ablations": ("controllers", "generality"),
    "exits": ("exits",),
    "tree": ("tree",),
    "breakdown": ("tables",),
}


@dataclass(frozen=True, slots=True)
class ExitShape:
    """An exit that is trained for the benchmark: behind N layers of the target, of `depth` layers itself."""

    layers: int
    depth: int = 1
    distilled: bool = True  # on the target's distribution; else cross-entropy on given text alone

    @property
    def name(self) -> str:
        return f"n{self.layers}-d{self.depth}-{'distilled' if self.distilled else 'text'}"

    @property
    def label(self) -> str:
        return f"N={self.layers}, {self.depth} exit layer{'s' * (self.depth > 1)}"


@dataclass(frozen=True, slots=True)
class Trained:
    """Names of what was trained, below `KEPT`; `exits` by shape."""

    calibration: str
    exits: Mapping[ExitShape, str]
    shipped: int = 1  # layers of the target before the exit that lies beside it
    layers: int = 12  # of the target

    @property
    def controllers(self) -> dict[str, str]:
        """Controllers that are compared, by name."""
        return {
            "beta-ts": "beta-ts",
            "cali-ts": f"cali-ts:{KEPT}/{self.calibration}",
            "speedup-ts": "speedup-ts",
            "optimal-stopping": "optimal-stopping",
            "confidence": "confidence",
        }

    def only_model(self) -> str:
        """Cali-TS whose samples count for nothing."""
        return f"cali-ts:path={KEPT}/{self.calibration},sample_deviation=10"

    def only_samples(self) -> str:
        """Cali-TS whose predictor counts for nothing, but before the first verified round."""
        return f"cali-ts:path={KEPT}/{self.calibration},model_deviation=10"


Row = tuple[str, str, dict[str, Any], dict[str, Any]]  # family, label, method, about


def _eesd(label: str, about: Mapping[str, Any] | None = None, **options: Any) -> Row:
    return "eesd", label, {"name": "eesd", "gamma": MOST, **options}, {"trains": ["exit"], **(about or {})}


def _controlled(trained: Trained, names: Sequence[str] | None = None, **options: Any) -> list[Row]:
    """EESD under each controller."""
    found = []
    for name, depth in trained.controllers.items():
        if names is None or name in names:
            trains = ["exit", "calibration"] if name == "cali-ts" else ["exit"]
            found.append(_eesd(f"eesd + {name}", {"controller": name, "trains": trains}, depth=depth, **options))
    return found


def _vanilla(label: str, about: Mapping[str, Any] | None = None, **options: Any) -> Row:
    return "vanilla", label, {"name": "speculative", **options}, {"trains": ["draft"], **(about or {})}


def _self(label: str, about: Mapping[str, Any] | None = None, **options: Any) -> Row:
    return "self-spec", label, {"name": "self-spec", **options}, {"trains": [], **(about or {})}


def tables(trained: Trained) -> list[Row]:
    """Tables 1-3: the methods against each other."""
    return [
        _vanilla("vanilla, K=4", gamma=4),
        _vanilla("vanilla, K=10", gamma=10),  # the paper's K
        _self("self-spec"),
        ("medusa", "medusa", {"name": "medusa"}, {"trains": ["heads"]}),
        *_controlled(trained),
    ]


def controllers(trained: Trained) -> list[Row]:
    """Figure 3: fixed K against controllers; Table 4: what is left when a part is taken away."""
    rows = [_eesd(f"eesd, K={k}", {"fixed": k}, gamma=k) for k in SWEEP]
    rows += _controlled(trained)
    cali = {"trains": ["exit", "calibration"]}
    rows += [
        _eesd("eesd + cali-ts without sampling prediction", {**cali, "without": True}, depth=trained.only_model()),
        _eesd("eesd + cali-ts without model prediction", {**cali, "without": True}, depth=trained.only_samples()),
        _eesd("eesd + adaptive-confidence", {"controller": "adaptive-confidence"}, depth="adaptive-confidence"),
    ]
    rest = list(range(trained.shipped, trained.layers))
    options = {"attention": rest, "mlp": rest, "gamma": MOST, "depth": "beta-ts"}
    rows.append(_self("first N layers and the target's own head, untrained", {"without": True}, **options))
    for shape, what in ((ExitShape(1), "distilled"), (ExitShape(1, distilled=False), "on text alone")):
        if shape in trained.exits:
            place = f"{KEPT}/{trained.exits[shape]}"
            rows.append(_eesd(f"short exit, {what}, + beta-ts", {"without": True}, depth="beta-ts", exit=place))
    return rows


def generality(trained: Trained) -> list[Row]:
    """Table 5: controllers on a draft model and on self-speculation."""
    rows = [_vanilla(f"vanilla, K={k}", {"of": "vanilla", "fixed": k}, gamma=k) for k in (4, 10)]
    rows.append(_self("self-spec, adaptive-confidence", {"of": "self-spec", "fixed": 0}))
    rows.append(_self("self-spec, K=4", {"of": "self-spec", "fixed": 4}, gamma=4, depth="fixed"))
    for name in ("beta-ts", "speedup-ts", "optimal-stopping"):
        options = {"gamma": MOST, "depth": name}
        rows.append(_vanilla(f"vanilla + {name}", {"of": "vanilla", "controller": name}, **options))
        rows.append(_self(f"self-spec + {name}", {"of": "self-spec", "controller": name}, **options))
    return rows


def exits(trained: Trained) -> list[Row]:
    """Figures 4 and 5: exits behind more layers, and of more layers, all trained equally long."""
    return [
        _eesd(
            f"{shape.label} + beta-ts",
            {"layers": shape.layers, "depth": shape.depth, "exit": name},
            depth="beta-ts",
            exit=f"{KEPT}/{name}",
        )
        for shape, name in trained.exits.items()
        if shape.distilled
    ]


def tree(trained: Trained) -> list[Row]:
    """Table 7: chains and trees under the controllers."""
    chosen = ("beta-ts", "cali-ts", "speedup-ts", "optimal-stopping")
    rows = _controlled(trained, chosen)
    for widths, name in product(TREES, ("fixed", *chosen)):
        depth = trained.controllers.get(name, name)
        text = ",".join(map(str, widths))
        about = {"tree": text, "controller": name, "trains": ["exit"] + ["calibration"] * (name == "cali-ts")}
        rows.append(_eesd(f"eesd, tree {text}, {name}", about, tree=list(widths), depth=depth))
    return rows


GROUPS: dict[str, Callable[[Trained], list[Row]]] = {
    "tables": tables,
    "controllers": controllers,
    "generality": generality,
    "exits": exits,
    "tree": tree,
}


def settings(group: str, trained: Trained, temperature: float, digest: str) -> list[Setting]:
    """A group's settings at a temperature, plain decoding first; `digest` tells runs of other weights apart.

    So does what the group consists of: a setting that is added later would not have run in the same turns.
    """
    plain: Row = (PLAIN, PLAIN, {"name": "autoregressive"}, {"trains": []})
    rows = (plain, *GROUPS[group](trained))
    whole = sha256(json.dumps([digest, [method for _, _, method, _ in rows]]).encode()).hexdigest()[:12]
    return [
        Setting(
            f"{group} {whole}",
            family,
            label,
            method,
            {"temperature": temperature},
            about={"temperature": temperature, **about},
        )
        for family, label, method, about in rows
    ]


def shapes(behind: Sequence[int], depths: Sequence[int]) -> list[ExitShape]:
    """Exits to train: behind each of `behind` layers, of each depth behind the first, and one on text alone."""
    first = behind[0]
    found = [*(ExitShape(n) for n in behind), *(ExitShape(first, depth) for depth in depths)]
    return list(dict.fromkeys([*found, ExitShape(first, distilled=False)]))
