"""Tools and thoughts in /v1/responses, as openai-python uses them; replies that go on with the last message."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from servers import Running
from test_tools import HI, METHODS, NUMBER, caller, client

__all__ = ["caller", "client"]  # fixtures

TOOLS: Any = [
    {"type": "function", "name": name, "description": "d", "parameters": NUMBER, "strict": True}
    for name in ("get", "put")
]


@pytest.mark.parametrize("speculation", METHODS[:4], ids=str)
def test_forced_calls(client: openai.OpenAI, caller: Running, speculation: Any) -> None:
    """Whole and streamed alike, and what /v1/chat/completions gives; the answer can be sent back with a result."""
    given: Any = {"model": caller.service.name, "input": HI, "tools": TOOLS, "tool_choice": "required"}
    given |= {"parallel_tool_calls": False, "extra_body": {"speculation": speculation, "seed": 5}}
    answer = client.responses.create(**given)
    (call,) = answer.output
    assert call.type == "function_call" and call.status == "completed" and call.call_id.startswith("call_")
    functions = [
        {"type": "function", "function": {key: one[key] for key in ("name", "description", "parameters")}}
        for one in TOOLS
    ]
    chat = caller.post(
        "/v1/chat/completions",
        messages=HI,
        tools=functions,
        tool_choice="required",
        parallel_tool_calls=False,
        seed=5,
        speculation=speculation,
    )
    function = chat["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call.name, call.arguments) == (function["name"], function["arguments"])
    with client.responses.stream(**given) as events:
        kinds = [event.type for event in events]
        (streamed,) = events.get_final_response().output
    assert streamed.type == "function_call" and (streamed.name, streamed.arguments) == (call.name, call.arguments)
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    talk: Any = [*HI, call.model_dump(), result]
    again = client.responses.create(**given | {"input": talk})
    assert again.usage is not None
    assert again.usage.input_tokens == len(
        f"2 <tool_call>u:hi|a:<{call.name}:{json.loads(call.arguments)['n']}>|t:7|a:"
    )


def test_thoughts_are_items(caller: Running) -> None:
    given: Any = {"input": "hi", "reasoning": {"effort": "low"}, "store": True, "include": []}
    form = {"type": "json_schema", "name": "a", "schema": {"enum": ["x"]}}
    plain = caller.post("/v1/responses", **given, text={"format": form, "verbosity": "low"})
    assert plain["output"][0]["content"][0]["text"] == '"x"' and plain["usage"]["input_tokens"] == len("u:hi|a:low")
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
    talk = caller.post("/v1/responses", input=[*HI, item, message, *HI], max_output_tokens=1)
    assert talk["usage"]["input_tokens"] == len("u:hi|a:yes|u:hi|a:")


def test_streamed_thoughts_are_items(caller: Running) -> None:
    """The document at the end of a stream is that of the whole answer, and its events are of OpenAI's types."""
    service = caller.service
    thinking: Any = {"input": HI, "tools": TOOLS, "tool_choice": "auto", "temperature": 0, "max_output_tokens": 4}
    whole = caller.post("/v1/responses", **thinking)
    lines = caller.client.post("/v1/responses", json={**thinking, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event, strict=False)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    found = events[-1]["response"]
    assert [item["content"] for item in found["output"]] == [item["content"] for item in whole["output"]]
    assert found["status"] == whole["status"] and service.name == found["model"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tools": [{"type": "web_search"}]}, "'web_search' is a tool of OpenAI's own servers"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "the tools are get, put"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "needs name"),
        ({"input": [{"content": "x"}]}, "needs role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image cannot be read"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: nothing is stored here; send all of it as input"),
        ({"conversation": {"id": "conv_1"}}, "conversation: nothing is stored here"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt: nothing is stored here"),
        ({"max_tool_calls": 3}, "there is no field 'max_tool_calls'"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options are for streams"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "not padded here"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_refusals(caller: Running, body: dict[str, Any], told: str) -> None:
    status, error = caller.refused("/v1/responses", **{"input": "hi", **body})
    assert status == 400 and told in error["message"], error


def test_the_last_message_goes_on(caller: Running) -> None:
    """As Anthropic's and Ollama's clients mean it; others say so."""
    half = [*HI, {"role": "assistant", "content": "so"}]
    size = len("u:hi|a:so")
    assert caller.post("/v1/messages", messages=half, max_tokens=2)["usage"]["input_tokens"] == size
    given: Any = {"model": caller.service.name, "messages": half, "stream": False, "options": {"num_predict": 2}}
    assert caller.post("/api/chat", **given)["prompt_eval_count"] == size
    chat = caller.post("/v1/chat/completions", messages=half, continue_final_message=True, max_tokens=2)
    assert chat["usage"]["prompt_tokens"] == size
    for images in ({"images": ["aaaa"]}, {"messages": [{**HI[0], "images": ["aaaa"]}]}):
        body = {**given, **images}
        assert "images cannot be read" in caller.refused("/api/chat", **body)[1]["message"]
