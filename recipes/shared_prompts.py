"""Prompts of public data sets for training drafters and for measuring them, by kind of text: `python -m
recipes.shared_prompts DATA OUT`.

DATA holds alpaca, gsm8k, humaneval, mt_bench, spec_bench, squad and xsum as .jsonl, a directory each. OUT gets
`train.jsonl`, and `held-out/KIND.jsonl` with twenty prompts of each kind, of which none is trained on. All are users'
messages, for the model's chat template. `papers/prompts.jsonl` has those of `train.jsonl` that EESD's tables do not ask
(`python -m benchmarks.papers eesd --items 100 --items HumanEval=60`, behind a row that is the example);
`papers/given.jsonl` has given texts.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.util.safe_parsing import parse_json, read_text

PER_KIND = 20
ASKED = {"gsm8k": 101, "humaneval": 61}  # rows that a table may ask or show as the example
CODE = "Complete this Python function.\n\n```python\n{}```"
Rows = list[dict[str, Any]]


def read(data: Path, name: str) -> Rows:
    """The rows of a data set; raises ConfigurationError where there are none."""
    files = [file for file in sorted((data / name).glob("*.jsonl")) if "fewshot" not in file.name]
    if not files:
        raise ConfigurationError(f"there is no {data / name}/*.jsonl; give a directory with the data sets as .jsonl")
    return [parse_json(line) for file in files for line in read_text(file).splitlines() if line.strip()]


def split(data: Path) -> tuple[list[str], Mapping[str, list[str]]]:
    """The messages to train on, shuffled, and those held out by kind."""
    talks = [row for row in read(data, "mt_bench") if row["category"] not in ("coding", "math")]
    chat = [row["turns"][0] for i, row in enumerate(talks) if i % 3 < 2]
    maths = [row["question"] for row in read(data, "gsm8k")]
    code = [CODE.format(row["prompt"]) for row in read(data, "humaneval")]
    news = sorted((row["document"] for row in read(data, "xsum")), key=len)
    held_out = {
        "chat": chat[:PER_KIND],
        "maths": maths[-PER_KIND:],
        "code": code[-PER_KIND:],
        "summary": [f"Summarize: {text}" for text in news[:PER_KIND]],
    }
    others = [row["prompt"] for name in ("alpaca", "squad") for row in read(data, name)]
    others += [row["turns"][0] for name in ("mt_bench", "spec_bench") for row in read(data, name)]
    kept_apart = {message for messages in held_out.values() for message in messages}
    train = [text for text in dict.fromkeys([*maths, *code, *others]) if text not in kept_apart]
    random.Random(0).shuffle(train)
    return train, held_out


def for_papers(data: Path) -> tuple[list[str], Rows]:
    """The messages to train EESD's exit on, and given texts: nothing of the ASKED rows that its tables ask."""
    questions_asked, code_asked = ASKED["gsm8k"], ASKED["humaneval"]
    maths, code, talks = (read(data, name) for name in ("gsm8k", "humaneval", "mt_bench"))
    questions = [row["question"] for row in maths[:questions_asked]]
    asked = {*(CODE.format(row["prompt"]) for row in code[:code_asked]), *(row["turns"][0] for row in talks)}
    kept = [text for text in split(data)[0] if text not in asked and not any(one in text for one in questions)]
    pairs = [(row["question"], row["solution"]) for row in maths[questions_asked:]]
    pairs += [(row["prompt"], row["reference"]) for row in read(data, "alpaca")]
    given: Rows = [{"messages": [said("user", asks), said("assistant", answers)]} for asks, answers in pairs]
    given += [{"text": row["prompt"] + row["canonical_solution"]} for row in code[code_asked:]]
    given += [{"text": text} for text in dict.fromkeys(row["context"] for row in read(data, "squad"))]
    random.Random(0).shuffle(given)
    return kept, given


def said(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


def write(data: Path, out: Path) -> None:
    """Write the prompts of a directory of data sets."""
    train, held_out = split(data)
    own, given = for_papers(data)
    files: dict[str, Sequence[str]] = {
        "train": train,
        **{f"held-out/{kind}": texts for kind, texts in held_out.items()},
        "papers/prompts": own,
    }
    rows: dict[str, Rows] = {
        name: [{"messages": [said("user", message)]} for message in messages] for name, messages in files.items()
    }
    for name, texts in {**rows, "papers/given": given}.items():
        path = out / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="directory of the data sets")
    parser.add_argument("out", type=Path, help="directory for the prompts")
    given = parser.parse_args()
    write(given.data, given.out)
