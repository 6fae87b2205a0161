"""Anthropic's and Ollama's own clients work unchanged; openai-python is in test_clients.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ollama
import pytest
from servers import Running
from test_tools import HI, NUMBER, TOOLS, caller

if TYPE_CHECKING:
    import anthropic

__all__ = ["caller"]  # a fixture


@pytest.fixture
def claude(caller: Running) -> Iterator[anthropic.Anthropic]:
    from anthropic import Anthropic  # takes seconds

    with Anthropic(base_url=caller.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def llama(caller: Running) -> Iterator[ollama.Client]:
    client = ollama.Client(host=caller.url, headers={"authorization": "Bearer k"})
    yield client
    client._client.close()


def expected(caller: Running, messages: Any = HI) -> str:
    given: Any = {"messages": messages, "max_tokens": 20, "temperature": 0}
    return str(caller.post("/v1/chat/completions", **given)["choices"][0]["message"]["content"])


def test_anthropic_texts(claude: anthropic.Anthropic, caller: Running) -> None:
    given: Any = {"model": caller.service.name, "max_tokens": 20, "messages": HI, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**given)
    (block,) = whole.content
    assert block.type == "text" and block.text == expected(caller)
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens
    with claude.messages.stream(**given) as stream:
        assert "".join(stream.text_stream) == block.text
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    talk: Any = [*HI, {"role": "assistant", "content": whole.content}, *HI]
    counted = claude.messages.count_tokens(model=caller.service.name, messages=talk, system="be")
    said: Any = [{"role": "system", "content": "be"}, *HI, {"role": "assistant", "content": block.text}, *HI]
    assert counted.input_tokens == caller.post("/tokenize", messages=said)["count"]
    assert [model.id for model in claude.models.list()] == [caller.service.name]
    form: Any = {"effort": "low", "format": {"type": "json_schema", "schema": {"enum": ["x"]}}}
    strict = claude.messages.create(**given | {"max_tokens": 9}, output_config=form, thinking={"type": "adaptive"})
    assert strict.content[0].type == "text" and strict.content[0].text == '"x"'
    assert strict.usage.input_tokens == len("u:hi|a:<think>low")


def test_anthropic_tools(claude: anthropic.Anthropic, caller: Running) -> None:
    """Three turns; arguments grow while they are streamed."""
    tools: Any = [{"name": name, "description": "d", "input_schema": NUMBER} for name in ("get", "put")]
    talk: Any = list(HI)
    for _ in range(3):
        given: Any = {"model": caller.service.name, "max_tokens": 200, "messages": talk, "tools": tools}
        given["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
        with claude.messages.stream(**given) as stream:
            kinds = [event.type for event in stream]
            answer = stream.get_final_message()
        (call,) = answer.content
        assert call.type == "tool_use" and call.input["n"] in (3, 44) and answer.stop_reason == "tool_use"
        assert "input_json" in kinds
        talk.append({"role": "assistant", "content": answer.content})
        talk.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "7"}]})


def test_anthropic_errors(claude: anthropic.Anthropic) -> None:
    from anthropic import AuthenticationError, NotFoundError

    with pytest.raises(NotFoundError, match="there is no model 'claude'"):
        claude.messages.create(model="claude", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(AuthenticationError):
        claude.with_options(api_key="x").models.list()


def test_ollama_texts(llama: ollama.Client, caller: Running) -> None:
    name, options = caller.service.name, {"num_predict": 20, "temperature": 0, "num_ctx": 64}
    for model in (name, f"{name}:latest"):
        whole = llama.chat(model, HI, options=options)
        assert whole.message.content == expected(caller) and whole.done and whole.eval_count
    parts = list(llama.chat(name, HI, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == expected(caller) and parts[-1].done
    assert llama.generate(name, "hi", options=options, keep_alive=0).response == expected(caller)
    assert "".join(part.response for part in llama.generate(name, "hi", options=options, stream=True)) == (
        expected(caller)
    )
    assert llama.generate(name, "hi", format={"enum": ["x"]}).response == '"x"'
    raw = llama.generate(name, "hi", options=options | {"seed": 1}, raw=True).response
    assert raw == caller.post("/v1/completions", prompt="hi", max_tokens=20, temperature=0)["choices"][0]["text"]
    assert [model.model for model in llama.list().models] == [model.model for model in llama.ps().models] == [name]
    assert caller.client.get("/api/version").json()["version"]
    shown = llama.show(name)
    assert shown.template and shown.capabilities is not None and "tools" in shown.capabilities
    with pytest.raises(ollama.ResponseError, match="there is no model 'llama3'"):
        llama.chat("llama3", HI)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [-2, -1, 0])
def test_ollama_texts_without_a_limit(llama: ollama.Client, caller: Running, limit: int) -> None:
    for raw in (False, True):
        texts = [
            llama.generate(caller.service.name, "hi", options={"seed": 1, **more}, raw=raw).response
            for more in ({}, {"num_predict": limit})
        ]
        assert texts[0] == texts[1]


def test_ollama_tools(llama: ollama.Client, caller: Running) -> None:
    """Calls come whole, with their arguments as an object; a grammar in `format` would forbid them."""

    def get(n: int) -> str:
        """Get a number.

        Args:
            n: which one
        """
        return str(n)

    name = caller.service.name
    answer = llama.chat(name, HI, tools=[get], options={"num_predict": 4})
    assert answer.message.role == "assistant"
    call: Any = {"function": {"name": "get", "arguments": {"n": 3}}}
    talk: Any = [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "7", "tool_name": "get"}]
    again = llama.chat(name, talk, tools=TOOLS, options={"num_predict": 4})
    assert again.prompt_eval_count == len("2 <tool_call>u:hi|a:<get:3>|t:7|a:")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_bodies_without_a_content_type(caller: Running, kind: str | None) -> None:
    """As clients of Ollama and llama.cpp send them, curl -d too; pages of other origins are refused all the same."""
    body = json.dumps({"model": caller.service.name, "prompt": "hi", "n_predict": 2, "options": {"num_predict": 2}})
    headers = {} if kind is None else {"content-type": kind}
    for path in ("/api/generate", "/completion"):
        assert caller.client.post(path, content=body, headers=headers).status_code == 200
        other = headers | {"origin": "https://evil.example"}
        assert caller.client.post(path, content=body, headers=other).status_code == 403


# Bodies as these programs send them, cut to what is not text.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Open WebUI, chat": (
        "/v1/chat/completions",
        {
            "stream": True,
            "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
            "stream_options": {"include_usage": True},
            "temperature": 0.7,
            "max_tokens": 4,
        },
    ),
    "Open WebUI, title": (
        "/v1/chat/completions",
        {"messages": HI, "stream": False, "max_completion_tokens": 4},
    ),
    "Open WebUI over Ollama": (
        "/api/chat",
        {"messages": HI, "options": {"num_predict": 4, "stop": None}, "stream": True, "keep_alive": "5m"},
    ),
    "aider": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
            "temperature": 0,
            "stream": True,
            "max_tokens": 4,
        },
    ),
    "continue.dev, chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "max_tokens": 4,
            "stream": True,
            "tools": TOOLS,
            "parallel_tool_calls": False,
        },
    ),
    "continue.dev, completion": (
        "/v1/completions",
        {"prompt": "def f(", "max_tokens": 4, "temperature": 0.01, "stream": True, "stop": ["\n\n", "/src/"]},
    ),
    "continue.dev over llama.cpp": (
        "/completion",
        {"prompt": "def f(", "n_predict": 4, "stream": True, "stop": ["\n"], "cache_prompt": True, "top_k": 40},
    ),
}


@pytest.mark.parametrize("program", BODIES)
def test_bodies_of_programs(caller: Running, program: str) -> None:
    path, body = BODIES[program]
    answer = caller.client.post(path, json={"model": caller.service.name, **body})
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        lines = [line for line in answer.text.splitlines() if line]
        assert len(lines) >= 2 and "error" not in answer.text
