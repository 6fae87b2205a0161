"""Messages of users that a chat model writes itself: `python -m recipes.own_prompts TARGET COUNT OUT`.

A chat model goes on with a conversation in which the user's turn has just begun, and so writes what a user may ask
(Magpie, Xu et al. 2024, arXiv 2406.08464). So drafters can be trained where there are few prompts. OUT gets .jsonl with
messages, as `draftwood train corpus --prompts` reads them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import draftwood
from draftwood.engine.engine import Engine

LEAST, MOST = 12, 1200  # characters of a message
TOKENS = 160  # at most, of a message


def opening(engine: Engine) -> list[int]:
    """The tokens of the chat template before a user's first word."""
    one, other = (engine.tokens([{"role": "user", "content": text}]) for text in ("A", "7"))
    return one[: next(place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])]


def write(target: str, count: int, out: Path, concurrency: int = 32, seed: int = 0) -> None:
    """Write `count` messages at temperature 0.9 and keep those that end by themselves, each once; OUT comes last."""
    engine = draftwood.load(target)
    begun = opening(engine)
    prompts = [{"prompt": begun, "seed": seed + number} for number in range(count)]

    def told(finished: int, of: int) -> None:
        if finished % 100 == 0:
            print(f"{finished} of {of}", flush=True)

    method = {"name": "autoregressive"}
    results = engine.batch(prompts, concurrency, told, method=method, temperature=0.9, max_new_tokens=TOKENS)
    texts = dict.fromkeys(result.text.strip() for result in results if result.finish_reason == "eos")
    kept = [text for text in texts if LEAST <= len(text) <= MOST]
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False) for text in kept]
    out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(f"{len(kept)} of {count} kept", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="a checkpoint with a chat template")
    parser.add_argument("count", type=int, help="messages to write; about nine of ten are kept")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    write(given.target, given.count, given.out)
