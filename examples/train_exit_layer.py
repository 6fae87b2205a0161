"""Train an exit layer for the embedded target and decode with it: a few minutes on a CPU.

    python examples/train_exit_layer.py [DIRECTORY]

The same for a model of your own, from a shell:

    draftwood train corpus --target MODEL --prompts prompts.txt --given texts.jsonl --out corpus.jsonl
    draftwood train eesd --target MODEL --data corpus.jsonl --out exit
    draftwood generate "..." --target MODEL --method eesd --set exit=exit --set depth=beta-ts
"""

import sys
import tempfile
from pathlib import Path

import torch
from rich.progress import track

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.exit_layer import ExitRun, plot
from draftwood.train.settings import ExitSettings
from draftwood.train.texts import read_texts

STEPS, CONTEXT = 150, 256


def train(out: Path) -> None:
    """Killed and started again with the same directory, it goes on from the last save."""
    source = EMBEDDED / "target"
    target = checkpoint.load(source, packed=False)  # plain weights, from which the exit begins
    texts = read_texts("corpus", Tokenizer.load(source), end=0, context=CONTEXT, rows=8 * STEPS, held_out=16)
    settings = ExitSettings(layers=1, steps=STEPS, batch=8, rate=3e-3, warmup=15, distill=1.0)
    run = ExitRun(target, texts, settings, out)
    left = STEPS - run.progress.step
    for figures in track(run.train(25, 25, torch.bfloat16), "training", total=left):
        if "held_out/acceptance" in figures:
            print(
                f"step {run.progress.step}: loss {figures['loss']:.3f}, "
                f"held-out acceptance {figures['held_out/acceptance']:.3f}"
            )
    plot(run.progress.curve, out / "curve.png")


def decode(exit: Path) -> None:
    """The text is that of plain decoding; only the number of target forwards differs."""
    engine = draftwood.load(EMBEDDED / "target")
    prompt = "Story: Mara was a baker who lived near the"
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 64}
    plain = engine.generate(prompt, "autoregressive", **options)
    print(f"\n{prompt}{plain.text}\n")
    for method in (
        {"name": "eesd", "exit": str(exit)},
        {"name": "eesd", "exit": str(exit), "depth": "beta-ts", "gamma": 8},
        {"name": "eesd", "exit": str(exit), "tree": "4,2,1"},
    ):
        result = engine.generate(prompt, method, **options)
        assert result.tokens == plain.tokens
        shape = ", ".join(f"{key} {value}" for key, value in method.items() if key != "exit")
        print(f"{shape}: {result.metrics.tau:.2f} tokens per target forward")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="exit-"))
    train(place)
    decode(place)
    print(f"\nThe exit layer is in {place}.")
