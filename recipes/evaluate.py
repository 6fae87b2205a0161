"""``python -m recipes.evaluate``: the figures of the model card.

Measures the shipped files, so weights are what bfloat16 keeps of them;
arithmetic is float32.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

import draftwood
from draftwood import Engine
from draftwood.corpus import DOMAINS
from draftwood.eval.provenance import session
from draftwood.eval.tasks import parse
from draftwood.models.checkpoints.checkpoint import load
from draftwood.models.decoder import Decoder
from draftwood.models.heads.exit import ExitLayer, find
from recipes.monitor import batch_of, held_out

# Tokens that a completion may have, for each domain that is scored.
LIMITS = {"qa": 16, "sql": 48, "math": 64, "summaries": 40, "code": 80}
STOPS = {"qa": "\n", "sql": "\n"}


class Forced(Protocol):
    """A model that gives logits [B, T, V] of tokens [B, T]."""

    def train_forward(self, tokens: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Early:
    """A target that is left after its first layers."""

    target: Decoder
    exit: ExitLayer

    def train_forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden = self.target.embedded(tokens, places)
        return self.exit.train_forward(self.target.train_layers(hidden, 0, self.exit.layers))


@torch.no_grad()
def teacher_forced(target: Decoder, draft: Forced, tokenizer: Tokenizer, domain: str, count: int) -> dict[str, float]:
    """Return perplexities and acceptance on held-out text of a domain.

    ``acceptance`` is the mean over positions of sum_x min(p(x), q(x)) at
    temperature 1, ``agreement`` the share of positions where both models have
    the same most probable token; ``*_completion`` only where completions are.
    """
    sums: dict[str, float] = {}
    documents = held_out(domain, count, seed=1)
    for start in range(0, len(documents), 16):
        batch = batch_of(tokenizer, documents[start : start + 16], target.context)
        p_log, q_log = (model.train_forward(batch.tokens)[:, :-1].log_softmax(-1) for model in (target, draft))
        shared = torch.minimum(p_log, q_log).exp().sum(-1)
        agreed = p_log.argmax(-1) == q_log.argmax(-1)
        chosen = batch.tokens[:, 1:, None]
        for name, values, mask in (
            ("positions", torch.ones_like(shared), batch.scored),
            ("completion_positions", torch.ones_like(shared), batch.completed),
            ("target", -p_log.gather(-1, chosen)[..., 0], batch.scored),
            ("draft", -q_log.gather(-1, chosen)[..., 0], batch.scored),
            ("acceptance", shared, batch.scored),
            ("agreement", agreed.float(), batch.scored),
            ("acceptance_completion", shared, batch.completed),
            ("agreement_completion", agreed.float(), batch.completed),
        ):
            sums[name] = sums.get(name, 0.0) + values[mask].double().sum().item()
    every, ends = sums["positions"], sums["completion_positions"]
    return {
        "documents": len(documents),
        "positions": int(every),
        "perplexity_target": math.exp(sums["target"] / every),
        "perplexity_draft": math.exp(sums["draft"] / every),
        "acceptance": sums["acceptance"] / every,
        "agreement": sums["agreement"] / every,
        "acceptance_completion": sums["acceptance_completion"] / ends,
        "agreement_completion": sums["agreement_completion"] / ends,
    }


def generated(engine: Engine, domain: str, count: int, temperature: float, seed: int = 0) -> float:
    """Return the mean score of what the engine's target really writes after held-out prompts."""
    task = parse("bodies" if domain == "code" else domain)  # a body is compared, never run
    chosen = task.instances(count)
    results = engine.batch(
        [{"prompt": instance.prompt(), "seed": seed + i} for i, instance in enumerate(chosen)],
        concurrency=16,
        method="autoregressive",
        sampling={"temperature": temperature},
        max_new_tokens=LIMITS[domain],
        stop=STOPS.get(domain, ()),
    )
    scores = [task.score(one, [result.text]) for one, result in zip(chosen, results, strict=True)]
    return sum(each[task.metric] for each in scores) / count


def circumstances() -> dict[str, Any]:
    """The program, the machine and the command of the figures."""
    command = "python -m recipes.evaluate " + " ".join(sys.argv[1:])
    return {**session(torch.device("cpu")), "dtype": "weights bfloat16, arithmetic float32", "command": command}


def main(arguments: list[str] | None = None) -> None:
    """Measure a pair and write the figures as JSON."""
    options = argparse.ArgumentParser(prog="python -m recipes.evaluate")
    options.add_argument("--pair", type=Path, required=True, help="has target/ and draft/")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--items", type=int, default=300)
    options.add_argument("--exit", action="store_true", help="measure the target's exit layer in place of the draft")
    chosen = options.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(chosen.pair / "target" / "tokenizer.json"))
    target, draft = (load(chosen.pair / role) for role in ("target", "draft"))
    found: dict[str, Any] = {"circumstances": circumstances(), "domains": {}, "scores": {}}
    forced: Forced = Early(target, find(target, None)) if chosen.exit else draft
    for domain in DOMAINS:
        figures = teacher_forced(target, forced, tokenizer, domain, chosen.items // 2)
        found["domains"][domain] = figures
        print(domain, {name: round(value, 3) for name, value in figures.items()}, flush=True)
    if chosen.exit:  # what the target writes is the same
        found.pop("scores")
    engines = {} if chosen.exit else {role: draftwood.load(chosen.pair / role) for role in ("target", "draft")}
    for domain in LIMITS if engines else ():
        scores: dict[str, float] = {"items": chosen.items}
        for role, engine in engines.items():
            for temperature in (0.0, 1.0):
                scores[f"{role}_t{temperature:g}"] = generated(engine, domain, chosen.items, temperature)
        found["scores"][domain] = scores
        print(domain, scores, flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
