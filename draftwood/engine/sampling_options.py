"""Sampling options by keyword (`temperature=0`) beside `sampling={...}`: one `SamplingParams` of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwood.errors import RequestError
from draftwood.sampling.params import SamplingParams
from draftwood.util import config
from draftwood.util.safe_parsing import short_repr

NAMES = frozenset(SamplingParams.model_fields)


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """The parameters that a request's options ask for.

    Raises ConfigurationError for a value that cannot be, RequestError where `sampling` and a keyword differ.
    """
    sampling = options.get("sampling")
    if not isinstance(sampling, SamplingParams):
        sampling = config.parse(SamplingParams, {} if sampling is None else sampling, "sampling")
    given = {name: value for name, value in options.items() if name in NAMES and value is not None}
    if not given:
        return sampling
    keywords = config.parse(SamplingParams, given, "sampling")
    for name in sorted(sampling.model_fields_set & keywords.model_fields_set):
        one, other = getattr(sampling, name), getattr(keywords, name)
        if one != other:
            raise RequestError(f"{name} is {short_repr(other)}, but sampling says {short_repr(one)}; give one of them")
    return sampling.model_copy(update={name: getattr(keywords, name) for name in given})


def entry_options(common: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one entry of a batch: its own, and the common ones where it has none.

    `sampling` of the entry replaces all common sampling options, a keyword of it the common value of this option alone.
    """
    if "sampling" in entry:
        common = {name: value for name, value in common.items() if name not in NAMES}
    elif (sampling := common.get("sampling")) is not None and entry.keys() & NAMES:
        if isinstance(sampling, SamplingParams):
            sampling = sampling.model_dump(exclude_unset=True)
        if isinstance(sampling, Mapping):  # else it is refused when it is parsed
            sampling = {name: value for name, value in sampling.items() if name not in entry}
        common = {**common, "sampling": sampling}
    return {**common, **entry}
