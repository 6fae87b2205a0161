"""Clients get hints that fit the endpoint, no paths of the server, no options that are not theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Running, running

from draftwood import METHODS, load
from draftwood.serve.settings import ServeSettings

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "field", "hint"),
    [
        ("/v1/completions", {"prompt": "a", "metadata": {}}, "metadata", None),
        ("/v1/completions", {"prompt": "a", "messages": HI}, "messages", None),
        ("/v1/completions", {"prompt": "a", "instructions": "a"}, "instructions", "stream_options"),
        (
            "/v1/completions",
            {"prompt": "a", "stream_options": {"include": True}},
            "stream_options.include",
            "include_usage",
        ),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"jso": {}}}, "structured_outputs.jso", "json"),
        ("/v1/chat/completions", {"messages": HI, "prompt": "a"}, "prompt", None),
        ("/v1/chat/completions", {"messages": HI, "max_token": 1}, "max_token", "max_tokens"),
        ("/v1/responses", {"input": "a", "top_k": 1}, "top_k", "top_p"),
        ("/v1/responses", {"input": "a", "max_tokens": 1}, "max_tokens", "max_output_tokens"),
        ("/tokenize", {"prompt": "a", "tokens": [1]}, "tokens", None),
        ("/detokenize", {"tokens": [1], "prompts": "a"}, "prompts", None),
    ],
)
def test_hints_name_fields_of_the_endpoint(
    served: Running, path: str, body: dict[str, Any], field: str, hint: str | None
) -> None:
    schema = served.client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]
    status, error = served.refused(path, **body)
    expected = f"there is no field {field!r}" + (f" (did you mean {hint!r}?)" if hint else "")
    assert (status, error["message"], error["code"]) == (400, expected, "unknown_field"), schema


@pytest.fixture(scope="module")
def secret(talker: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose models are in directories that nobody must know."""
    place = tmp_path_factory.mktemp("hidden-place")
    target = Path(shutil.copytree(talker, place / "model"))
    with running(load(target, draft=Path(shutil.copytree(draft, place / "draft")))) as found:
        yield found


def test_no_path_of_the_server_is_told(secret: Running) -> None:
    """Neither in messages, whatever fails, nor on the page."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "a", "speculation": name}) for name in METHODS
    ]
    asked += [("/v1/chat/completions", {"messages": [{"role": role, "content": "x"}]}) for role in ("tool", "system")]
    asked += [
        ("/v1/forest", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "seed": 1}),
        ("/v1/responses", {"input": HI}),
    ]
    answers = [secret.client.post(path, json=body).text for path, body in asked]
    answers += [secret.client.get(path).text for path in ("/page.json", "/v1/models", "/v1/methods", "/metrics", "/")]
    assert not [text for text in answers if "hidden-place" in text]
    assert json.loads(secret.client.get("/page.json").text)["models"]["target"] == "model"
    assert "draft" in secret.client.get("/page.json").json()["models"]["draft"]


def test_a_template_that_fails_is_named_without_its_path(secret: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (template,) = secret.service.tokenizer.templates.values()
    monkeypatch.setattr(template, "source", "{{ messages[0].content + 1 }}")
    status, error = secret.refused("/v1/chat/completions", messages=HI)
    assert status == 400 and "the chat template of model/" in error["message"]
    monkeypatch.setattr(secret.service.tokenizer, "templates", {})
    status, error = secret.refused("/v1/chat/completions", messages=HI)
    assert status == 400 and "the model 'model' has no chat template" in error["message"]


def test_options_that_are_not_for_clients_are_not_offered(served: Running) -> None:
    for method in served.client.get("/v1/methods").json()["data"]:
        for option in method["options"]:
            assert option["name"] not in ("heads", "head", "skip", "exit", "shared"), (method["name"], option)
    for spec in ({"name": "medusa", "hea": 1}, {"name": "lookup", "share": True}, {"name": "eagle", "x": 1}):
        message = served.refused("/v1/completions", prompt="a", speculation=spec)[1]["message"]
        assert "has no option" in message and not any(f"{word!r}" in message for word in ("heads", "head", "shared"))


def test_advice_is_for_clients(target: Path) -> None:
    """It names fields of the API, not flags of the command or options of the library."""
    with running(load(target, kv_cache_bytes=20_000), ServeSettings()) as other:
        for body in (
            {"speculation": "speculative"},
            {"speculation": "mcsd"},
            {"speculation": "eesd"},
            {"speculation": "medusa"},
            {"min_tokens": 3, "max_tokens": 2},
            {"max_tokens": 90},
        ):
            status, error = other.refused("/v1/completions", prompt="a", **body)
            assert status in (400, 422), error
            for word in ("--", "load(", "max_new_tokens", "min_new_tokens", "kv_cache_bytes", "draftwood train", "DIR"):
                assert word not in error["message"], error
