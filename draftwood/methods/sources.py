"""Where drafts come from: a draft model, or an exit of the target itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from draftwood.draft import Drafter, ExitSource, StateDrafter
from draftwood.draft.base import Source
from draftwood.methods.base import FILE, Method
from draftwood.models.base import CausalModel
from draftwood.models.heads import exit as exits
from draftwood.runtime.session import Session

Exit = Annotated[
    str | None,
    FILE,
    Field(min_length=1, description="directory of the target's exit layer; null: the one next to its weights"),
]


def from_exit(make: Callable[[Source], Drafter], drafts: Sequence[Session], target: Session) -> Drafter:
    """A drafter that drafts from the target's exit, whose session is `drafts[0]`."""
    source = ExitSource(target, drafts[0], (cast(exits.ExitModel, drafts[0].model).layers,))
    return StateDrafter(make(source), source)


class ExitDraftable(Method):
    """A method of one draft model, which an exit of the target may stand for."""

    drafter: Literal["model", "exit"] = Field(default="model", description="a draft model, or an exit of the target")
    exit: Exit = None

    @model_validator(mode="after")
    def _exit_is_used(self) -> ExitDraftable:
        if self.exit is not None and self.drafter != "exit":
            raise ValueError("exit names an exit layer, but drafter is model; say drafter=exit")
        return self

    @property
    def drafts_needed(self) -> tuple[int, int]:
        return (0, 0) if self.drafter == "exit" else self.draft_models

    @property
    def drafts_from(self) -> object:
        return ("exit", self.exit) if self.drafter == "exit" else self

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return [exits.find(target, self.exit)] if self.drafter == "exit" else super().models(target, drafts)

    def drafting(self, make: Callable[[Source], Drafter], drafts: Sequence[Session], target: Session) -> Drafter:
        """The drafter that `make` makes of where drafts come from."""
        return from_exit(make, drafts, target) if self.drafter == "exit" else make(drafts[0])
