"""An early exit (EESD §3.1): a layer, a norm and a head that draft from the output of the target's first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import held_alike, pack
from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact, fingerprint
from draftwood.models.compiled import Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.layers.layer import Sublayers
from draftwood.models.modules import Embedding
from draftwood.models.wrapper import DecoderWrapper

KIND, FILE = "exit", "exit.safetensors"


def shape(config: DecoderConfig, depth: int = 1) -> DecoderConfig:
    """The config of an exit with `depth` layers like the target's last ones, and a head of its own.

    Layers that read the keys of others are not among them, and none has per-layer embeddings.
    """
    last = own_layers(config)
    layers = config.layers[max(0, last - depth) : last]
    plain = replace(config, tie_word_embeddings=False, hidden_size_per_layer_input=0)
    return replace(plain, num_hidden_layers=depth, layers=layers)


def own_layers(config: DecoderConfig) -> int:
    """How many layers there are up to the last that makes keys and values of its own."""
    return max(n + 1 for n in range(config.num_hidden_layers) if config.layer(n).kv_layer is None)


def share(layers: int) -> int:
    """The default number of first layers that drafting uses: a tenth of the depth, at least one (EESD §5.4)."""
    return max(1, round(0.1 * layers))


class ExitLayer(DecoderWrapper, nn.Module):
    """A layer, a norm and a head that read the output of the target's first `layers` layers (N in the paper).

    One layer of its own is what the paper finds best (§5.5); it may have more, or none: a trained head alone (§5.1). A
    `CausalModel` that reads `Batch.hidden` [N, D] and keeps keys and values of its own layers only. `target` is the
    fingerprint of the target that it was made for.
    """

    def __init__(self, decoder: Decoder, layers: int, target: str) -> None:
        super().__init__()
        self.decoder = decoder
        self.layers, self.n_layers, self.target = layers, decoder.n_layers, target
        self.vocab_size, self.context = decoder.vocab_size, decoder.context

    @staticmethod
    def of(target: Decoder, layers: int, depth: int = 1) -> ExitLayer:
        """A new exit with copies of the target's last `depth` layers, norm and head, in float32 for training."""
        check_depth(target, layers, depth)
        target.must_be_plain("given an exit layer")
        decoder = _empty(target.config, depth)
        known = dict(target.named_parameters()) | {"head.weight": target.head.weight}
        known |= {name.replace("per_layer_input.", "feed."): part for name, part in known.items() if "scalar" in name}
        state, last = {}, own_layers(target.config)
        for name in _names(decoder):
            source = name
            if name.startswith("layers."):
                _, layer, rest = name.split(".", 2)
                source = f"layers.{last - depth + int(layer)}.{rest}"
            state[name] = known[source].detach().float().clone()
        _fill(decoder, state)
        return ExitLayer(decoder.to(target.device), layers, fingerprint(target))

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
    """A decoder on the meta device, without embeddings and positions: they are in the states that it reads.

    With depth 0 it has one layer without sublayers: a head alone.
    """
    with torch.device("meta"):
        decoder = Decoder(shape(config, max(1, depth)))
    if not depth:
        decoder.layers[0] = Sublayers()
    decoder.embed = Embedding(0, config.hidden_size).requires_grad_(False)
    decoder.position = None
    return decoder


def _names(decoder: Decoder) -> dict[str, nn.Parameter]:
    return {name: part for name, part in decoder.named_parameters() if not name.startswith("embed.")}


def _fill(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    decoder.load_state_dict({**state, "embed.weight": decoder.embed.weight}, assign=True)


def layered(target: CausalModel) -> Decoder:
    """The target as a decoder that can compute a range of layers; ModelError where it cannot."""
    if isinstance(target, Decoder):
        return target
    what = "a compiled model" if isinstance(target, Compiled) else f"a {type(target).__name__}"
    hint = "leave compile out" if isinstance(target, Compiled) else "give a checkpoint"
    raise ModelError(
        f"{what} computes all of its layers at once, but methods that need layer ranges (early exit) need a family of "
        f"draftwood's own decoder; {hint}"
    )


def check_depth(target: CausalModel, layers: int, depth: int = 1) -> None:
    """Raise ModelError where a target does not have more than `layers` layers, or has fewer than `depth`."""
    own = target.n_layers
    if isinstance(target, Decoder):
        target.must_have_single_rows("given an exit layer")
        own = own_layers(target.config)
    if not 0 <= depth <= own:
        raise ModelError(f"an exit of {depth} layers cannot begin as the last of {own}; give 1")
    if not 1 <= layers < target.n_layers:
        raise ModelError(
            f"an exit after layer {layers} does not fit a target of {target.n_layers} layers; "
            f"give 1 to {target.n_layers - 1}"
        )


def save(
    weights: Mapping[str, Tensor],
    directory: Path,
    target: str,
    layers: int,
    dtype: torch.dtype = torch.bfloat16,
    **about: Any,
) -> None:
    """Write an exit layer for the target of a fingerprint into a directory; `about` says how it was made."""
    depth = 1 + max((int(name.split(".")[1]) for name in weights if name.startswith("layers.")), default=-1)
    made = {name: part.to(dtype) for name, part in weights.items()}
    Artifact(KIND, {"target": target}, {"layers": layers, "depth": depth}, made, about).save(directory / FILE)


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> ExitLayer:
    """The exit layer of a directory, in the dtypes and on the device of the target that it must belong to.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained, grown and saved.
    """
    path, decoder = Path(directory) / FILE, layered(target)
    whose = fingerprint(decoder)
    file = artifact.load(path, KIND, target=whose)
    layers, depth = file.settings.get("layers"), file.settings.get("depth")
    if not isinstance(layers, int) or not isinstance(depth, int):
        raise artifact.damaged(path, KIND)
    check_depth(decoder, layers, depth)
    made = _empty(decoder.config, depth)
    wanted = {name: part.shape for name, part in _names(made).items()}
    if {name: part.shape for name, part in file.tensors.items()} != wanted:
        raise artifact.damaged(path, KIND)
    _fill(made, {name: part.to(decoder.device, decoder.dtype) for name, part in file.tensors.items()})
    made.kv_dtype = decoder.kv_dtype
    exit = ExitLayer(made, layers, whose).requires_grad_(False).eval()
    exit.acceptance = file.acceptance
    if packed:
        pack(exit, held_alike(decoder.head, decoder.dtype, decoder.device, decoder.draft_quantize))
    return exit


def find(target: CausalModel, directory: str | None) -> ExitLayer:
    """The exit layer of a directory; None: the one next to the target's weights."""
    decoder = layered(target)
    decoder.must_have_single_rows("given an exit layer")  # before one is asked for
    return load(directory or artifact.find(decoder.home, KIND, "exit").parent, target)
