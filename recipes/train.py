"""``python -m recipes.train``: train one model of the embedded pair.

The run is saved every few minutes and goes on from there when started again with the same ``--work``. Step count and
decay may be changed then: see Schedule.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor

from draftwood.models.checkpoints.saving import save
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.train.resumable import Schedule, TrainingRun
from recipes.monitor import Monitor
from recipes.rows import CLOSING_SHARES, OPENING_SHARES, end_token, packed_rows
from recipes.tokenizer import save_tokenizer, train_tokenizer

CONTEXT = 512
OPENING_ROWS = 20_000  # of 128 tokens, packed for the opening
CLOSING_ROWS = 10_000  # of 512 tokens, packed for the closing

Rows = np.ndarray[tuple[int, int], np.dtype[np.uint16]]  # packed tokens [rows, context]


def shape(role: str, vocab_size: int) -> DecoderConfig:
    """Return the configuration of the target or the draft."""
    layers, width, inner, heads, kv_heads = {"target": (12, 192, 512, 6, 2), "draft": (2, 128, 352, 4, 2)}[role]
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
    )


def initialise(config: DecoderConfig, seed: int) -> Decoder:
    """Return a new decoder whose weights depend on the seed alone.

    Projections back into the residual stream start at zero, so that every layer
    starts as the identity and a deep narrow model begins to learn at once.
    """
    torch.manual_seed(seed)
    decoder = Decoder(config)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith(("o.weight", "down.weight")):
                parameter.zero_()
            elif name.startswith("layers.") and parameter.ndim == 2:
                parameter.normal_(std=0.7 * parameter.shape[1] ** -0.5)
            elif parameter.ndim == 2:
                parameter.normal_(std=0.05)
    return decoder


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy in nats per token.

    logits [B, T, V], tokens [B, T]. End-of-sequence after end-of-sequence is
    the filling of a row and does not count; the token is number 0.
    """
    targets = tokens[:, 1:]
    targets = targets.masked_fill((targets == 0) & (tokens[:, :-1] == 0), -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())


class PairRun(TrainingRun):
    """A model of the pair in training: a decoder, all of whose weights learn."""

    def __init__(self, config: DecoderConfig, seed: int, path: Path, *, fast: bool = True) -> None:
        """Start anew, or go on from ``path``. ``fast`` compiles the forward pass and computes it in bfloat16."""
        self.decoder = initialise(config, seed)
        super().__init__(self.decoder, path, {}, muon=True)
        self._fast = fast
        forward: Callable[[Tensor], Tensor] = self.decoder.train_forward
        self._forward = torch.compile(forward, dynamic=False) if fast else forward

    def _batch(self, rows: Rows, size: int) -> Tensor:
        context = str(rows.shape[1])
        start = self.progress.cursor.get(context, 0)
        self.progress.cursor[context] = (start + size) % len(rows)
        chosen = np.arange(start, start + size) % len(rows)
        return torch.from_numpy(rows[chosen].astype(np.int64))

    def step(self, rows: Rows, size: int, schedule: Schedule) -> dict[str, float]:
        """Train on the next ``size`` rows; return loss, gradient norm and tokens per second."""
        began = time.perf_counter()
        tokens = self._batch(rows, size)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._fast):
            logits = self._forward(tokens)
        loss = loss_of(logits, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
        norm = self.update(schedule.rate(self.progress.step), tokens.numel(), seconds)
        return {"loss": loss.item(), "norm": norm, "tokens_per_s": tokens.numel() / (time.perf_counter() - began)}

    def measure(self, monitor: Callable[[Callable[[Tensor], Tensor]], dict[str, float]]) -> dict[str, float]:
        """A point of held-out figures, added to the learning curve."""

        def forward(tokens: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self._fast):
                return self.decoder.train_forward(tokens)

        point = {"step": self.progress.step, "tokens": self.progress.tokens} | monitor(forward)
        self.progress.curve.append(point)
        return point


def shared_tokenizer(data: Path) -> Tokenizer:
    """Return the tokenizer of a data directory, training it first where missing."""
    if not (data / "tokenizer.json").exists():
        save_tokenizer(train_tokenizer(), data, CONTEXT)
    return Tokenizer.from_file(str(data / "tokenizer.json"))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(prog="python -m recipes.train", description=__doc__)
    options.add_argument("--role", choices=("target", "draft"), required=True)
    options.add_argument("--out", type=Path, required=True, help="checkpoint directory to write")
    options.add_argument("--work", type=Path, required=True, help="tokenised corpus and saved runs")
    options.add_argument("--steps", type=int, default=3000)
    options.add_argument("--decay-from", type=int, help="default: 70%% of the steps")
    options.add_argument("--warmup", type=int, default=100)
    options.add_argument("--rate", type=float, default=4e-3, help="peak learning rate")
    options.add_argument("--batch", type=int, default=8192, help="tokens in a step")
    options.add_argument("--rows", type=int, default=100_000, help="rows of 256 tokens to pack")
    options.add_argument("--long-rows", type=int, default=40_000, help="rows of 512 to pack")
    options.add_argument("--long-from", type=int, help="first step with rows of 512 tokens")
    options.add_argument("--opening", type=int, nargs=2, default=(0, 0), help="first and end step on exercises")
    options.add_argument("--closing-from", type=int, help="first step with the closing shares; default: none")
    options.add_argument("--measure-every", type=int, default=250)
    options.add_argument("--save-every", type=int, default=250)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--until", type=int, help="stop after this step; the same command without it goes on")
    options.add_argument("--plain", action="store_true", help="float32 without torch.compile")
    return options


def write_checkpoint(run: PairRun, tokenizer: Tokenizer, out: Path) -> None:
    """Write the decoder as a Hugging Face directory in bfloat16."""
    save(
        run.decoder, out, torch.bfloat16, eos_token_id=end_token(tokenizer), dtype="float32"
    )  # what it was measured in
    save_tokenizer(tokenizer, out, CONTEXT)


def main(arguments: list[str] | None = None) -> None:
    """Train until the last step and write the checkpoint."""
    options = parser().parse_args(arguments)
    torch.use_deterministic_algorithms(True)  # else threads add up an embedding's gradients in the order they come
    tokenizer = shared_tokenizer(options.work)
    decay_from = int(0.7 * options.steps) if options.decay_from is None else options.decay_from
    schedule = Schedule(options.rate, options.warmup, options.steps, decay_from)
    long_from = decay_from if options.long_from is None else options.long_from
    short, seed = options.work, options.seed
    saved = options.work / f"{options.role}-{seed}.safetensors"
    run = PairRun(shape(options.role, tokenizer.get_vocab_size()), seed, saved, fast=not options.plain)
    monitor = Monitor(tokenizer, CONTEXT, count=48)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        say = partial(bar.console.print, soft_wrap=True, highlight=False)
        task = bar.add_task(options.role, total=options.steps, completed=run.progress.step)
        last = options.steps if options.until is None else min(options.until, options.steps)
        while run.progress.step < last:
            if options.opening[0] <= run.progress.step < options.opening[1]:
                rows = packed_rows(tokenizer, short, "train", OPENING_ROWS, 128, seed + 20, OPENING_SHARES)
            elif options.closing_from is not None and run.progress.step >= options.closing_from:
                rows = packed_rows(tokenizer, short, "train", CLOSING_ROWS, 512, seed + 30, CLOSING_SHARES)
            elif run.progress.step >= long_from:
                rows = packed_rows(tokenizer, short, "train", options.long_rows, 512, seed + 10)
            else:
                rows = packed_rows(tokenizer, short, "train", options.rows, 256, seed)
            figures = run.step(rows, options.batch // rows.shape[1], schedule)
            step = run.progress.step
            bar.update(task, completed=step, description=f"{options.role} loss {figures['loss']:.3f}")
            if step % 25 == 0:
                shown = " ".join(f"{name} {value:.4g}" for name, value in figures.items())
                say(f"{time.strftime('%H:%M:%S')} step {step} {shown}")
            if step % options.measure_every == 0 or step == last:
                point = run.measure(monitor.measure)
                say(" ".join(f"{name} {value:.4g}" for name, value in point.items()))
                curve = options.work / f"curve-{options.role}-{seed}.json"
                curve.write_text(json.dumps(run.progress.curve, indent=1) + "\n")
            if step % options.save_every == 0 or step == last:
                run.save_state()
    if last == options.steps:
        write_checkpoint(run, tokenizer, options.out)


if __name__ == "__main__":
    main()
