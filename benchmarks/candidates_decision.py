"""Decision models for benchmarks/candidates.py: given ones, or trained on the fly for a pair's draft.

Knows where they are kept. A grown target says what the embedded one says, so examples are recorded with the cheap one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from candidates_settings import DecisionFile
from pairs import home
from rich.progress import track

import draftwood
from draftwood.depth.decision import DecisionKind, save_decision, train_decision
from draftwood.models.identity import fingerprint
from draftwood.prompts import CORPUS, prompts_of
from draftwood.train.decisions import record

SEED = 0


def decision_file(
    given: Path | None, target: Path, draft: Path, kind: DecisionKind, prompts: int, tokens: int
) -> tuple[DecisionFile, dict[str, Any]]:
    """(file, what its JSON says), trained and kept beside the pairs where none is given.

    It is recorded with `target`, which must say what the benchmark's target says.
    """
    path = given
    if path is None:
        engine = draftwood.load(target, draft)
        name = f"{kind}-{fingerprint(engine.drafts[0])}-{prompts}x{tokens}.safetensors"
        path = home() / "decisions" / name
        if not path.exists():
            _train(engine, path, kind, prompts, tokens)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    about = path.with_suffix(".json")
    said = json.loads(about.read_text("utf-8")) if about.exists() else {}
    return DecisionFile(str(path), digest), said | {"digest": digest}


def _train(engine: draftwood.Engine, path: Path, kind: DecisionKind, prompts: int, tokens: int) -> None:
    texts = prompts_of(CORPUS, prompts, SEED)
    bar = iter(track(range(prompts), "recording for a decision model"))

    def advance(count: int) -> None:
        for _ in range(count):
            next(bar, None)

    next(bar, None)
    examples = record(engine, texts, kind, max_new_tokens=tokens, seed=SEED, advance=advance)
    model, judgement = train_decision(kind, *examples.tensors(), seed=SEED)
    recorded = {"prompts": len(texts), "max_new_tokens": tokens, "examples": len(examples), "seed": SEED}
    save_decision(path, model, examples.draft, judgement, recorded)
