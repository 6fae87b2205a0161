"""Medusa heads (Cai et al. 2024): they predict the tokens after the next one from one hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from draftwood.models.heads import foreign_heads
from draftwood.models.heads.exit import layered
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.modules import Linear, bytes_of

KIND, FILE = "heads", "heads.safetensors"
MAX_HEADS = 16  # of one model
RECORDED_RANKS = 10  # how many of a head's best tokens have a recorded chance of being right


class Heads(nn.Module):
    """Head k of K: h -> out_k(h + SiLU(lift_k h)), logits of the token k places after the next one.

    h [D] is the input of the target's own head at a token. The next token is not an input, so a head's distribution
    does not depend on the drafts before it. A `CausalModel` that uses neither tokens nor a cache: it reads
    `Batch.hidden` [N, D] and returns rows of K * V logits, those of the first head first. With `shared`, out_k is the
    target's own head (`outer`), and only lift_k is trained.
    """

    acceptance: float | None = None  # `Artifact.acceptance`

    def __init__(self, width: int, vocabulary: int, count: int, target: str, outer: nn.Module | None = None) -> None:
        super().__init__()
        self.width, self.vocabulary, self.count, self.target = width, vocabulary, count, target
        self.vocab_size, self.context, self.n_layers = count * vocabulary, 2, 1
        self.lift = nn.ModuleList(Linear(width, width) for _ in range(count))
        own = () if outer is not None else range(count)
        self.out = nn.ModuleList(Linear(width, vocabulary, bias=False) for _ in own)
        self.ranks: list[list[float]] = []  # how often the best, second, ... token of each head was right
        self._outer = [] if outer is None else [outer]  # in a list: it is borrowed, and not one of the parameters

    @staticmethod
    def of(target: Decoder, count: int = 4, shared: bool = False) -> Heads:
        """New heads in float32, which begin as the target's own head: lift is 0, out is a copy."""
        if not 1 <= count <= MAX_HEADS:
            raise ModelError(f"{count} heads cannot be made; give 1 to {MAX_HEADS}")
        target.must_be_plain("given heads")
        outer = target.head if shared else None
        heads = Heads(target.config.hidden_size, target.vocab_size, count, fingerprint(target), outer).to(target.device)
        with torch.no_grad():
            for part in heads.lift.parameters():
                part.zero_()
            for part in heads.out.parameters():
                part.copy_(target.head.weight)
        return heads

    @property
    def shared(self) -> bool:
        """True if out_k is the target's own head."""
        return bool(self._outer)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads, a shared head once."""
        return sum(bytes_of(module) for module in (*self.lift, *self.out, *self._outer))

    def padded_rows(self, count: int) -> int:
        return max(count, getattr(self.lift[0], "fewest_rows", 1))

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        """A cache without planes: heads store nothing."""
        return Cache([], self.device, slots, budget)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if batch.hidden is None:
            raise ModelError("heads read hidden states of their target; they cannot run alone as a draft model")
        logits = self.train_forward(batch.hidden)[:, batch.wanted].transpose(0, 1).flatten(1)
        return logits if logits.dtype == torch.float64 else logits.float()

    def train_forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] of the final norm -> logits [K, ..., V], differentiable."""
        outs = list(self.out) or self._outer * self.count
        each = [out(hidden + nn.functional.silu(lift(hidden))) for lift, out in zip(self.lift, outs, strict=True)]
        return torch.stack(each)

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, on the CPU."""
        return {name: part.detach().cpu() for name, part in self.named_parameters()}


def save(
    weights: Mapping[str, Tensor],
    directory: Path,
    target: str,
    dtype: torch.dtype = torch.bfloat16,
    ranks: Sequence[Sequence[float]] = (),
    **about: Any,
) -> None:
    """Write heads for the target of a fingerprint into a directory; `about` says how they were made."""
    count = sum(name.startswith("lift.") and name.endswith(".bias") for name in weights)
    shared = not any(name.startswith("out.") for name in weights)
    made = {name: part.to(dtype) for name, part in weights.items()}
    settings = {"heads": count, "shared": shared, "ranks": [list(row) for row in ranks]}
    Artifact(KIND, {"target": target}, settings, made, about).save(directory / FILE)


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> Heads:
    """The heads of a directory, in the dtype and on the device of the target that they must belong to.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained and saved.
    """
    directory = Path(directory).expanduser()
    path, decoder = directory / FILE, layered(target)
    whose = fingerprint(decoder)
    if not path.is_file() and (directory / "config.json").is_file():
        file = foreign_heads.medusa(directory, decoder)
    else:
        file = artifact.load(path, KIND, target=whose)
    count, shared = file.settings.get("heads"), file.settings.get("shared")
    if type(count) is not int or not 1 <= count <= MAX_HEADS or not isinstance(shared, bool):
        raise artifact.damaged(path, KIND)
    outer = decoder.parallel.head(decoder.head, decoder.vocab_size) if shared else None
    with torch.device("meta"):
        made = Heads(decoder.config.hidden_size, decoder.vocab_size, count, whose, outer)
    state = {name: part.to(decoder.device, decoder.dtype) for name, part in file.tensors.items()}
    try:
        made.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise artifact.damaged(path, KIND) from error
    made.ranks, made.acceptance = _ranks(file.settings.get("ranks"), count), file.acceptance
    made.requires_grad_(False).eval()
    if packed:
        pack(made, held_alike(decoder.head, decoder.dtype, decoder.device, decoder.draft_quantize))
    return made


def _ranks(known: object, count: int) -> list[list[float]]:
    """Chances by rank from a file, sorted to decrease; empty unless every head has some."""
    if not isinstance(known, list) or len(known) != count:
        return []
    rows = [[float(chance) for chance in row if 0 <= chance <= 1] for row in known if isinstance(row, list)]
    return [sorted(row, reverse=True) for row in rows] if len(rows) == count and all(rows) else []


def find(target: CausalModel, directory: str | None) -> Heads:
    """The heads of a directory; None: those next to the target's weights. They may be given as a draft, too."""
    return load(directory or artifact.find(layered(target).home, KIND, "draft").parent, target)
