"""The default method: what decodes a request that names none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from draftwood.errors import ModelError
from draftwood.methods.base import Method, trained_head
from draftwood.methods.options import DEEPEST
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints.artifact import is_beside
from draftwood.models.heads import mtp

log = logging.getLogger(__name__)

MIXED: dict[str, object] = {"lookup": True, "depth": "auto"}


class Companion(NamedTuple):
    """The method that drafts with something that comes with a target's weights, and where that lies."""

    method: Mapping[str, object]
    layer: str = ""  # its name where it is a layer of the checkpoint, else it is a file next to the weights
    in_checkpoint: Callable[[Path | None], bool] | None = None  # whether a checkpoint has that layer


COMPANIONS = {  # kind of a file next to, or a layer in, a target's weights; the faster first, as measured
    "mtp": Companion({"name": "mtp", **MIXED}, "multi-token prediction", mtp.present),
    "exit": Companion({"name": "eesd", "gamma": DEEPEST, **MIXED}),
    "eagle": Companion({"name": "eagle", **MIXED}),
    "dflash": Companion({"name": "dflash", **MIXED}),
    "heads": Companion({"name": "medusa"}),
    "skip": Companion({"name": "self-spec", "gamma": DEEPEST, **MIXED}),
}


def comes_with(target: CausalModel, kind: str) -> bool:
    """Whether a kind of `COMPANIONS` is in a target's checkpoint, or in a file next to it."""
    home: Path | None = getattr(target, "home", None)
    if home is None:
        return False
    if (present := COMPANIONS[kind].in_checkpoint) is not None:
        return present(getattr(target, "source", None))
    return is_beside(home, kind)


def default_method(
    drafts: int, target: CausalModel | None = None, loaded: Sequence[CausalModel] = ()
) -> tuple[Method, Sequence[CausalModel] | None]:
    """The best method for `drafts` draft models, else for what comes with a target's weights; with what was loaded.

    Of the `loaded` drafts one may be a trained head, which has a method of its own.

    One draft model and such files draft together with lookup; lookup drafts alone where there is nothing else. All of
    them are lossless, and draft as far as it pays.
    """
    for model in loaded:
        if (kind := trained_head(model)) is not None:
            return Method.parse(COMPANIONS[kind].method), None
    if drafts:
        return Method.parse({"name": "speculative", **MIXED} if drafts == 1 else {"name": "specinfer"}), None
    for kind, each in COMPANIONS.items():
        if target is not None and comes_with(target, kind):
            method = Method.parse(each.method)
            try:
                return method, method.models(target, ())
            except ModelError as error:
                log.warning("%s is left alone: %s", kind, error)
    return Method.parse("lookup"), None
