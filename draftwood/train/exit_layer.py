"""Training an exit layer (EESD §3.2): the target's first layers frozen, a layer, norm and head trained above them.

Several processes share a run, of torchrun or on Ray: each computes some rows of every step, gradients are averaged, and
the step is that of one process up to rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads.exit import ExitLayer, check_depth, save, share
from draftwood.models.heads.medusa import RECORDED_RANKS
from draftwood.train.distillation import UNKNOWN, chosen, distillation_loss
from draftwood.train.resumable import Schedule, TrainingRun
from draftwood.train.settings import TrainSettings
from draftwood.train.target_states import PlainReader, TargetReader
from draftwood.train.texts import Texts, Tokens, tokens_of
from draftwood.util import plots

STATE = "run.safetensors"
MAX_CHAIN = 32  # drafted tokens of a round that an expected gain looks at
SAVE_SECONDS = 120  # after which a run is saved whatever its settings say
HELD_OUT_FIGURES = ("loss", "acceptance", "agreement")
Place = tuple[Tensor, Tensor, Tensor | None]


class _ForwardModule(nn.Module):
    """The module that DistributedDataParallel wraps, which synchronises gradients of `forward` only."""

    def __init__(self, exit: Any) -> None:
        super().__init__()
        self.exit = exit

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.exit.train_forward(hidden)
        return logits


@dataclass(frozen=True)
class Rank:
    """The number of this process among those that share a run, and their count."""

    number: int = 0
    count: int = 1

    @staticmethod
    def here() -> Rank:
        return Rank(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))

    def sum(self, values: Any, device: torch.device) -> Any:
        """An array of float64, added up over all processes, which must all ask for it; through `device`."""
        if self.count == 1:
            return values
        total = torch.from_numpy(np.asarray(values, np.float64)).to(device, copy=True)
        torch.distributed.all_reduce(total)
        return total.cpu().numpy()


class ExitRun(TrainingRun):
    """An exit layer in training. It can be killed at any time and resumes from its last save, bit for bit on a CPU."""

    settings: Any  # ExitSettings
    kind = "exit"  # of the file that it writes, a key of `artifact.KINDS`
    numbered = False  # whether figures of a single head are numbered
    on_save: Callable[[Mapping[str, float]], None] = staticmethod(lambda trained: None)  # told how far it is

    def __init__(
        self,
        target: Decoder,
        texts: Texts,
        settings: TrainSettings,
        out: Path,
        rank: Rank = Rank(),
        read: TargetReader | None = None,
    ) -> None:
        """Start anew, or resume from `out` where a run with the same settings was saved.

        `read` reads the target; None: through PyTorch.
        """
        settings = self.settled(target, settings)
        settings.check(rank.count)
        if not len(texts.train) or not len(texts.held_out):
            raise ConfigurationError("there is nothing to train on, or nothing is held out; give more text")
        self.settings, context = settings, texts.train.shape[1]
        if context < self.min_context:
            raise ConfigurationError(
                f"rows of {context} tokens are too short to learn to draft {len(self.factors)} in a row; give a "
                f"context of at least {self.min_context}, or train to draft fewer"
            )
        self.target, self.texts, self.out, self.rank = target, texts, out, rank
        self.read = read or PlainReader(target, self._autocast)
        self.exit = self.made().train()
        self.schedule = Schedule(settings.rate, settings.warmup, settings.steps)
        whose = {"target": fingerprint(target), "data": texts.digest, "context": context}
        whose |= {"rows": len(texts.train), "held_out": len(texts.held_out)}
        super().__init__(self.exit, out / STATE, {**self.settings.model_dump(), **whose})
        self._forward: Any = _ForwardModule(self.exit)
        if rank.count > 1:
            step = self.progress.step
            if float(rank.sum(step, target.device)) != rank.count * step:
                raise ConfigurationError(f"processes found different runs in {out}; name a directory that all share")
            here = [target.device] if target.device.type == "cuda" else None
            self._forward = nn.parallel.DistributedDataParallel(self._forward, device_ids=here)

    @classmethod
    def settled(cls, target: Decoder, settings: Any) -> Any:
        """The settings with what the target decides; ModelError where they do not fit it."""
        if settings.layers is None:
            settings = settings.model_copy(update={"layers": share(target.n_layers)})
        check_depth(target, settings.layers, settings.depth)
        return settings

    def made(self) -> Any:
        """The module to train, as it is before the first step; it has the methods of `ExitLayer`."""
        return ExitLayer.of(self.target, self.settings.layers, self.settings.depth)

    @property
    def done(self) -> bool:
        return bool(self.progress.step >= self.settings.steps)

    def save(self, stored: torch.dtype = torch.bfloat16) -> None:
        """Write the run and the exit layer as it stands; only the first process does.

        Its figures are the last that were measured, which say after how many steps.
        """
        if self.rank.number:
            return
        self.save_state()
        held_out = dict((self.progress.curve or [{}])[-1])
        trained = {"steps": self.progress.step, "tokens": self.progress.tokens, "measured": held_out.pop("step", 0.0)}
        trained |= held_out
        self.write(stored, trained)
        self.on_save({**trained, "seconds": self.progress.seconds})

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        """Write what is trained as it stands, without the run; `trained` says how far it is."""
        save(self.exit.weights(), self.out, self.facts["target"], self.settings.layers, stored, trained=trained)

    def rows(self, step: int) -> Tokens:
        """The rows of a step: each epoch in an order of its own, which depends on the seed alone."""
        count, size = len(self.texts.train), self.settings.batch
        places = range(step * size, (step + 1) * size)
        orders = {epoch: self._order(epoch) for epoch in {place // count for place in places}}
        return self.texts.train[[orders[place // count][place % count] for place in places]]

    def _order(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.texts.train))

    def _autocast(self) -> Any:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.target.device.type, torch.bfloat16)

    @property
    def reads(self) -> Sequence[int]:
        """The layers of the target after which its states are read."""
        return (self.settings.layers,)

    def inputs(self, states: Mapping[int, Tensor], tokens: Tensor) -> Any:
        """The inputs of the module from the target's states [B, T, D] after the layers that it reads.

        That after the last layer is normalised.
        """
        return states[self.settings.layers].to(self.exit.dtype)

    def _read(self, tokens: Tensor, answered: bool) -> tuple[Any, Tensor | None]:
        """The module's inputs for tokens [B, T] and, if asked for, the target's log-probabilities [B, T, V]."""
        states, answer = self.read(tokens, self.reads, answered)
        return self.inputs(states, tokens), answer

    def step(self) -> dict[str, float]:
        """Train on the next rows; returns loss and gradient norm."""
        began = time.perf_counter()
        settings, rank, place = self.settings, self.rank, self.target.device
        rows = self.rows(self.progress.step).astype(np.int64)
        counted = [int(here.sum()) for here in self.counted(torch.from_numpy(rows).to(place))]
        places = [max(1, count) / rank.count for count in counted]  # gradients of processes are averaged
        total = 0.0
        parts = np.split(rows[rank.number :: rank.count], settings.accumulate)
        for number, part in enumerate(parts):
            learned = torch.from_numpy(part).to(place)
            hidden, answer = self._read(tokens_of(learned), settings.distill > 0)
            alone = rank.count > 1 and number + 1 < len(parts)
            with self._forward.no_sync() if alone else nullcontext():
                with self._autocast():
                    logits = self._forward(hidden)
                loss = self.loss(logits.float(), learned, answer, places)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        mean = float(rank.sum(total, place)) / rank.count
        rate = self.schedule.rate(self.progress.step)
        return {"loss": mean, "norm": self.update(rate, rows.size, time.perf_counter() - began)}

    @property
    def factors(self) -> list[float]:
        """Weight of the loss of each head; an exit counts as a single head."""
        return [1.0]

    @property
    def min_context(self) -> int:
        """The fewest tokens of a row of which every head can learn: one that is read, then those that are drafted."""
        return len(self.factors) + 1

    def loss(self, logits: Tensor, rows: Tensor, answer: Tensor | None, places: Sequence[float]) -> Tensor:
        """sum_k factor_k L_k, L_k the mean over places of `distillation_loss`.

        The mean is a sum by `places`[k], so that the losses of a step's parts add up. logits as the module gives them,
        rows [B, T] as of `Texts`, answer = log p [B, T, V] of the next token.
        """
        loss, settings = logits.new_zeros(()), self.settings
        each = zip(self.factors, places, self._places(logits, rows, answer), strict=True)
        for factor, count, (predicted, ahead, log_p) in each:
            one = distillation_loss(predicted, ahead, log_p, settings.distill, settings.divergence)
            loss = loss + factor / count * one
        return loss

    def counted(self, rows: Tensor) -> list[Tensor]:
        """For each head the places [B, T - 1] of rows [B, T] that count: where the next token is to be learned and is
        no padding (an end after an end)."""
        ends = self.texts.is_end(tokens_of(rows))
        return [~(ends[:, 1:] & ends[:, :-1]) & (rows[:, 1:] >= 0)]

    def _places(self, logits: Tensor, rows: Tensor, answer: Tensor | None) -> list[Place]:
        """For each head, at the places that count: logits [n, V], the token to predict [n], log p [n, V] or None."""
        (here,) = self.counted(rows)
        return [(chosen(logits, here), rows[:, 1:][here], None if answer is None else answer[:, :-1][here])]

    @torch.no_grad()
    def measure(self, rows: int = 4) -> dict[str, float]:
        """Held-out figures, added to the curve; of heads those of head k as `loss_k`, of head 1 plain too.

        `progress.ranks` [head][rank] becomes how often a head's best, second, ... token is right.

        loss: cross-entropy in nats of the tokens that it knows; acceptance: mean of sum_x min(p(x), q(x)); agreement:
        share of places where both have the same most probable token of those that it knows. `rows` are computed at a
        time.
        """
        rank, device = self.rank, self.target.device
        sums, places = np.zeros((2, len(self.factors), 3))
        ranked = np.zeros((len(self.factors), min(RECORDED_RANKS, self.target.vocab_size)))
        for first in range(rank.number * rows, len(self.texts.held_out), rank.count * rows):
            part = self.texts.held_out[first : first + rows].astype(np.int64)
            learned = torch.from_numpy(part).to(device)
            hidden, answer = self._read(tokens_of(learned), True)
            with self._autocast():
                logits = self.exit.train_forward(hidden)
            for k, (each, ahead, log_p) in enumerate(self._places(logits.float(), learned, answer)):
                assert log_p is not None
                log_q = torch.log_softmax(each, -1)
                sums[k, 0] += F.nll_loss(log_q, ahead, reduction="sum").item()
                sums[k, 1] += torch.minimum(log_p, log_q).exp().sum().item()
                sums[k, 2] += (log_p.argmax(-1) == log_q.argmax(-1)).sum().item()
                known = min(ranked.shape[1], log_q.shape[-1])  # a head may know few tokens
                best = log_q.topk(known, -1).indices == ahead[:, None]
                ranked[k, :known] += best.sum(0).cpu().numpy()
                places[k] += int((ahead != UNKNOWN).sum()), len(ahead), len(ahead)
        sums, ranked, places = (rank.sum(values, device) for values in (sums, ranked, places))
        self.progress.ranks = (ranked / places[:, 1:2].clip(min=1)).round(4).tolist()
        heads = [dict(zip(HELD_OUT_FIGURES, row.tolist(), strict=True)) for row in sums / places.clip(min=1)]
        point = {"step": float(self.progress.step), **heads[0]}
        if len(heads) > 1 or self.numbered:
            point |= {f"{name}_{k}": value for k, figures in enumerate(heads, 1) for name, value in figures.items()}
        point["gain"] = self.expected_gain(point)
        self.progress.curve.append(point)
        return point

    @property
    def layers_below(self) -> int:
        """First layers of the target that are computed for each drafted token."""
        layers: int = self.settings.layers
        return layers

    @property
    def cost(self) -> float:
        """The cost of a drafted token in forwards of the target: about the share of weights that are read for it."""
        tied = self.target.config.tie_word_embeddings
        below = sum(part.numel() for part in self.target.layers[: self.layers_below].parameters())
        return (below + _weights_read(self.exit, tied)) / _weights_read(self.target, tied)

    def expected_gain(self, point: Mapping[str, float]) -> float:
        """The speed-up over plain decoding at temperature 1 that held-out figures promise: of the best chain.

        Figures of acceptance are those of each step of drafting where there are several; the last one goes on, up to
        the `longest` chain.
        """
        rates = [point[name] for k in range(1, len(self.factors) + 1) if (name := f"acceptance_{k}") in point]
        rates = rates or [point["acceptance"]]
        best = tokens = reach = 1.0
        for gamma in range(1, self.longest + 1):
            reach *= rates[min(gamma, len(rates)) - 1]
            tokens += reach
            best = max(best, tokens / (1 + self.drafting_time(gamma)))
        return best

    @property
    def longest(self) -> int:
        """Most tokens of a chain that a round can draft, or that are looked at."""
        return MAX_CHAIN

    def drafting_time(self, tokens: int) -> float:
        """The time to draft so many tokens, in forwards of the target."""
        return tokens * self.cost

    def stalled(self, patience: int | None) -> bool:
        """Whether held-out acceptance did not rise in the last `patience` measurements; None: never."""
        rates = [point["acceptance"] for point in self.progress.curve]
        return patience is not None and len(rates) > patience and max(rates[-patience:]) <= max(rates[:-patience])

    def train(
        self, save_every: int, measure_every: int, stored: torch.dtype, patience: int | None = None
    ) -> Generator[dict[str, float], None, None]:
        """Steps up to the last, each with its figures and, where there are any, the held-out ones.

        Saves every `save_every` steps, every two minutes, and when it is interrupted or given up. With `patience` it
        ends where it has `stalled`.
        """
        progress, saved, due = self.progress, self.progress.step, time.monotonic() + SAVE_SECONDS
        if not progress.curve:
            self.measure()
        elif (progress.step % measure_every == 0 or self.done) and progress.curve[-1]["step"] < progress.step:
            self.measure()  # it was interrupted before it could
            self.save(stored)
        try:
            while not self.done and not self.stalled(patience):
                figures = self.step()
                if progress.step % measure_every == 0 or self.done:
                    figures |= {f"held_out/{name}": value for name, value in self.measure().items()}
                ends = self.done or self.stalled(patience)
                if progress.step % save_every == 0 or ends or time.monotonic() > due:
                    self.save(stored)
                    saved, due = progress.step, time.monotonic() + SAVE_SECONDS
                yield figures
        except (KeyboardInterrupt, GeneratorExit):
            if progress.step > saved:
                self.save(stored)
            raise


def _weights_read(model: nn.Module, tied: bool) -> int:
    """Weights that a forward reads: of a table of embeddings few rows, unless it is `tied`, so the head's too."""
    named = model.named_parameters()
    return sum(part.numel() for name, part in named if tied or not name.endswith("embed.weight"))


def plot(curve: list[dict[str, float]], path: Path) -> bool:
    """Draw the held-out figures of a run; False where matplotlib is not installed."""
    if not plots.available():
        return False

    def paint(canvas: Any) -> None:
        shares, losses = canvas.subplots(2, sharex=True)
        steps = [point["step"] for point in curve]
        shares.plot(steps, [point["acceptance"] for point in curve], "o-", label="acceptance, sum min(p, q)")
        shares.plot(steps, [point["agreement"] for point in curve], "s-", label="same most probable token")
        shares.set(ylabel="held-out share of places", ylim=(0, 1))
        shares.legend(loc="lower right")
        losses.plot(steps, [point["loss"] for point in curve], "o-", color=plots.FAINT)
        losses.set(xlabel="step", ylabel="held-out loss, nats per token")

    plots.save(plots.figure(paint, 6, 4.4), path, "An exit's training")
    return True
