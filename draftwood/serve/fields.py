"""Types of fields that bodies of requests have. Unknown fields are errors; null is as an absent field."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_TOP_LOGPROBS = 20  # log-probabilities at each place


def max_entries(limit: int) -> BeforeValidator:
    """Refuses a larger mapping before its entries are looked at, each of which may be wrong."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > limit:
            raise ValueError(f"it has {len(given):,} entries, but at most {limit:,} are taken")
        return given

    return BeforeValidator(check)


def refused(reason: str) -> BeforeValidator:
    """Refuses what asks for something that is not done; `reason` is the error. Null and false ask for nothing."""

    def check(given: Any) -> Any:
        if given is not None and given is not False:
            raise ValueError(reason)
        return given

    return BeforeValidator(check)


T = TypeVar("T")
Every = Annotated[list[T], Field(fail_fast=True)]  # of a million wrong elements the first one is enough

Penalty = Annotated[float, Field(ge=-2, le=2)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenList = Every[Token]


def _valid_unicode(text: str) -> str:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("the text is not valid Unicode: it has half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_valid_unicode)]
StopText = Annotated[Text, Field(min_length=1, max_length=256)]
Name = Annotated[Text, Field(max_length=256)]


class Body(BaseModel):
    """A JSON object without other fields than these, unless they are null."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"additionalProperties": {"type": "null"}})

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, given: Any) -> Any:
        """Keep one of many unknown fields, which is enough for the error, and none that is null."""
        if not isinstance(given, dict) or (len(given) <= len(cls.model_fields) and None not in given.values()):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next((name for name, value in given.items() if name not in known and value is not None), None)
        return {name: value for name, value in given.items() if name in known or name == unknown}


class Loose(Body):
    """An object whose other fields say nothing to the model, such as those that clients keep in answers."""

    model_config = ConfigDict(extra="ignore", strict=True, json_schema_extra=None)


def _writable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        _valid_unicode(json.dumps(schema, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return schema


WritableSchema = Annotated[dict[str, Any], AfterValidator(_writable)]
