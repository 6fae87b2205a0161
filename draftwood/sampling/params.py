"""Sampling, structured output and runtime options. Imports no torch: the command line checks flags at once."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


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

    temperature: Annotated[Finite, Field(ge=0, description="0: greedy; 1: the model's own distribution.")] = 1.0
    top_k: Annotated[int, Field(ge=0, description="Keep the K most probable tokens; 0: all.")] = 0
    top_p: Annotated[
        Probability, Field(gt=0, description="Keep the most probable tokens of this total probability; 1: all.")
    ] = 1.0
    min_p: Annotated[Probability, Field(description="Drop tokens below this share of the largest probability.")] = 0.0
    repetition_penalty: Annotated[
        Finite, Field(gt=0, description="Above 1: tokens seen before become less likely.")
    ] = 1.0
    presence_penalty: Annotated[Finite, Field(description="Subtracted once from the logits of generated tokens.")] = 0.0
    frequency_penalty: Annotated[Finite, Field(description="The same, per occurrence.")] = 0.0
    logit_bias: Annotated[dict[int, Bias], Field(description="Add X to the logit of token ID.")] = Field(
        default_factory=dict
    )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether improbable tokens become impossible."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def edits_logits(self) -> bool:
        """Whether anything happens to logits before the temperature."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or bool(self.logit_bias)
        )


LARGEST = 1 << 18  # characters of a grammar
NonEmptyText = Annotated[str, Field(min_length=1, max_length=LARGEST)]


class Structured(BaseModel):
    """A constraint on the text: exactly one of these. It then parses, or ends where the number of tokens does."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Structured output")

    json_schema: Annotated[
        dict[str, Any] | None, Field(description="JSON of this schema, written as Python's json.dumps does.")
    ] = None
    json_object: Annotated[bool, Field(description="Any JSON object.")] = False
    regex: Annotated[NonEmptyText | None, Field(description="All of the text matches it (syntax of Rust's regex).")] = (
        None
    )
    choice: Annotated[list[NonEmptyText] | None, Field(min_length=1, description="One of these texts.")] = None
    grammar: Annotated[
        NonEmptyText | None, Field(description="A context-free grammar in Lark's notation, or GBNF.")
    ] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of {', '.join(type(self).model_fields)}; {named} was given")
        _, text = self.source
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"{given[0]} is not valid Unicode: it has half of a surrogate pair")
        if len(text) > LARGEST:
            raise ValueError(f"{given[0]} has {len(text):,} characters, but at most {LARGEST:,} are read")
        return self

    @property
    def source(self) -> tuple[str, str]:
        """Its kind, json_schema, regex or grammar, and its text."""
        if self.regex is not None:
            return "regex", self.regex
        if self.grammar is not None:
            return "grammar", self.grammar
        if self.choice is not None:
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in self.choice)
            return "grammar", f"start: CHOICE\nCHOICE: {texts}"
        schema = {"type": "object"} if self.json_schema is None else self.json_schema
        try:
            return "json_schema", json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"json_schema is no JSON ({error})") from None


def _runtime(description: str, **constraints: Any) -> Any:
    """A field of RuntimeParams; on help pages they have a panel of their own."""
    return Field(description=description, json_schema_extra={"panel": "Requests and memory"}, **constraints)


class RuntimeParams(BaseModel):
    """How requests share an engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_cache_bytes: Annotated[
        int | None,
        _runtime("Bytes for the keys and values of all models. Default: half of the free memory.", ge=1),
    ] = None
    max_running: Annotated[int, _runtime("Most requests that run at once.", ge=1)] = 64
    max_queued: Annotated[int | None, _runtime("Most requests that wait; more are rejected.", ge=0)] = None
    reuse_prefixes: Annotated[bool, _runtime("Reuse keys and values of requests with the same prefix.")] = True
    load_aware: Annotated[
        bool,
        _runtime(
            "depth=auto follows the load in every request. Default: only where the text cannot depend on it (greedy, "
            "verify=coupled, beam search)."
        ),
    ] = False
