"""Trains what drafts for SmolLM2-135M-Instruct, from its file alone: `python -m recipes.smollm2_drafters DATA WORK`.

The model writes texts to the prompts of recipes/shared_prompts.py, by `draftwood train corpus`, and `draftwood train`
makes an EAGLE head, a draft model, Medusa heads and an exit of them; the head goes on with texts to messages that the
model wrote, too (recipes/own_prompts.py), then with texts at temperature 1, by what sampling rejects, then with answers
alone and weights of four bits. Some hours on two cores. Each command goes on where it was stopped. `--card` measures
what was trained on the prompts that are held out, for the table of benchmarks/trained/smollm2/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.models.text.tokenizer import Tokenizer
from recipes import own_prompts
from recipes.real_models import SMOLLM2, fetch
from recipes.shared_prompts import split, write

OWN_PROMPTS = 4000  # messages that the model writes
LONGEST, SHORT = 512, 200  # tokens of a text, and of a prompt, where answers alone are learned
WHOLE = ("--whole", "--distill", "0.9", "--held-out", "8")
SAVING = ("--save-every", "40", "--measure-every", "40")
CARD_TOKENS = 48
DRAFTED = 3  # tokens a round, of which a card tells how many were accepted


@dataclass(frozen=True)
class Writing:
    """Texts that the model writes: so many, to which prompts, at what temperature, of how many tokens at most."""

    prompts: str
    count: int
    temperature: float
    tokens: int
    seed: int


SHARED = [Writing("train", 544, 1, 224, 0), *(Writing("train", 695, 0.8, 224, seed) for seed in (1, 2, 3))]
TEXTS: Mapping[str, Sequence[Writing]] = {
    "shared": SHARED,
    "own": [*SHARED, Writing("own-second-half", 1823, 0.8, 144, 11), Writing("own-first-half", 700, 0, 144, 12)],
    "sampled": [Writing("train", 2472, 1, 224, 21)],
    "answers": [
        Writing("train", 1248, 1, 224, 31),
        Writing("short", 900, 1, 256, 41),
        Writing("own-first-half", 1024, 1, 256, 51),
        Writing("own-second-half", 160, 0, 256, 61),
        Writing("short", 260, 0, 256, 62),
    ],
}


@dataclass(frozen=True)
class DrafterRecipe:
    """One drafter: the command that trains it, its runs, and the method that drafts with it.

    A run has texts and arguments; each begins with what the one before made.
    """

    command: str
    runs: Sequence[tuple[str, str]]
    method: Mapping[str, Any]
    option: str | None = None  # of the method, that names its directory; None: it is loaded as a draft model


EAGLE = "--unroll 3 --batch 4 --vocabulary"
BY_TV = "--distill 1 --divergence tv"
ANSWERS = f"{BY_TV} --quantize int4 --context {LONGEST} --held-out 20"
DRAFTERS = {
    "eagle": DrafterRecipe(
        "eagle",
        (
            ("shared", f"{EAGLE} 3840 --steps 2200 --warmup 40"),
            ("own", f"{EAGLE} 6144 --steps 1150 --warmup 40 --rate 7e-4"),
            ("sampled", f"{EAGLE} 8192 --steps 1600 --warmup 20 --rate 5e-4 {BY_TV} --held-out 32"),
            ("answers", f"--unroll 3 --batch 2 --vocabulary 8192 --steps 3500 --warmup 40 --rate 3.5e-4 {ANSWERS}"),
        ),
        {"name": "eagle", "gamma": DRAFTED, "depth": "fixed"},
        "head",
    ),
    "draft": DrafterRecipe(
        "draft",
        (("shared", "--layers 2 --vocabulary 8192 --steps 60 --batch 4 --warmup 6 --rate 1e-3"),),
        {"name": "speculative", "gamma": DRAFTED, "depth": "fixed"},
    ),
    "heads": DrafterRecipe(
        "medusa",
        (("shared", "--heads 2 --shared --steps 40 --batch 2 --warmup 4"),),
        {"name": "medusa"},
        "heads",
    ),
    "exit": DrafterRecipe(
        "eesd",
        (("shared", "--layers 3 --steps 40 --batch 2 --warmup 4"),),
        {"name": "eesd", "gamma": DRAFTED, "depth": "fixed"},
        "exit",
    ),
}


def train(data: Path, work: Path, only: Sequence[str]) -> None:
    """Write the texts and train the drafters that are named, each into a directory of WORK."""
    target = fetch(SMOLLM2)
    write(data, work / "prompts")
    for name in only:
        made, start = DRAFTERS[name], tuple[str, ...]()
        for number, (texts, arguments) in enumerate(made.runs, 1):
            out = work / (name if number == len(made.runs) else f"{name}-{number}")
            whole = () if texts == "answers" else WHOLE
            given = "--data", texts_of(texts, target, work), *whole, *SAVING, *arguments.split(), *start
            draftwood(made.command, target, *given, "--out", out)
            start = "--start", str(out)


def texts_of(name: str, target: Path, work: Path) -> Path:
    """The file of the texts of a name, of which those are written that are not there."""
    whole, parts = work / f"{name}.jsonl", list[Path]()
    for each in TEXTS[name]:
        parts.append(part := work / f"texts-{each.seed}.jsonl")
        how = f"--count {each.count} --temperature {each.temperature} --max-new-tokens {each.tokens} --seed {each.seed}"
        prompts = prompts_of(each.prompts, target, work)
        draftwood("corpus", target, "--prompts", prompts, *how.split(), "--chat", "--concurrency", "32", "--out", part)
    lines = [line for part in parts for line in part.read_text("utf-8").splitlines(keepends=True)]
    if name == "answers":  # a row holds one whole
        lines = [line for line in lines if len(json.loads(line)["tokens"]) <= LONGEST]
    whole.write_text("".join(lines), "utf-8")
    return whole


def prompts_of(name: str, target: Path, work: Path) -> Path:
    """A file of prompts: all to train on, the short ones of them, or half of the messages that the model wrote."""
    path, everything = work / "prompts" / f"{name}.jsonl", work / "prompts" / "train.jsonl"
    if path.is_file():
        return path
    if name == "short":
        words = Tokenizer.load(target)
        lines = everything.read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if len(words.chat(json.loads(line)["messages"])) <= SHORT]
    else:
        messages = work / "own-prompts.jsonl"
        if not messages.is_file():
            own_prompts.write(str(target), OWN_PROMPTS, messages)
        lines = messages.read_text("utf-8").splitlines(keepends=True)
        half = len(lines) // 2
        kept = lines[:half] if name == "own-first-half" else lines[half:]
    path.write_text("".join(kept), "utf-8")
    return path


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
