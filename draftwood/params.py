"""How a request's tokens are drawn: `SamplingParams`. Imports no torch: the command line checks flags at once."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _bias(value: float) -> float:
    if math.isnan(value) or value == math.inf:
        raise ValueError(f"a logit bias must be a number or -inf, which forbids a token, not {value}")
    return value


Probability = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Bias = Annotated[float, AfterValidator(_bias)]


class SamplingParams(BaseModel):
    """How the target's logits become the distribution that is decoded, T∘p.

    Order: penalties and logit bias on the logits, temperature, top-k, top-p, min-p, renormalise. Temperature 0 is
    greedy decoding. Truncations keep ties: everything as probable as the last kept token stays.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="Sampling")

    temperature: Annotated[Finite, Field(ge=0, description="0: greedy; 1: the target as it is.")] = 1.0
    top_k: Annotated[int, Field(ge=0, description="Keep the K most probable; 0: all.")] = 0
    top_p: Annotated[Probability, Field(gt=0, description="Keep this share of the probability; 1: all.")] = 1.0
    min_p: Annotated[Probability, Field(description="Drop what is below this share of the largest.")] = 0.0
    repetition_penalty: Annotated[Finite, Field(gt=0, description="Above 1: seen tokens count less.")] = 1.0
    presence_penalty: Annotated[Finite, Field(description="Subtracted once from generated tokens.")] = 0.0
    frequency_penalty: Annotated[Finite, Field(description="The same, per occurrence.")] = 0.0
    logit_bias: Annotated[dict[int, Bias], Field(description="Add X to the logit of token ID.")] = Field(
        default_factory=dict
    )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def edits_logits(self) -> bool:
        """Whether anything happens to logits before the temperature."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or bool(self.logit_bias)
        )


class RuntimeParams(BaseModel):
    """How requests share an engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_cache_bytes: Annotated[
        int | None,
        Field(ge=1, description="bytes of keys and values of all models; by default half of the memory that is free"),
    ] = None
    max_running: Annotated[int, Field(ge=1, description="requests that share the forwards at most")] = 64
    max_queued: Annotated[int | None, Field(ge=0, description="requests that may wait; by default any number")] = None
    reuse_prefixes: Annotated[
        bool, Field(description="take what requests that began alike have computed of their prompts and texts")
    ] = True
    load_aware: Annotated[
        bool,
        Field(
            description="depth=auto follows the load in every request; by default only where the text cannot depend on "
            "it: greedy, verify=coupled, beam search"
        ),
    ] = False
