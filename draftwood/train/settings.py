"""What training runs are asked for. Imports no torch: the command line makes its options of these."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftwood.errors import ConfigurationError
from draftwood.prompts import CORPUS

Precision = Literal["bfloat16", "float32"]
Count = Annotated[int, Field(ge=1)]
MOST_HEADS = 16  # of one model


class Settings(BaseModel):
    """What decides the result of a run, with the target and the data; a run is resumed with the same only."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    steps: Annotated[Count, Field(description="Steps.")] = 1000
    batch: Annotated[Count, Field(description="Rows of a step.")] = 16
    accumulate: Annotated[Count, Field(description="Parts that a step is computed in.")] = 1
    rate: Annotated[float, Field(gt=0, description="Peak learning rate.")] = 1e-3
    warmup: Annotated[int, Field(ge=0, description="Steps of warm-up.")] = 50
    distill: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Weight of distillation on the target's own distributions; the rest is cross-entropy on the "
            "text.",
        ),
    ] = 0.0
    precision: Annotated[
        Precision, Field(description="Of products: bfloat16 or float32.", json_schema_extra={"metavar": "TYPE"})
    ] = "bfloat16"
    seed: Annotated[int, Field(description="Of the order of rows, and of the corpus.")] = 0

    def check(self, processes: int) -> None:
        """Raise ConfigurationError where so many processes cannot share a step."""
        if self.batch % (self.accumulate * processes):
            parts = f"{self.accumulate} parts" + (f" on {processes} processes" if processes > 1 else "")
            raise ConfigurationError(f"a batch of {self.batch} rows cannot be shared out evenly over {parts}")


class ExitSettings(Settings):
    """Of an exit layer."""

    layers: Annotated[
        int | None,
        Field(
            description="First layers of the target that the exit is behind.",
            json_schema_extra={"usual": "a tenth of its depth"},
        ),
    ] = None
    depth: Annotated[
        int, Field(description="Layers of the exit itself.", json_schema_extra={"names": ("--exit-layers",)})
    ] = 1


class HeadSettings(Settings):
    """Of Medusa heads."""

    heads: Annotated[int, Field(ge=1, le=MOST_HEADS, description="Heads: tokens that are predicted.")] = 4
    shared: Annotated[
        bool, Field(description="Heads end in the target's own head: far fewer parameters, less acceptance.")
    ] = False
    decay: Annotated[float, Field(gt=0, le=1, description="Head k's loss weighs X^k.")] = 0.8


class TextSource(BaseModel):
    """What is trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    data: Annotated[
        str,
        Field(
            description="What `draftwood train corpus` wrote, or any text: .jsonl with text or tokens; or the embedded "
            "pair's corpus.",
            json_schema_extra={"metavar": "FILE|corpus"},
        ),
    ] = CORPUS
    context: Annotated[int, Field(ge=2, description="Tokens of a row.")] = 256
    rows: Annotated[Count, Field(description="Rows to train on at most; then they are read again.")] = 20_000
    held_out: Annotated[Count, Field(description="Rows that are measured and not trained on.")] = 32


class Saving(BaseModel):
    """How often a run is measured and saved, and in which dtype."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    store: Annotated[
        Precision, Field(description="Of the file: bfloat16 or float32.", json_schema_extra={"metavar": "TYPE"})
    ] = "bfloat16"
    save_every: Annotated[Count, Field(description="Steps between two saves.")] = 100
    measure_every: Annotated[Count, Field(description="Steps between two measurements.")] = 100


class Writing(BaseModel):
    """What decides the texts that a target writes, with the target."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Writing")

    prompts: Annotated[
        str,
        Field(
            description="Prompts, one per line; or those of the embedded pair's corpus.",
            json_schema_extra={"metavar": "FILE|corpus"},
        ),
    ] = CORPUS
    given: Annotated[
        str | None,
        Field(
            description="Given texts that are mixed in: .jsonl with text, or text.",
            json_schema_extra={"metavar": "FILE|corpus"},
        ),
    ] = None
    share: Annotated[
        float | None,
        Field(description="Share of given texts.", json_schema_extra={"usual": "0.5 with --given, else 0"}),
    ] = None
    count: Annotated[Count, Field(description="Texts, given ones included.")] = 1000
    max_new_tokens: Annotated[Count, Field(description="Most tokens that the target writes at once.")] = 256
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False, description="Of all but the first few tokens.")] = (
        1.0
    )
    greedy: Annotated[
        tuple[int, int],
        Field(description="A to B first tokens are the most probable ones.", json_schema_extra={"metavar": "A B"}),
    ] = (3, 5)
    seed: Annotated[int, Field(description="The same seed gives the same texts.")] = 0

    @property
    def given_share(self) -> float:
        return self.share if self.share is not None else 0.5 if self.given else 0.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not 0 <= self.given_share < 1:
            raise ValueError(f"the share of given text is {self.share}, but must be from 0 to below 1")
        if self.given_share and self.given is None:
            raise ValueError("a share of given text is asked for, but no given text; name it with --given")
        if not 0 <= self.greedy[0] <= self.greedy[1]:
            raise ValueError(f"from {self.greedy[0]} to {self.greedy[1]} greedy tokens is no range")
        return self

    def is_given(self, number: int) -> bool:
        """Whether a text is a given one; they are spread evenly."""
        return int((number + 1) * self.given_share) > int(number * self.given_share)
