"""The file format of everything learned for a model: exit layers, heads, skip sets, decision models, calibrations.

A file is safetensors: the learned tensors, and in the header one JSON object with `kind`, `models` (role -> fingerprint
of the model that it was learned for), `settings` (what loading needs) and `about` (how it was made, for people). It is
written in one move. The one for a target without a name is KIND/KIND.safetensors in the target's directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.backend.native import NativeEmbedding
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints.files import write_tensors
from draftwood.models.delegate import undelegated
from draftwood.util.safe_parsing import parse_json, short_repr

HEADER_KEY = "draftwood"  # of the header
KINDS = {  # kind -> (what it is, the command that makes it)
    "exit": ("exit layer", "draftwood train eesd"),
    "heads": ("heads", "draftwood train medusa"),
    "eagle": ("EAGLE head", "draftwood train eagle"),
    "dflash": ("DFlash head", "draftwood train dflash"),
    "draft": ("draft model", "draftwood train draft"),
    "skip": ("skip set", "draftwood tune skip"),
    "decision": ("decision model", "draftwood train decision"),
    "calibration": ("calibration", "draftwood train calibration"),
    "int4": ("int4 weights", "draftwood generate --quantize int4"),
}
PUBLISHED = ("heads", "eagle", "dflash")  # kinds that are also read as others publish them, a directory each
FINGERPRINT_ROWS = 64  # of the table of embeddings


@dataclass(frozen=True, slots=True)
class Artifact:
    """The contents of a file; see the module."""

    kind: str
    models: Mapping[str, str]
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acceptance(self) -> float | None:
        """Of a first draft on held-out text the mean of sum_x min(p(x), q(x)), if its training has measured it."""
        trained = self.about.get("trained")
        known = trained.get("acceptance") if isinstance(trained, dict) else None
        return known if isinstance(known, float) and 0 <= known <= 1 else None

    def save(self, path: Path) -> None:
        """Write the file, or leave what was there; ModelError where it cannot be written."""
        facts = {"kind": self.kind, "models": self.models, "settings": self.settings, "about": self.about}
        header = {HEADER_KEY: json.dumps(facts)}  # a single key: safetensors writes several in any order
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, self.tensors, header)
        except (SafetensorError, OSError) as error:
            kept = "; what was there before is whole" if path.exists() else ""
            raise ModelError(f"{path} cannot be written ({error}); make room or name another{kept}") from error


def load(path: Path, kind: str, **models: str) -> Artifact:
    """Load a file of a kind. ModelError where it is missing, damaged, or learned for models of other fingerprints."""
    what, command = KINDS[kind]
    path = path.expanduser()
    if not path.is_file():
        raise ModelError(f"{what} {path} does not exist; make one with `{command}`")
    try:
        with safe_open(path, "pt") as file:
            facts = parse_json((file.metadata() or {})[HEADER_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        artifact = Artifact(facts["kind"], facts["models"], facts["settings"], tensors, facts["about"])
        if not all(isinstance(part, dict) for part in (artifact.models, artifact.settings, artifact.about)):
            raise TypeError("its header is no header of a learned file")
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{what} {path} cannot be read ({short_repr(error, 120)}); make it again with `{command}`"
        ) from error
    if artifact.kind != kind:
        raise ModelError(f"{path} does not hold {what}, but {short_repr(artifact.kind)}; make one with `{command}`")
    for role, here in models.items():
        there = artifact.models.get(role)
        if there != here:
            raise ModelError(
                f"{what} {path} was trained for another {role} (fingerprint {short_repr(there)}, this "
                f"one has {here}); make one for this {role} with `{command}`"
            )
    return artifact


def damaged(path: Path, kind: str, why: object = "it holds something else") -> ModelError:
    """The error for a file whose settings or tensors are not those of its kind."""
    what, command = KINDS[kind]
    return ModelError(f"{what} {path} is damaged ({short_repr(why, 120)}); make it again with `{command}`")


def companion(home: Path, kind: str) -> Path:
    """The path in a target's directory of the file of a kind."""
    return home / kind / f"{kind}.safetensors"


def is_beside(home: Path, kind: str) -> bool:
    """Whether something of a kind is next to the weights in `home`: trained here or, with a config.json, published."""
    path = companion(home, kind)
    return path.is_file() or (kind in PUBLISHED and path.with_name("config.json").is_file())


def find(home: Path | None, kind: str, option: str) -> Path:
    """The file next to the weights in `home`; where there is none, a ModelError that names the method's option."""
    what, command = KINDS[kind]
    if home is None or not is_beside(home, kind):
        where = "the target, which was given as an object," if home is None else f"{home}"
        raise ModelError(
            f"{where} has no {what} next to its weights; make one with `{command}`, and name its "
            f"directory with {option}=DIR"
        )
    return companion(home, kind)


def fingerprints(models: Sequence[CausalModel]) -> str:
    """The fingerprint of all models that draft together; of one, its own."""
    return "+".join(map(fingerprint, models))


def fingerprint(model: CausalModel) -> str:
    """16 hexadecimal digits: of the configuration, the final norm and some embeddings, rounded to bfloat16.

    It does not change with dtype, device, packing and what a draft drafts for. Models without weights of that kind are
    told apart by class, vocabulary and depth.
    """
    model = undelegated(model)
    inner = getattr(model, "decoder", model)
    config = getattr(inner, "config", None)
    about = {}
    if is_dataclass(config) and not isinstance(config, type):  # without knobs that say nothing, as new ones do
        usual = {knob.name: knob.default for knob in fields(config)}
        about = {name: value for name, value in asdict(config).items() if getattr(config, name) != usual[name]}
    shape = [type(inner).__name__, inner.vocab_size, inner.n_layers, about]
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    embed = getattr(inner, "embed", None)
    table = (
        embed(torch.arange(min(FINGERPRINT_ROWS, len(embed)), device="cpu"))
        if isinstance(embed, NativeEmbedding)
        else embed
    )
    for part in (getattr(inner, "norm", None), getattr(table, "weight", table)):
        if isinstance(part, torch.Tensor):
            rounded = part.detach()[:FINGERPRINT_ROWS] if part.dim() > 1 else part.detach()
            digest.update(rounded.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
