"""Trains what drafts for SmolLM2-135M-Instruct, from its file alone: `python -m recipes.smollm2_drafters DATA WORK`.

The model writes texts to the prompts of recipes/shared_prompts.py, by `draftwood train corpus`, and `draftwood train`
makes an EAGLE head, a draft model, Medusa heads and an exit of them; the head goes on with texts to messages that the
model wrote, too (recipes/own_prompts.py), then with texts at temperature 1, by what sampling rejects. Some hours on two
cores. Each command goes on where it was stopped. `--card` measures what was trained on the prompts that are held out,
for the table of benchmarks/trained/smollm2/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes import own_prompts
from recipes.real_models import SMOLLM2, fetch
from recipes.shared_prompts import split, write

TEXTS = ("--chat", "--max-new-tokens", "224", "--concurrency", "32")
SAMPLES = (("544", "1"), ("695", "0.8"), ("695", "0.8"), ("695", "0.8"))  # texts of each seed, their temperature
OWN_PROMPTS = 4000  # messages that the model writes
OWN_TEXTS = ("--chat", "--max-new-tokens", "144", "--concurrency", "32")
OWN_SAMPLES = (("1823", "0.8"), ("700", "0"))  # texts to the second half of the messages, and to the first
SAMPLED_TEXTS, SAMPLED_SEED = ("2472", "1"), 21  # of the last run of the head
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
    further: Sequence[str] = ()  # arguments of a second run, which begins with what the first one made
    sampled: Sequence[str] = ()  # of a third run, on texts at temperature 1


DRAFTERS = {
    "eagle": DrafterRecipe(
        "eagle",
        ("--vocabulary", "3840", "--unroll", "3", "--steps", "2200", "--batch", "4", "--warmup", "40"),
        {"name": "eagle", "gamma": DRAFTED, "depth": "fixed"},
        "head",
        (
            "--vocabulary",
            "6144",
            "--unroll",
            "3",
            "--steps",
            "1150",
            "--batch",
            "4",
            "--warmup",
            "40",
            "--rate",
            "7e-4",
        ),
        (
            *("--vocabulary", "8192", "--unroll", "3", "--steps", "1600", "--batch", "4", "--warmup", "20"),
            *("--rate", "5e-4", "--distill", "1", "--divergence", "tv", "--held-out", "32"),
        ),
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
    for seed, (part, sample) in enumerate(zip(parts, SAMPLES, strict=True)):
        write_texts(target, work / "prompts" / "train.jsonl", sample, seed, part, TEXTS)
    join(parts, texts)
    for name in only:
        made, out = DRAFTERS[name], work / name
        first = work / f"{name}-first" if made.further else out
        draftwood(made.command, target, "--data", texts, *ROWS, *made.arguments, "--out", first)
        if made.further:
            more, second = own_texts(target, texts, work), work / f"{name}-second" if made.sampled else out
            draftwood(made.command, target, "--data", more, *ROWS, *made.further, "--start", first, "--out", second)
        if made.sampled:
            drawn = work / "sampled-texts.jsonl"
            write_texts(target, work / "prompts" / "train.jsonl", SAMPLED_TEXTS, SAMPLED_SEED, drawn, TEXTS)
            draftwood(made.command, target, "--data", drawn, *ROWS, *made.sampled, "--start", second, "--out", out)


def own_texts(target: Path, texts: Path, work: Path) -> Path:
    """A file of `texts`, and of those that the model writes to messages of its own."""
    messages, more = work / "own-prompts.jsonl", work / "more-texts.jsonl"
    if not messages.is_file():
        own_prompts.write(str(target), OWN_PROMPTS, messages)
    lines = messages.read_text("utf-8").splitlines(keepends=True)
    halves = lines[len(lines) // 2 :], lines[: len(lines) // 2]
    parts = [work / f"own-texts-{number}.jsonl" for number in range(len(halves))]
    for number, (part, half, sample) in enumerate(zip(parts, halves, OWN_SAMPLES, strict=True)):
        prompts = work / f"own-prompts-{number}.jsonl"
        prompts.write_text("".join(half), "utf-8")
        write_texts(target, prompts, sample, 11 + number, part, OWN_TEXTS)
    join([texts, *parts], more)
    return more


def write_texts(
    target: Path, prompts: Path, sample: tuple[str, str], seed: int, out: Path, options: Sequence[str]
) -> None:
    """Have the model write so many texts at a temperature."""
    count, temperature = sample
    how = ("--count", count, "--temperature", temperature, *options, "--seed", str(seed))
    draftwood("corpus", target, "--prompts", prompts, *how, "--out", out)


def join(parts: Sequence[Path], whole: Path) -> None:
    """Put the lines of files one after the other."""
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))


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
