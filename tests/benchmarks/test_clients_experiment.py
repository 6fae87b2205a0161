"""Many clients of all kinds: what is right is counted as answered, what is not as lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from servers import Running, running

from benchmarks import clients
from benchmarks.pages import servers
from draftwood import load


@pytest.fixture
def talker(long_target: Path, tmp_path: Path) -> Iterator[Running]:
    """A server of a model whose template knows tools."""
    for file in filter(Path.is_file, long_target.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with running(load(tmp_path)) as served:
        yield served


async def one(url: str, kind: clients.Kind, greedy: dict[str, str]) -> str:
    asked = clients.Clients(url)
    asked.model, asked.greedy = (await asked.http.get("/v1/models")).json()["data"][0]["id"], greedy
    try:
        return await kind(asked, Random(0))
    finally:
        await asked.http.aclose()


@pytest.mark.slow
def test_every_kind_is_counted(talker: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document: dict[str, Any] = asyncio.run(clients.measured(talker.url, os.getpid(), 4, 3.0, 2))
    ends = {row["kind"]: row["requests"] for row in document["tables"]["kinds"]}
    assert not document["wrong"] and not any("lost" in name for name in ends), document["wrong"]
    assert document["tables"]["crowd"][0]["requests"] == sum(ends.values()) > 4
    assert [row["beside"] for row in document["tables"]["first_token"]] == ["alone", *clients.HEAVY]
    (tmp_path / "clients").mkdir()
    about = {"environment": {"began": "2026-11-27", "git_commit": "0" * 40}, "settings": {"light": 2}}
    (tmp_path / "clients" / "tiny.json").write_text(json.dumps(document | about))
    monkeypatch.setattr(servers, "RESULTS", tmp_path)
    assert "| tiny | 4 |" in servers.crowds()


def test_another_text_is_wrong(talker: Running) -> None:
    with pytest.raises(clients.Wrong):
        asyncio.run(one(talker.url, clients.greedy, dict.fromkeys(clients.PROMPTS, "another text")))
    assert asyncio.run(one(talker.url, clients.greedy, {})) == "answered"
    assert asyncio.run(one(talker.url, clients.nonsense, {})) == "refused"
