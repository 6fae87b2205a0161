"""The public view of values and messages: without paths of this machine, with the API's names of fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.methods import METHODS, Method
from draftwood.methods.base import FILE
from draftwood.util.schema_text import describe

API_NAMES = {  # the library's name -> the API's
    ", lower max_new_tokens or raise kv_cache_bytes": " or lower max_tokens",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
}


class PublicView:
    """Texts and values in which paths of the models are replaced by their names."""

    def __init__(self, engine: Engine, name: str, method: Method) -> None:
        tokenizer = engine.tokenizer
        targets = [str(engine.names.get("target", "")), "" if tokenizer is None else tokenizer.name]
        names = {path: name for path in targets}
        for template in () if tokenizer is None else tokenizer.templates.values():
            names.setdefault(str(Path(template.origin).parent), name)
        for path in (*engine.names.get("draft", ()), *method.files):
            names.setdefault(str(path), Path(path).name)
        places = {path: called for path, called in names.items() if os.sep in path and Path(path).exists()}
        places |= {str(Path(path).resolve()): called for path, called in places.items()}
        self._names = {path: places[path] for path in sorted(places, key=len, reverse=True)}

    def value(self, value: Any) -> Any:
        """Plain data without paths."""
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        if isinstance(value, str):
            for path, name in self._names.items():
                value = value.replace(path, name)
        return value

    def sentence(self, text: str) -> str:
        """A message of the library, rewritten for a client."""
        for word, other in API_NAMES.items():
            text = text.replace(word, other)
        return str(self.value(text))


def public_method(method: type[Method]) -> dict[str, Any]:
    """A method as clients may ask for it: without options that name files, or that share text among requests."""
    facts = describe(method)
    return facts | {"options": [option for option in facts["options"] if option["name"] not in _hidden(method)]}


def check_options(spec: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where a method has no such option; hints name those of clients only."""
    name = spec.get("name")
    if not isinstance(name, str) or name not in METHODS:
        return  # for `Method.parse` to say
    method = METHODS[name]
    for option in spec:
        if option != "name" and option not in method.model_fields:
            known = method.model_fields.keys() - _hidden(method)
            raise ConfigurationError(f"method {name} has no option {option[:80]!r}" + did_you_mean(option, known))


def _hidden(method: type[Method]) -> set[str]:
    return {name for name, option in method.model_fields.items() if FILE in option.metadata or name == "shared"}
