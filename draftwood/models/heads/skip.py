"""Self-speculation (Draft & Verify, Zhang et al. 2023): the target without some sublayers as a draft model.

A set of attention and MLP sublayers is skipped; the remaining ones form a decoder that shares the target's weights.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from draftwood.errors import ConfigurationError
from draftwood.models.base import CausalModel
from draftwood.models.cache import Cache
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact, fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads.exit import layered
from draftwood.models.layers.layer import PartReads, Sublayers
from draftwood.models.layers.part import Part
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.modules import bytes_of

log = logging.getLogger(__name__)

KIND = "skip"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Numbers of the layers whose attention, and of those whose MLP, is left out; from 0."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("attention", "mlp"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def check(self, layers: int) -> None:
        """Raise ConfigurationError where a target of `layers` layers has no such sublayers, or no attention is left."""
        for name in ("attention", "mlp"):
            beyond = [layer for layer in getattr(self, name) if not 0 <= layer < layers]
            if beyond:
                raise ConfigurationError(
                    f"the {name} of layer {beyond[0]} cannot be skipped: the target's layers go from 0 to {layers - 1}"
                )
        if len(self.attention) == layers:
            raise ConfigurationError(
                f"all {layers} attention sublayers are skipped, so drafts would not see the text; keep at least one"
            )


def every_other(layers: int, lent: Collection[int] = ()) -> Skipped:
    """The default: every second layer between the first and the last is skipped; where there is none, the last MLP.

    The attention of layers whose keys and values are `lent` to others stays.
    """
    middle = tuple(range(1, layers - 1, 2))
    return Skipped(tuple(n for n in middle if n not in lent), middle) if middle else Skipped((), (layers - 1,))


def lenders(target: Decoder) -> frozenset[int]:
    """The layers whose keys and values later layers read, so that their attention cannot be skipped."""
    read = (target.config.layer(number).kv_layer for number in range(target.config.num_hidden_layers))
    return frozenset(layer for layer in read if layer is not None)


@dataclass(frozen=True)
class SkippedConfig(DecoderConfig):
    """The target's configuration and the sublayers that are left out."""

    skipped: Skipped = Skipped()


class SkippedDecoder(Decoder):
    """A decoder of the remaining sublayers, one layer for each attention; its weights are the target's tensors.

    It is a `SubModel`: it uses the target's cache, where it reads and writes the layers whose attention remains.
    """

    full_model: Decoder

    def __init__(self, target: Decoder, skipped: Skipped) -> None:
        nn.Module.__init__(self)
        skipped.check(target.n_layers)
        target.must_have_single_rows("a draft model of itself")
        if lent := sorted(lenders(target).intersection(skipped.attention)):
            raise ConfigurationError(
                f"the attention of layer {lent[0]} cannot be skipped: later layers read its keys and values; keep it"
            )
        if target.recurrent_shapes:
            raise ConfigurationError(
                "a model with recurrent layers cannot draft for itself by skipping some; take lookup, an exit layer "
                "or a draft model"
            )
        rests: list[Sublayers] = []
        kinds: list[int] = []
        planes: list[int] = []  # of the target's cache
        ahead: list[PartReads] = []  # MLPs before the first attention
        for layer in range(target.n_layers):
            mixer, (feed, joined), *given = target.parts()[layer]
            if layer not in skipped.attention:
                rests.append(Sublayers())
                kinds.append(target.kinds[layer])
                planes.append(target.first_planes[layer])
                rests[-1].parts, ahead = [*ahead, mixer], []
            if layer not in skipped.mlp:
                feeds = (feed, joined and layer not in skipped.attention), *given
                (rests[-1].parts if rests else ahead).extend(feeds)
        own = {"_modules", "_parameters", "_buffers"}
        self.__dict__.update({name: value for name, value in target.__dict__.items() if name not in own})
        for name in own:
            self.__dict__[name] = dict(target.__dict__[name])
        self.__dict__["full_model"] = target  # not registered: it is borrowed
        self.skipped = skipped
        self.first_planes = planes
        self.layers = nn.ModuleList(rests)
        self.kinds, self.n_layers, self.home, self._program = kinds, len(rests), None, None
        values = {field.name: getattr(target.config, field.name) for field in fields(DecoderConfig)}
        self.config = SkippedConfig(**values, skipped=skipped)

    @property
    def skipped_parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.skipped.attention, self.skipped.mlp

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        return self.full_model.new_cache(slots, budget)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads: those of the remaining sublayers, the norm and the head."""
        total = super().weight_bytes
        for rest in self.layers:
            assert isinstance(rest, Sublayers)
            total += sum(bytes_of_part(part) for part, _ in rest.parts)
        return total


def bytes_of_part(part: Part) -> int:
    """Bytes of weights of half a layer."""
    return sum(bytes_of(module, recurse=False) for module in part.modules())


def skipping(target: CausalModel, skipped: Skipped | None) -> SkippedDecoder:
    """The target without some sublayers; None: the set next to its weights, else every other middle layer."""
    decoder = layered(target)
    if skipped is None:
        path = None if decoder.home is None else artifact.companion(decoder.home, KIND)
        if path and path.is_file():
            skipped = load(path, decoder)
        else:
            skipped = every_other(decoder.n_layers, lenders(decoder))
            log.warning("every other sublayer is skipped, which drafts badly; `draftwood tune skip` finds a better set")
    return SkippedDecoder(decoder, skipped)


def save(path: Path, skipped: Skipped, target: str, **about: Any) -> None:
    """Write a set for the target of a fingerprint; `about` says how it was found."""
    settings = {"attention": list(skipped.attention), "mlp": list(skipped.mlp)}
    Artifact(KIND, {"target": target}, settings, about=about).save(path)


def load(path: Path, target: CausalModel) -> Skipped:
    """A saved set; ModelError where it is missing, damaged or of another target."""
    settings = artifact.load(path, KIND, target=fingerprint(target)).settings
    parts = [settings.get(name) for name in ("attention", "mlp")]
    if not all(isinstance(part, list) and all(type(layer) is int for layer in part) for part in parts):
        raise artifact.damaged(path, KIND, "it lists no layers")
    return Skipped(*(tuple(part) for part in parts if part is not None))
