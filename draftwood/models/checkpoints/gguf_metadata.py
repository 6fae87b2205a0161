"""Types and helpers of the readers of a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.util.safe_parsing import short_repr


class Metadata(Protocol):
    """The metadata of a file, by keys without the architecture's name."""

    def value(self, key: str, default: Any = None) -> Any:
        """A value; of an array of equal ones, one for each layer, that one."""
        ...

    def array(self, key: str) -> list[Any]:
        """The values of an array; none where there is no array."""
        ...

    def has(self, name: str) -> bool:
        """True if the file has this tensor."""
        ...

    def shape(self, name: str) -> tuple[list[int], Path]:
        """Shape and file of a tensor that must be there."""
        ...

    def vector(self, name: str) -> list[float]:
        """The numbers of a tensor of one dimension."""
        ...


Reader = Callable[[Metadata, Raw], Raw]  # keys of config.json, from sizes and what they say together with them
FULL, SLIDING = "full_attention", "sliding_attention"


def needed(file: Metadata, key: str) -> int:
    """A positive whole number that must be there."""
    value: Any = file.value(key)
    if type(value) is not int or not 0 < value < 2**31:
        raise ModelError(
            f"{key} is {'missing' if value is None else short_repr(value)}, but must be a positive whole number; "
            "convert the model again"
        )
    return value


def renamed(**names: str) -> Reader:
    """Keys of config.json from metadata of other names, where there are some."""

    def read(file: Metadata, raw: Raw) -> Raw:
        values = {key: file.value(name) for key, name in names.items()}
        return {key: value for key, value in values.items() if value is not None}

    return read


def windows(every: int, default: int = 0) -> Reader:
    """Sliding windows in all but each `every`th layer, unless the file says which."""

    def read(file: Metadata, raw: Raw) -> Raw:
        window = file.value("attention.sliding_window", default) or None
        limited = file.array("attention.sliding_window_pattern")  # of each layer
        if not limited:
            step = file.value("attention.sliding_window_pattern", every)
            limited = [layer % step != 0 for layer in range(1, raw["num_hidden_layers"] + 1)]
        types = [SLIDING if window and each else FULL for each in limited]
        return {"sliding_window": window, "layer_types": types}

    return read
