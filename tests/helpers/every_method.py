"""An engine in which every method works, and what its memory must come to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from small_decoder import LAYERS, decoder

from draftwood import Engine
from draftwood.engine.generation import Generation
from draftwood.errors import OutOfMemory
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.heads.dflash_head import DFlashHead
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.exit import ExitLayer
from draftwood.models.heads.medusa import Heads
from draftwood.runtime.task import DecodingTask

TARGET, DRAFT = decoder(1), decoder(2)
EXIT, HEADS, EAGLE = ExitLayer.of(TARGET, 1), Heads.of(TARGET, 3), EagleHead.of(TARGET)
BLOCK = DFlashHead.of(TARGET, 2, 5)
for model in (TARGET, DRAFT, EXIT, EAGLE, BLOCK):  # held so, a row's bits do not depend on the other rows
    pack(model.eval(), holder(torch.float32, torch.device("cpu"), None))

FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {"name": "autoregressive"},
    "chain": {"name": "speculative", "gamma": 3},
    "coupled": {"name": "speculative", "gamma": 3, "verify": "coupled"},
    "tree": {"name": "mcsd", "tree": [3, 2]},
    "lookup": {"name": "lookup"},
    "exit": {"name": "eesd", "gamma": 3},
    "exit-tree": {"name": "eesd", "tree": [2, 2]},
    "self": {"name": "self-spec", "attention": [1], "mlp": [2], "gamma": 3, "depth": "fixed"},
    "medusa": {"name": "medusa", "tree": [2, 1]},
    "eagle": {"name": "eagle", "gamma": 3},
    "eagle-tree": {"name": "eagle", "gamma": 2, "width": 3, "least": 0.0},
    "block": {"name": "dflash", "gamma": 4},
    "block-tree": {"name": "dflash", "width": 3, "least": 0.0},
    "beams": {"name": "beam-sampling", "width": 3},
    "dsbd": {"name": "dsbd", "draft_width": 3, "gamma": 2},
    "search": {"name": "speculative-beam-search", "width": 2, "depth": "fixed"},
}
CHAINS = ("plain", "chain", "coupled", "lookup", "exit", "self")  # their slots are in order, so bits stay the same
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.9}, {"temperature": 1.0, "top_k": 5})
SLOT = 4 * 2 * LAYERS * 2 * 6  # bytes of a slot of either model


def engine(**options: Any) -> Engine:
    made = Engine(TARGET, [DRAFT], **options)
    made.set_draft_models("eesd", [EXIT])
    made.set_draft_models("medusa", [HEADS])
    made.set_draft_models("eagle", [EAGLE])
    made.set_draft_models("dflash", [BLOCK])
    return made


def submitted(engine: Engine, generation: Generation, call: object = None) -> DecodingTask[Any]:
    """The task of a generation, queued for whoever steps the scheduler."""
    return engine.scheduler.submit(engine.builder.task(generation, call))


def settle(engine: Engine) -> None:
    """Nobody is under way: what is lent is what finished requests left, and after a reset nothing."""
    scheduler = engine.scheduler
    engine.driver.call(lambda: None)  # when what was asked for before is done
    assert not scheduler.busy and not scheduler.active and not scheduler.waiting and not scheduler.prefixes.live
    kept = scheduler.prefixes.kept
    assert sum(cache.lent for cache in engine.builder.caches.values()) == sum(entry.extent.capacity for entry in kept)
    engine.reset_prefix_cache()
    assert all(cache.lent == cache.bytes == 0 for cache in engine.builder.caches.values())
    assert engine.builder.budget.used == 0


@contextmanager
def shortage(chance: float, rng: random.Random, engine: Engine) -> Iterator[None]:
    """Memory runs out now and then while several requests run, whatever the budget is."""
    from draftwood.runtime.session import Session

    rows = Session.rows

    def short(session: Session, run: Any) -> Any:
        if len(engine.scheduler.active) > 1 and rng.random() < chance:
            raise OutOfMemory("made up")
        return rows(session, run)

    Session.rows = short  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Session.rows = rows  # type: ignore[method-assign]
