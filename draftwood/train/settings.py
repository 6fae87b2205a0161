"""Options of training runs. Imports no torch: the command line makes its options from these."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftwood.errors import ConfigurationError
from draftwood.train.prompts import CORPUS
from draftwood.util.config import Count

Precision = Literal["bfloat16", "float32"]
Divergence = Literal["kl", "tv"]
Rounding = Literal["int4"]
MAX_HEADS = 16


class TrainSettings(BaseModel):
    """Options that decide the result of a run, with the target and the data; a run is only resumed with the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    steps: Count = Field(default=1000, description="Training steps.")
    batch: Count = Field(default=16, description="Rows per step.")
    accumulate: Count = Field(default=1, description="Gradient accumulation: parts of a step.")
    rate: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    warmup: int = Field(default=50, ge=0, description="Steps of warm-up.")
    distill: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Weight of distillation on the target's own distributions; the rest is cross-entropy on the text.",
    )
    divergence: Divergence = Field(
        default="kl",
        description="What distillation minimises: kl, or tv (total variation), the share of drafts that is rejected.",
        json_schema_extra={"metavar": "kl|tv"},
    )
    precision: Precision = Field(
        default="bfloat16",
        description="Of matrix products: bfloat16 or float32.",
        json_schema_extra={"metavar": "TYPE"},
    )
    seed: int = Field(default=0, description="Seed of the order of rows, and of the corpus.")

    @model_validator(mode="after")
    def _distilled(self) -> Self:
        if self.divergence != "kl" and not self.distill:
            raise ValueError(f"divergence={self.divergence} is of distillation; give distill, a weight above 0")
        return self

    def check(self, processes: int) -> None:
        """Raise ConfigurationError where so many processes cannot share a step."""
        if self.batch % (self.accumulate * processes):
            parts = f"{self.accumulate} parts" + (f" on {processes} processes" if processes > 1 else "")
            raise ConfigurationError(f"a batch of {self.batch} rows cannot be shared out evenly over {parts}")


class ExitSettings(TrainSettings):
    """Options of training an exit layer."""

    layers: int | None = Field(
        default=None,
        description="Layers of the target before the exit.",
        json_schema_extra={"usual": "a tenth of its depth"},
    )
    depth: int = Field(
        default=1,
        description="Layers of the exit itself; 0: a head alone.",
        json_schema_extra={"names": ["--exit-layers"]},
    )


class HeadSettings(TrainSettings):
    """Options of training Medusa heads."""

    heads: int = Field(default=4, ge=1, le=MAX_HEADS, description="Number of heads, one for each token predicted.")
    shared: bool = Field(
        default=False, description="Use the target's own output layer: far fewer parameters, lower acceptance."
    )
    decay: float = Field(default=0.8, gt=0, le=1, description="The loss of head k has weight X^k.")


class EagleSettings(TrainSettings):
    """Options of training an EAGLE head."""

    unroll: int = Field(default=4, ge=1, le=16, description="Consecutive drafting steps to train on.")
    vocabulary: int | None = Field(
        default=None,
        ge=2,
        description="Restrict the head to the N most frequent tokens of the texts.",
        json_schema_extra={"usual": "all"},
    )
    decay: float = Field(default=0.8, gt=0, le=1, description="The loss of step k has weight X^(k-1).")
    quantize: Rounding | None = Field(
        default=None,
        description="Train for four bits a weight, int4, in which the head is then held beside a quantised target.",
        json_schema_extra={"metavar": "int4", "usual": "eight bits, for which nothing is trained"},
    )
    start: str | None = Field(
        default=None,
        min_length=1,
        description="Directory of a trained head to begin with; its vocabulary may be another.",
        json_schema_extra={"metavar": "DIR", "usual": "a copy of the target's last layer"},
    )


class DFlashSettings(TrainSettings):
    """Options of training a DFlash head."""

    layers: int = Field(default=2, ge=1, description="Layers of the head.")
    block: int = Field(default=8, ge=2, le=64, description="Tokens of a block: the last one and those drafted.")
    decay: float = Field(default=0.8, gt=0, le=1, description="The loss of place k has weight X^(k-1).")


class DraftSettings(TrainSettings):
    """Options of training a draft model."""

    rate: float = Field(default=5e-4, gt=0, description="Peak learning rate.")
    distill: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Weight of distillation on the target's own distributions; the rest is cross-entropy on the text.",
    )
    layers: int | None = Field(
        default=None, ge=1, description="Layers of the draft.", json_schema_extra={"usual": "a fifth of the target's"}
    )
    vocabulary: int | None = Field(
        default=None,
        ge=2,
        description="Its tokens: the N most frequent of the texts.",
        json_schema_extra={"usual": "as many as make 98% of the texts"},
    )
    kept: list[int] | None = Field(
        default=None,
        description="Number of a layer of the target to keep, from 0. Repeatable.",
        json_schema_extra={"usual": "of three sets the best after --search steps", "metavar": "LAYER"},
    )
    search: int = Field(default=20, ge=0, description="Steps of trying sets of layers.")

    @model_validator(mode="after")
    def _same_number(self) -> Self:
        if self.kept and self.layers not in (None, len(self.kept)):
            raise ValueError(f"{len(self.kept)} layers are to be kept, but layers is {self.layers}; leave out one")
        return self


class TextSource(BaseModel):
    """The texts to train on."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    data: str = Field(
        default=CORPUS,
        description="What `draftwood train corpus` wrote, or any text: .jsonl with text, messages or tokens; or "
        "the embedded pair's corpus.",
        json_schema_extra={"metavar": "FILE|corpus"},
    )
    context: int = Field(default=256, ge=2, description="Tokens per row.")
    whole: bool = Field(
        default=False, description="Learn to draft prompts too, where texts say what is their prompt; else answers."
    )
    rows: Count = Field(default=20_000, description="Most rows to train on; then they are repeated.")
    held_out: Count = Field(default=32, description="Rows for measurement, not trained on.")


class Saving(BaseModel):
    """Intervals of measuring and saving a run, its early end, and the dtype of saved weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Training")

    store: Precision = Field(
        default="bfloat16",
        description="Of the saved weights: bfloat16 or float32.",
        json_schema_extra={"metavar": "TYPE"},
    )
    save_every: Count = Field(default=100, description="Steps between saves.")
    measure_every: Count = Field(default=100, description="Steps between measurements.")
    patience: Count | None = Field(
        default=None,
        description="Stop early after N measurements in which held-out acceptance did not rise.",
        json_schema_extra={"usual": "never"},
    )


class WritingSettings(BaseModel):
    """Options that decide, with the target, the texts that it writes."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Writing")

    prompts: str = Field(
        default=CORPUS,
        description="Prompts, one per line, or .jsonl with prompt or messages; or those of the embedded pair's corpus.",
        json_schema_extra={"metavar": "FILE|corpus"},
    )
    chat: bool = Field(default=False, description="Prompts are users' messages: apply the checkpoint's chat template.")
    given: str | None = Field(
        default=None,
        description="Your texts, mixed in: .jsonl with text, or plain text.",
        json_schema_extra={"metavar": "FILE|corpus"},
    )
    share: float | None = Field(
        default=None, description="Share of your texts.", json_schema_extra={"usual": "0.5 with --given, else 0"}
    )
    count: Count = Field(default=1000, description="Number of texts, yours included.")
    max_new_tokens: Count = Field(default=256, description="Most tokens that the target writes per text.")
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="Of all but the first few tokens.")
    greedy: tuple[int, int] = Field(
        default=(3, 5),
        description="The first A to B tokens are greedy.",
        json_schema_extra={"metavar": "A B"},
    )
    seed: int = Field(default=0, description="The same seed gives the same texts.")

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
        """True if the text of this number is a given one; given texts are spread evenly."""
        return int((number + 1) * self.given_share) > int(number * self.given_share)
