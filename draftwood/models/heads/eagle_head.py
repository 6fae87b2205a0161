"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840): a transformer layer drafts token by token from the target's states.

The head reads the embedding of a token and a state of the token before it. If that one is verified, the state is the
target's output after some of its layers (three, as published), fused into one vector; if it is a draft, the state is
the output of the head's own layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.attention import fused
from draftwood.models.backend.program import Program
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, Scores
from draftwood.models.heads.state_head import TokenHead
from draftwood.models.layers.attention import Attention
from draftwood.models.modules import Linear


class EagleAttention(Attention):
    """The mixer of a head's first layer: its input is the token's embedding and the state, both normalised.

    With `norm_first` the residual sum uses the normalised state too.
    """

    def __init__(self, config: DecoderConfig, norm_first: bool = False) -> None:
        super().__init__(config)
        self.qkv = Linear(2 * config.hidden_size, self.qkv.out_features, config.qkv_bias)
        self.input_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.norm_first = norm_first

    def forward(self, x: Tensor, meta: AttentionMetadata, store: Any, reads: Tensor | None = None) -> Tensor:
        return super().forward(super().enter(x, meta) if self.norm_first else x, meta, store)

    def enter(self, x: Tensor, meta: AttentionMetadata) -> Tensor:
        assert meta.beside is not None
        embedded = self.normalise(meta.beside, self.input_norm, None, self.eps)
        return torch.cat((embedded, x if self.norm_first else super().enter(x, meta)), -1)


class EagleNorms(NamedTuple):
    """The norms of an EAGLE head beside those of every head; `speculators` names its settings so.

    `before_residual`: the residual sum uses the normalised state; `before_fc`: the fused states are normalised, side by
    side or with `each` one by one; `output`: the state that goes on is that behind the final norm (EAGLE 3.1).
    """

    before_residual: bool = False
    before_fc: bool = False
    each: bool = False
    output: bool = False


EAGLE_3 = EagleNorms()  # those of its authors


class EagleHead(TokenHead):
    """An EAGLE-3 head: fc fuses the target's states; its first layer reads embeddings beside the state.

    What the layers make of a row goes on to the next row as `norms` say.
    """

    head_kind = "eagle"

    def __init__(
        self,
        config: DecoderConfig,
        reads: Sequence[int],
        width: int,
        vocabulary: int,
        outer: nn.Module | None,
        norms: EagleNorms = EAGLE_3,
        target: str = "",
    ) -> None:
        super().__init__(config, reads, width, vocabulary, outer, target)
        self.norms = norms
        self.carried = self.n_layers if norms.output else config.num_hidden_layers
        self.fc = Linear(self.states, config.hidden_size, bias=False)
        self.fused_norm = nn.Parameter(torch.ones(self.states)) if norms.before_fc else None
        self.first.mixer = EagleAttention(config, norms.before_residual)

    @staticmethod
    def of(target: Decoder, reads: Sequence[int] | None = None, words: Tensor | None = None) -> EagleHead:
        """A new head with one layer, in float32 for training.

        It begins as a copy of the target's last layer with attention, and of its head; fc passes the last state that is
        read. Parameters that the target has in another shape, as of another family, begin at random.
        """
        target.must_be_plain("given an EAGLE head")
        reads = usual_reads(target.n_layers) if reads is None else tuple(reads)
        check_reads(reads, target)
        config = shape(target.config, None if words is None else len(words))
        outer = target.embed
        made = EagleHead(config, reads, target.config.hidden_size, target.vocab_size, outer, target=fingerprint(target))
        each = [target.config.layer(n) for n in range(target.n_layers)]
        last = max((n for n, c in enumerate(each) if c.attends and c.kv_layer is None), default=None)
        if last is None:
            raise ModelError("a model without attention has no EAGLE head: its one layer is like the target's")
        known: dict[str, Tensor] = {
            name.replace(f"layers.{last}.", "layers.0."): part
            for name, part in target.named_parameters()
            if not name.startswith("layers.0.") or last == 0
        }
        known["head.weight"] = target.head.weight if words is None else target.head.weight[words.to(target.device)]
        if (qkv := known.get("layers.0.mixer.qkv.weight")) is not None:  # latent attention has none
            known["layers.0.mixer.qkv.weight"] = torch.cat([qkv] * 2, 1) * 0.5**0.5
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, part in made.named_parameters():
                source = known.get(name.removeprefix("decoder."))
                plain = part.dim() > 1 or target.config.norm == "rms"  # another norm's weights mean something else
                if source is not None and plain and source.shape == part.shape:
                    part.copy_(source)
                elif part.dim() > 1:
                    part.copy_(torch.randn(part.shape, generator=generator) * part.shape[1] ** -0.5)
            made.fc.weight.zero_()[:, -made.width :] = torch.eye(made.width)
        made.words = words
        return made.to(target.device)

    def tell_states_apart(self) -> None:
        """Read the layers again, without weight, where own states would leave no column for the NaN that tells them.

        Norms of the target's states stay what they are.
        """
        times = self.width // self.states + 1
        if times == 1:
            return
        self.reads, self.states = self.reads * times, self.states * times
        self.fc.weight = nn.Parameter(F.pad(self.fc.weight, (0, self.states - self.fc.in_features)), False)
        self.fc.in_features = self.states
        if self.fused_norm is not None:
            self.fused_norm = nn.Parameter(self.fused_norm.repeat(times), False)

    @property
    def program(self) -> Program:
        if self._program is None:
            made, mixer = super().program, self.first.mixer
            made.begin_with(
                *(self.fc, self._outer[0] if self.embed is None else self.embed, mixer.input_norm),
                *(mixer.norm if mixer.norm_first else None, self.fused_norm),
                len(self.reads) if self.norms.each else 1,
            )
        return super().program

    def inputs(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor | None]:
        """As the layers read them; native ones begin with what is given, beside embeddings as they are."""
        return (given if self.decoder.native else self.state(given)), embedded

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states, side by side [..., W], into one [..., D]."""
        if self.fused_norm is not None:
            weight, parts = self.fused_norm.to(states.dtype), len(self.reads) if self.norms.each else 1
            rows = states.view(*states.shape[:-1], parts, -1)
            rows = F.rms_norm(rows, rows.shape[-1:], None, self.decoder.config.rms_norm_eps)
            states = rows.flatten(-2) * weight
        fused_states: Tensor = self.fc(states)
        return fused_states

    def state(self, given: Tensor) -> Tensor:
        """The input [N, D] of the layers from `Batch.hidden` [N, W]: the target's states fused, own ones unchanged."""
        given = given.to(self.computed)
        own = given[:, -1].isnan()
        if bool(own.all()):
            return given[:, : self.width]
        fused_states = self.fuse(given.masked_fill(own[:, None], 0.0))
        return torch.where(own[:, None], given[:, : self.width], fused_states)

    def train_forward(self, states: Tensor, tokens: Tensor, steps: int) -> Tensor:
        """Logits [steps, B, T - 1, V_head] of step k of drafting, differentiable ("training-time test").

        states [B, T, W] of the target at each of tokens [B, T]; row i is of token i + 1. In step k it reads what step
        k - 1 made of the token before, and sees what drafting would have left there: of the last k - 1 tokens the rows
        of steps 2 to k, of those before them the rows of step 1. The first k - 1 rows have nothing to go by.
        """
        x = self.fuse(states[:, :-1]).to(states.dtype)
        metadata, unrolled = self.decoder.train_metadata(x), Unrolled()
        meta = replace(metadata[0], attend=unrolled, beside=self.embedded(tokens[:, 1:]))
        logits = []
        for _ in range(steps):
            made = self.decoder.layers[0](x, meta, None)
            logits.append(self.decoder.logits(made))
            x = F.pad(self.decoder.normed(made) if self.norms.output else made, (0, 0, 1, -1))
        return torch.stack(logits)

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, on the CPU, and `words` where the vocabulary is not the full one."""
        self.decoder.must_be_plain("saved")
        names = {name: part.detach().cpu() for name, part in self.named_parameters() if name != "decoder.embed.weight"}
        return names if self.words is None else {**names, "words": self.words.cpu()}


class Unrolled:
    """The attention of one layer in the drafting steps of training, called step by step; it stores keys and values."""

    def __init__(self) -> None:
        self.past: list[tuple[Tensor, Tensor]] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, how: Scores) -> Tensor:
        """As `fused`, in step s: row i sees rows 0 to i - s + 1 of step 1, and row i - s + n of steps n = 2..s."""
        self.past.append((k, v))
        if len(self.past) == 1:
            return fused(q, k, v, bias, how)
        b, n, heads, width = q.shape
        rows = q.view(b, n, k.shape[1], -1, width).permute(0, 2, 3, 1, 4)  # [B, kv_heads, group, T, D]
        first, values = self.past[0]
        back = len(self.past) - 1
        seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(-back)
        scores = (rows @ first[:, :, None].transpose(-1, -2)).masked_fill(~seen, -torch.inf)
        later = [
            [F.pad(part, (0, 0, back - step, step - back))[:, :, None] for part in pair]
            for step, pair in enumerate(self.past[1:], 1)
        ]
        scores = torch.cat((scores, torch.stack([(rows * keys).sum(-1) for keys, _ in later], -1)), -1)
        weights = (scores * how.factor(width)).float().softmax(-1).to(v.dtype)
        out = weights[..., :n] @ values[:, :, None]
        for place, (_, part) in enumerate(later, n):
            out = out + weights[..., place, None] * part
        return out.permute(0, 3, 1, 2, 4).reshape(b, n, heads * width)


def usual_reads(layers: int) -> tuple[int, ...]:
    """The default layers after which a target is read: after 2, half of them, and all but 3."""
    return tuple(min(max(n, 1), layers - 1) for n in (2, layers // 2, layers - 3))


def check_reads(reads: Sequence[int], target: CausalModel) -> None:
    """Raise ModelError where a target does not have the layers that a head reads, or does not show what they make."""
    if isinstance(target, Decoder):
        target.must_have_single_rows("given a head that reads its states")
    if not reads or not all(type(n) is int and 1 <= n < target.n_layers for n in reads):
        has = reads and all(type(n) is int and 0 <= n <= target.n_layers for n in reads)
        fix = "not before the first or behind the last: use another draft" if has else "give a head of this target"
        raise ModelError(
            f"the head reads the target after layers {', '.join(map(str, reads))}, but a target of "
            f"{target.n_layers} layers can be read after 1 to {target.n_layers - 1}; {fix}"
        )


def shape(config: DecoderConfig, words: int | None) -> DecoderConfig:
    """The config of a new head: one layer of the target's sizes, of the Llama family, and a vocabulary of `words`."""
    return DecoderConfig(
        words or config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
        1,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.max_position_embeddings,
        config.rms_norm_eps,
        config.rope_theta,
        config.rope_scaling,
    )
