"""Trains what drafts for SmolLM2-135M-Instruct, from its file alone: `python -m recipes.smollm2_drafters DATA WORK`.

The model writes texts to the prompts of recipes/shared_prompts.py, by `draftwood train corpus`, and `draftwood train`
makes an EAGLE head, a draft model, Medusa heads and an exit of them: some hours on two cores. Each command goes
on where it was stopped. `--card` measures what was trained on the prompts that are held out, and writes the table of
benchmarks/trained/smollm2/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.real_models import SMOLLM2, fetch
from recipes.shared_prompts import split, write

TEXTS = ("--chat", "--max-new-tokens", "224", "--concurrency", "32")
SAMPLES = (("544", "1"), ("695", "0.8"), ("695", "0.8"), ("695", "0.8"))  # texts of each seed, their temperature
ROWS = ("--distill", "0.9", "--held-out", "8", "--save-every", "40", "--measure-every", "40")
CARD_TOKENS = 48
DRAFTED = 3  # tokens a round, of which a card tells how many were accepted


@dataclass(frozen=True)
class DrafterRecipe:
    """One training: the arguments of its command, and the method that drafts with it."""

    command: str
    arguments: Sequence[str]
    method: Mapping[str, Any]
    option: str | None = None  # of the method, that names its directory; None: it is loaded as a draft model


DRAFTERS = {
    "eagle": DrafterRecipe(
        "eagle",
        ("--vocabulary", "3840", "--unroll", "3", "--steps", "2200", "--batch", "4", "--warmup", "40"),
        {"name": "eagle", "gamma": DRAFTED, "depth": "fixed"},
        "head",
    ),
    "draft": DrafterRecipe(
        "draft",
        ("--layers", "2", "--vocabulary", "8192", "--steps", "60", "--batch", "4", "--warmup", "6", "--rate", "1e-3"),
        {"name": "speculative", "gamma": DRAFTED, "depth": "fixed"},
    ),
    "heads": DrafterRecipe(
        "medusa",
        ("--heads", "2", "--shared", "--steps", "40", "--batch", "2", "--warmup", "4"),
        {"name": "medusa"},
        "heads",
    ),
    "exit": DrafterRecipe(
        "eesd",
        ("--layers", "3", "--steps", "40", "--batch", "2", "--warmup", "4"),
        {"name": "eesd", "gamma": DRAFTED, "depth": "fixed"},
        "exit",
    ),
}


def train(data: Path, work: Path, only: Sequence[str]) -> None:
    """Write the texts and train the drafters that are named, each into a directory of WORK."""
    target, texts = fetch(SMOLLM2), work / "texts.jsonl"
    write(data, work / "prompts")
    parts = [work / f"texts-{seed}.jsonl" for seed in range(len(SAMPLES))]
    for seed, (part, (count, temperature)) in enumerate(zip(parts, SAMPLES, strict=True)):
        prompts = ("--prompts", work / "prompts" / "train.jsonl", "--count", count, "--temperature", temperature)
        draftwood("corpus", target, *prompts, *TEXTS, "--seed", str(seed), "--out", part)
    texts.write_bytes(b"".join(part.read_bytes() for part in parts))
    for name in only:
        made = DRAFTERS[name]
        draftwood(made.command, target, "--data", texts, *ROWS, *made.arguments, "--out", work / name)


def draftwood(command: str, target: Path, *arguments: str | Path) -> None:
    """Run `draftwood train COMMAND`; raises CalledProcessError where it fails."""
    line = [sys.executable, "-m", "draftwood", "train", command, "--target", target, *arguments]
    print(*line[2:], file=sys.stderr, flush=True)
    subprocess.run(list(map(str, line)), check=True)


def card(data: Path, work: Path, only: Sequence[str]) -> Iterator[str]:
    """Lines of a table in Markdown: of each drafter and kind of text the share of its drafts that is accepted."""
    import draftwood

    target, (_, messages) = fetch(SMOLLM2), split(data)
    yield f"| Drafter | MB | T | {' | '.join(messages)} |"
    yield f"| --- | --- | --- |{' --- |' * len(messages)}"
    for name in only:
        made = DRAFTERS[name]
        size = sum(file.stat().st_size for file in (work / name).glob("*.safetensors") if file.stem != "run")
        engine = draftwood.load(target, None if made.option else work / name)
        method = {**made.method, **({made.option: str(work / name)} if made.option else {})}
        for temperature in (0.0, 1.0):
            cells = []
            for texts in messages.values():
                results = [
                    engine.generate(
                        [{"role": "user", "content": text}],
                        method,
                        temperature=temperature,
                        max_new_tokens=CARD_TOKENS,
                        seed=seed,
                    ).metrics
                    for seed, text in enumerate(texts)
                ]
                drafted, accepted, emitted, rounds = (
                    sum(getattr(each, count) for each in results)
                    for count in ("drafted", "accepted", "emitted", "rounds")
                )
                cells.append(f"{accepted / max(1, drafted):.0%}, {emitted / rounds:.2f}")
            yield f"| {name} | {size / 1e6:.1f} | {temperature:g} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("data", type=Path, help="directory of the data sets of recipes/shared_prompts.py")
    parser.add_argument("work", type=Path, help="directory for texts and drafters")
    parser.add_argument("--only", nargs="+", choices=DRAFTERS, default=[*DRAFTERS], help="drafters; default: all")
    parser.add_argument("--card", action="store_true", help="train nothing; measure what was trained")
    given = parser.parse_args()
    if not given.card:
        train(given.data, given.work, given.only)
        return
    for line in card(given.data, given.work, given.only):
        print(line, flush=True)


if __name__ == "__main__":
    main()
