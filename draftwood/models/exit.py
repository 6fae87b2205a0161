"""An early exit: a transformer layer, a norm and a head that read what the target's first layers say (EESD §3.1).

Knows its files and which target it belongs to. Refuses to know who computes the hidden states that it reads, and how
it was trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.compiled import Compiled
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder, DecoderConfig
from draftwood.models.files import read_json
from draftwood.models.identity import fingerprint

BESIDE = "exit"  # the directory of an exit layer, in its target's
ABOUT, WEIGHTS = "exit.json", "exit.safetensors"


def shape(config: DecoderConfig, depth: int = 1) -> DecoderConfig:
    """The shape of the exit of a target: like its last `depth` layers, with a head of its own."""
    windows = config.windows[config.num_hidden_layers - depth : config.num_hidden_layers]
    return replace(config, num_hidden_layers=depth, windows=windows, tie_word_embeddings=False)


def share(layers: int) -> int:
    """How many first layers drafting takes unless told otherwise: a tenth of the depth, at least one (EESD §5.4)."""
    return max(1, round(0.1 * layers))


class Exit(CausalModel, Protocol):
    """A model that reads hidden states of the target after its first `layers` layers."""

    layers: int


class ExitLayer(nn.Module):
    """Layer, norm and head over the target's hidden states after its first `layers` layers, N of the paper.

    One layer of its own is what the paper finds best (§5.5); it may have more. A `CausalModel` that reads
    `Batch.hidden` [B, Q, D] and keeps keys and values of its own layers only. `target` is the fingerprint of the
    target that it was made for.
    """

    def __init__(self, decoder: Decoder, layers: int, target: str) -> None:
        super().__init__()
        self.decoder = decoder
        self.layers, self.n_layers, self.target = layers, decoder.n_layers, target
        self.vocab_size, self.context = decoder.vocab_size, decoder.context

    @staticmethod
    def of(target: Decoder, layers: int, depth: int = 1) -> ExitLayer:
        """A new one that begins as the target's last layers, norm and head, in plain float32 that can be trained."""
        check_depth(target, layers, depth)
        target.must_be_plain("given an exit layer")
        decoder = _empty(target.config, depth)
        known = dict(target.named_parameters()) | {"head.weight": target.head.weight}
        state = {}
        for name in _names(decoder):
            source = name
            if name.startswith("layers."):
                _, layer, rest = name.split(".", 2)
                source = f"layers.{target.n_layers - depth + int(layer)}.{rest}"
            state[name] = known[source].detach().float().clone()
        _fill(decoder, state)
        return ExitLayer(decoder.to(target.device), layers, fingerprint(target))

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads."""
        return self.decoder.weight_bytes

    def cells(self, count: int) -> int:
        return self.decoder.cells(count)

    def new_cache(self, rows: int, capacity: int) -> Cache:
        return self.decoder.new_cache(rows, capacity)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if batch.hidden is None:
            raise ModelError("an exit layer reads hidden states of its target; it cannot run alone as a draft model")
        out: Tensor = self.decoder(batch, cache)
        return out

    def train_forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, T, D] -> logits [B, T, V] in float32, causal, without a cache, differentiable."""
        return self.decoder.logits(self.decoder.train_layers(hidden, 0, self.n_layers))

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, on the CPU; where matrices are packed they cannot be had any more."""
        self.decoder.must_be_plain("saved")
        return {name: part.detach().cpu() for name, part in _names(self.decoder).items()}


def _empty(config: DecoderConfig, depth: int) -> Decoder:
    """A decoder without weights, embeddings and positions: what it reads has both in it."""
    with torch.device("meta"):
        decoder = Decoder(shape(config, depth))
    decoder.embed = nn.Embedding(0, config.hidden_size).requires_grad_(False)
    decoder.position = None
    return decoder


def _names(decoder: Decoder) -> dict[str, nn.Parameter]:
    return {name: part for name, part in decoder.named_parameters() if not name.startswith("embed.")}


def _fill(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    decoder.load_state_dict({**state, "embed.weight": decoder.embed.weight}, assign=True)


def layered(target: CausalModel) -> Decoder:
    """The target, whose layers run apart; raises ModelError for one that computes all of its layers at once."""
    if isinstance(target, Decoder):
        return target
    what = "a compiled model" if isinstance(target, Compiled) else f"a {type(target).__name__}"
    hint = "leave compile out" if isinstance(target, Compiled) else "give a checkpoint"
    raise ModelError(
        f"{what} computes all of its layers at once, but methods that need layer ranges (early exit) need a family of "
        f"draftwood's own decoder; {hint}"
    )


def check_depth(target: CausalModel, layers: int, depth: int = 1) -> None:
    """Raise ModelError where a target has no layers behind the first `layers`, or fewer than `depth` to begin with."""
    if not 1 <= depth <= target.n_layers:
        raise ModelError(f"an exit of {depth} layers cannot begin as the last of {target.n_layers}; give 1")
    if not 1 <= layers < target.n_layers:
        raise ModelError(
            f"an exit after layer {layers} does not fit a target of {target.n_layers} layers; "
            f"give 1 to {target.n_layers - 1}"
        )


def save(
    weights: Mapping[str, Tensor],
    directory: Path,
    target: Decoder | str,
    config: DecoderConfig,
    layers: int,
    dtype: torch.dtype = torch.bfloat16,
    **about: Any,
) -> None:
    """Write an exit layer, each file in one move so that what was there before survives a failure.

    `target` is the model that it belongs to, or its fingerprint; `config` the target's. `about` goes into the JSON.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = {name: part.to(dtype).contiguous() for name, part in weights.items()}
    whose = target if isinstance(target, str) else fingerprint(target)
    stored = str(dtype).removeprefix("torch.")
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    facts = {"layers": layers, "depth": depth, "target": whose, "dtype": stored, **about, "config": asdict(config)}
    aside = directory / f"{WEIGHTS}.partial"
    try:
        save_file(made, aside, metadata={"format": "pt"})
        os.replace(aside, directory / WEIGHTS)
        aside = directory / f"{ABOUT}.partial"
        aside.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
        os.replace(aside, directory / ABOUT)
    except (SafetensorError, OSError) as error:
        aside.unlink(missing_ok=True)
        raise ModelError(
            f"the exit layer cannot be written to {directory} ({error}); what was there before is whole"
        ) from error


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> ExitLayer:
    """The exit layer of a directory, in the dtype and on the device of the target that it must belong to.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained, grown and saved.
    """
    place, decoder = Path(directory), layered(target)
    if not (place / ABOUT).is_file():
        raise ModelError(f"{place} has no {ABOUT}; give the directory that `draftwood train eesd` wrote")
    about = read_json(place / ABOUT)
    layers, depth, whose = about.get("layers"), about.get("depth"), about.get("target")
    if not isinstance(layers, int) or not isinstance(depth, int) or not isinstance(whose, str):
        raise ModelError(f"{place / ABOUT} does not say layers, depth and target; train the exit layer again")
    check_depth(decoder, layers, depth)
    if whose != fingerprint(decoder):
        raise ModelError(
            f"the exit layer in {place} was trained for another target (fingerprint {whose}, this one has "
            f"{fingerprint(decoder)}); train one for this target with `draftwood train eesd`"
        )
    try:
        state = load_file(place / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{place / WEIGHTS} is missing, damaged or truncated ({error}); train the exit layer again"
        ) from error
    made = _empty(decoder.config, depth)
    wanted = {name: part.shape for name, part in _names(made).items()}
    if {name: part.shape for name, part in state.items()} != wanted:
        raise ModelError(f"{place / WEIGHTS} does not hold the parameters of an exit layer; train it again")
    _fill(made, {name: part.to(decoder.device, decoder.dtype) for name, part in state.items()})
    exit = ExitLayer(made, layers, whose).requires_grad_(False).eval()
    if packed:
        pack(exit, holder(decoder.dtype, decoder.device, None))
    return exit


def find(target: CausalModel, directory: str | None) -> ExitLayer:
    """The exit layer of a directory; None: the one that lies beside the target's own weights."""
    if directory is not None:
        return load(directory, target)
    home = layered(target).home
    if home is None or not (home / BESIDE / ABOUT).is_file():
        where = "the target, which was given as an object," if home is None else f"{home}"
        raise ModelError(
            f"{where} has no exit layer beside it; train one with `draftwood train eesd`, and name it with exit=DIR"
        )
    return load(home / BESIDE, target)
