"""A draft model made of its target: some of its layers and its most frequent tokens, trained to write as it does.

The vocabulary is cut as in FR-Spec (Zhao et al. 2025, arXiv 2502.14856): most of a small draft's time is its head.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
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
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads.exit import layered
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.models.wrapper import DecoderWrapper

KIND, FILE = "draft", "draft.safetensors"
CUT = ("embed.weight", "head.weight", "head.bias")  # have a row for each token


def shape(config: DecoderConfig, kept: Sequence[int], words: int) -> DecoderConfig:
    """The config of a draft with the target's layers `kept` and so many of its tokens, and one that means any other."""
    layers = tuple(config.layers[number] for number in kept) if config.layers else ()
    return replace(config, num_hidden_layers=len(kept), vocab_size=words + 1, layers=layers)


def check_kept(target: Decoder, kept: Sequence[int]) -> None:
    """Raise ModelError where a target cannot be cut to some of its layers."""
    if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= target.n_layers:
        raise ModelError(f"layers {list(kept)} cannot be kept of {target.n_layers}; name some, from 0, in order")
    target.must_have_single_rows("cut to a draft")
    if any(target.config.layer(number).kv_layer is not None for number in range(target.n_layers)):
        raise ModelError(
            "layers of this target read each other's keys and values, so none can be left out; "
            "use `draftwood train eagle`"
        )
    if target.per_layer_embeddings is not None:
        raise ModelError("layers of this target have a table of tokens, which is not cut; use `draftwood train eagle`")


class PrunedDraft(DecoderWrapper, nn.Module):
    """A `CausalModel` in the target's tokens, of which it knows `words` [n]; all others are one token to it.

    `kept` are the numbers of the target's layers that it began with, `target` is the target's fingerprint.
    """

    place: Tensor  # [V] the decoder's id of each of the target's tokens

    def __init__(self, decoder: Decoder, words: Tensor, kept: Sequence[int], vocabulary: int, target: str) -> None:
        super().__init__()
        self.decoder, self.words, self.kept, self.target = decoder, words, tuple(kept), target
        self.vocab_size, self.context, self.n_layers = vocabulary, decoder.context, decoder.n_layers
        self.place = torch.full((vocabulary,), len(words), device=words.device)
        self.place[words] = torch.arange(len(words), device=words.device)
        self._ids = self.place.tolist()

    @staticmethod
    def of(target: Decoder, kept: Sequence[int], words: Tensor) -> PrunedDraft:
        """A new draft with copies of the target's layers, norms, embeddings and head, in float32 for training."""
        check_kept(target, kept)
        target.must_be_plain("cut to a draft")
        words = words.to(target.device)
        with torch.device("meta"):
            decoder = Decoder(shape(target.config, kept, len(words)))
        known = dict(target.named_parameters()) | {"head.weight": target.head.weight}
        state = {}
        for name in decoder.state_dict():
            if name.startswith("layers."):
                _, layer, rest = name.split(".", 2)
                name_there = f"layers.{kept[int(layer)]}.{rest}"
            else:
                name_there = name
            source = known[name_there].detach().float()
            if name in CUT:
                source = torch.cat((source[words], source.mean(0, keepdim=True)))
            state[name] = source.clone()
        decoder.load_state_dict(state, assign=True)
        if target.config.tie_word_embeddings:
            decoder.head.weight = decoder.embed.weight
        return PrunedDraft(decoder, words, kept, target.vocab_size, fingerprint(target))

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        count = len(batch)
        ids = [self._ids[token] for token in batch.numbers[:count]]
        inner = replace(batch, numbers=array("q", ids) + batch.numbers[count:], device_of=self.decoder)
        return self.spread(self.decoder(inner, cache))

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [n, its own vocabulary] -> [n, V] of the target's; ABSENT_LOGIT for tokens that it does not know."""
        out = logits.new_full((len(logits), self.vocab_size), ABSENT_LOGIT)
        out[:, self.words] = logits[:, : len(self.words)]
        return out

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] in its own vocabulary -> logits [B, T, n] of the words, differentiable."""
        return self.decoder.train_forward(tokens)[..., : len(self.words)]

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name and `words`, on the CPU; where matrices are packed they cannot be had any more."""
        self.decoder.must_be_plain("saved")
        return {name: part.detach().cpu() for name, part in self.decoder.named_parameters()} | {
            "words": self.words.cpu()
        }


def save(
    weights: Mapping[str, Tensor],
    directory: Path,
    target: str,
    kept: Sequence[int],
    dtype: torch.dtype = torch.bfloat16,
    **about: Any,
) -> None:
    """Write a draft for the target of a fingerprint into a directory; `about` says how it was made."""
    made = {name: part.to(dtype) if part.is_floating_point() else part for name, part in weights.items()}
    Artifact(KIND, {"target": target}, {"kept": list(kept)}, made, about).save(directory / FILE)


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> PrunedDraft:
    """The draft of a directory, in the dtypes and on the device of the target that it must belong to.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained and saved.
    """
    path, decoder = Path(directory) / FILE, layered(target)
    whose = fingerprint(decoder)
    file = artifact.load(path, KIND, target=whose)
    tensors, kept = dict(file.tensors), file.settings.get("kept")
    words = tensors.pop("words", torch.empty(0))
    fits = words.dtype == torch.int64 and words.dim() == 1 and len(words) > 0
    if not (fits and isinstance(kept, list) and all(type(number) is int for number in kept)):
        raise artifact.damaged(path, KIND)
    if int(words.min()) < 0 or int(words.max()) >= decoder.vocab_size:
        raise artifact.damaged(path, KIND)
    check_kept(decoder, kept)
    with torch.device("meta"):
        made = Decoder(replace(shape(decoder.config, kept, len(words)), tie_word_embeddings=False))
    state = {name: part.to(decoder.device, decoder.dtype) for name, part in tensors.items()}
    if decoder.config.tie_word_embeddings and "embed.weight" in state:
        state["head.weight"] = state["embed.weight"]
    try:
        made.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise artifact.damaged(path, KIND) from error
    made.kv_dtype = decoder.kv_dtype
    draft = PrunedDraft(made, words.to(decoder.device), kept, decoder.vocab_size, whose).requires_grad_(False).eval()
    draft.acceptance = file.acceptance
    if packed:
        pack(draft, held_alike(decoder.head, decoder.dtype, decoder.device, decoder.draft_quantize))
    return draft


def find(target: CausalModel, directory: str | None = None) -> PrunedDraft:
    """The draft of a directory; None: the one next to the target's weights."""
    return load(directory or artifact.find(layered(target).home, KIND, "draft").parent, target)
