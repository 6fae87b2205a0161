"""A server on tiny models, for all tests of this directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_models
from servers import Running, running

from draftwood import load

TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}|{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def talker(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with a chat template."""
    place = tmp_path_factory.mktemp("talker")
    for file in target.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return place


@pytest.fixture(scope="session")
def served(talker: Path, draft: Path) -> Iterator[Running]:
    with running(load(talker, draft)) as found:
        yield found


@pytest.fixture(scope="session")
def long_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target that can write for seconds."""
    return tiny_models.write(tmp_path_factory.mktemp("models") / "long", seed=3, context=8000)
