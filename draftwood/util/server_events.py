"""Server-sent events of JSON, as OpenAI's protocol streams answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from draftwood.util.safe_parsing import parse_json


def server_events(lines: Iterable[bytes], finite: bool = True) -> Iterator[Any]:
    """The documents of a stream of events, without the closing [DONE]; ValueError where one is no JSON.

    `finite` is that of `parse_json`.
    """
    for line in lines:
        kind, _, data = line.decode("utf-8", "replace").strip().partition(":")
        if kind == "data" and data.strip() != "[DONE]":
            yield parse_json(data, finite)
