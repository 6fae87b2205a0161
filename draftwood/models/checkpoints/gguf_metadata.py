"""What readers of a GGUF file's metadata have to do with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from draftwood.models.checkpoints.config_keys import Raw


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


Reader = Callable[[Metadata, Raw], Raw]  # keys of config.json, from sizes and what they say together with them
