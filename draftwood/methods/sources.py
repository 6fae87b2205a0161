"""Where drafts come from: a draft model, an exit, a head, the target with sublayers skipped, n-grams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from draftwood.draft import Drafter, drafting
from draftwood.draft.base import Source
from draftwood.errors import ConfigurationError
from draftwood.methods.base import FILE, Method
from draftwood.models.base import CausalModel
from draftwood.models.heads import dflash, eagle, medusa, mtp, skip
from draftwood.models.heads import exit as exits
from draftwood.runtime.session import Session

Exit = Annotated[
    str | None,
    FILE,
    Field(min_length=1, description="directory of the target's exit layer; null: the one next to its weights"),
]
Head = Annotated[
    str | None,
    FILE,
    Field(
        min_length=1,
        description="directory of the target's head; null: one given as a draft, else that next to its weights",
    ),
]
BlockHead = Annotated[
    str | None,
    FILE,
    Field(
        min_length=1,
        description="directory of the target's DFlash head; null: one given as a draft, else that next to its weights",
    ),
]
MedusaHeads = Annotated[
    str | None,
    FILE,
    Field(
        min_length=1,
        description="directory of the target's Medusa heads; null: those given as a draft, else those next to its "
        "weights",
    ),
]
Skip = Annotated[
    str | None,
    FILE,
    Field(description="file of `draftwood tune skip`; null: that next to the weights, else every other layer"),
]


def heads_of(files: Any, target: CausalModel, head: str | None, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
    """The head of a directory, of the kind that the module `files` reads.

    None: the one that was loaded as a draft, else the one next to the target's weights.
    """
    given = [model for model in drafts if getattr(model, "head_kind", None) == files.KIND]
    return given[:1] if given and head is None else [files.find(target, head)]


def mtp_heads(target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
    """The assistant that was loaded as a draft, else the layer of multi-token prediction in the target's checkpoint."""
    given = [model for model in drafts if getattr(model, "head_kind", None) == "mtp"]
    return given[:1] or [mtp.find(target)]


def medusa_heads(target: CausalModel, heads: str | None, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
    """The heads of a directory; None: those that were loaded as a draft, else those next to the target's weights."""
    given = [model for model in drafts if isinstance(model, medusa.Heads)]
    return given[:1] if given and heads is None else [medusa.find(target, heads)]


def skipped_target(target: CausalModel, file: str | None, skipped: skip.Skipped | None = None) -> CausalModel:
    """The target without the sublayers that are named, or that a file names."""
    return skip.skipping(target, skip.load(Path(file), target) if file is not None else skipped)


class SourcedMethod(Method):
    """A method that drafts from whatever has draft logits after a node (`draft.base.Source`)."""

    takes_heads = True
    FROM: ClassVar[dict[str, str]] = {  # drafter -> option of its file
        "exit": "exit",
        "eagle": "head",
        "dflash": "block",
        "medusa": "medusa",
        "skip": "skip",
    }

    drafter: Literal["model", "exit", "eagle", "mtp", "dflash", "medusa", "skip", "lookup"] = Field(
        default="model",
        description="a draft model; of the target an exit, an EAGLE head, its layer of multi-token prediction or "
        "assistant, a DFlash head, Medusa heads, or itself with sublayers skipped; or counts of n-grams in the text",
    )
    exit: Exit = None
    head: Head = None
    block: BlockHead = None
    medusa: MedusaHeads = None
    skip: Skip = None

    @model_validator(mode="after")
    def _file_is_used(self) -> SourcedMethod:
        for drafter, option in self.FROM.items():
            if getattr(self, option) is not None and self.drafter != drafter:
                raise ValueError(
                    f"{option} names what drafter={drafter} drafts from, but drafter is {self.drafter}; "
                    f"say drafter={drafter}"
                )
        return self

    @property
    def drafts_needed(self) -> tuple[int, int]:
        return self.draft_models if self.drafter == "model" else (0, 0)

    @property
    def drafts_from(self) -> object:
        """A key that methods which draft from the same source share."""
        if self.drafter == "skip":
            return "skip", self.skip, None, None
        if self.drafter == "mtp":
            return "mtp"
        return (self.drafter, getattr(self, self.FROM[self.drafter])) if self.drafter in self.FROM else self

    def check_drafts(self, count: int) -> None:
        if count < self.drafts_needed[0]:
            *others, last = get_args(type(self).model_fields["drafter"].annotation)[1:]
            raise ConfigurationError(
                f"method {self.name} needs a draft model; name one with --draft, or load(target, draft=...), or say "
                f"what else drafts: drafter={', '.join(others)} or {last}"
            )
        super().check_drafts(count)

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        if self.drafter == "exit":
            return [exits.find(target, self.exit)]
        if self.drafter == "eagle":
            return heads_of(eagle, target, self.head, drafts)
        if self.drafter == "dflash":
            return heads_of(dflash, target, self.block, drafts)
        if self.drafter == "medusa":
            return medusa_heads(target, self.medusa, drafts)
        if self.drafter == "mtp":
            return mtp_heads(target, drafts)
        if self.drafter == "skip":
            return [skipped_target(target, self.skip)]
        return super().models(target, drafts) if self.drafter == "model" else ()

    def drafting(self, make: Callable[[Source | None], Drafter], drafts: Sequence[Session], target: Session) -> Drafter:
        """The drafter that `make` makes of where drafts come from; None: no model."""
        return drafting(make, drafts[0], target) if drafts else make(None)
