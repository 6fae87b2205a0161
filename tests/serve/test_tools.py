"""Tools, thoughts and templates over HTTP, as openai-python uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from servers import Running, running

from draftwood import load
from draftwood.models.text.replies import ReplyForm
from draftwood.serve.settings import ServeSettings

TEMPLATE = (
    "{% if tools %}{{ tools | length }} <tool_call>{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }}:{{ call.function.arguments.n }}>{% endfor %}|"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    "{% if enable_thinking %}<think>{% endif %}{{ reasoning_effort }}{# </think> #}"
)
NUMBER = {"type": "object", "properties": {"n": {"enum": [3, 44]}}, "required": ["n"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": NUMBER}}
    for name in ("get", "put")
]
HI: Any = [{"role": "user", "content": "hi"}]
METHODS: list[Any] = [
    *("off", "speculative", {"name": "mcsd", "tree": [2, 1]}, "lookup"),
    {"name": "dsbd", "width": 2, "draft_width": 2},
]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def caller(long_target: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model whose template knows tools and thoughts."""
    place = tmp_path_factory.mktemp("caller")
    for file in filter(Path.is_file, long_target.iterdir()):
        (place / file.name).write_bytes(file.read_bytes())
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    with running(load(place, draft), ServeSettings(api_key="k")) as found:
        found.client.headers["x-api-key"] = "k"
        yield found


@pytest.fixture
def client(caller: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{caller.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("speculation", METHODS, ids=str)
def test_forced_calls_are_valid(client: openai.OpenAI, caller: Running, speculation: Any) -> None:
    """Whole and streamed, and what the grammar alone gives for the seed."""
    form = ReplyForm(caller.service.tokenizer, TOOLS)
    grammar = form.grammar(["get", "put"], False)
    for seed in range(2):
        given: Any = {"model": caller.service.name, "messages": HI, "tools": TOOLS, "tool_choice": "required"}
        given |= {"seed": seed, "parallel_tool_calls": False, "extra_body": {"speculation": speculation}}
        answer = client.chat.completions.create(**given)
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function" and call.function.name in ("get", "put") and len(call.id) == 9
        assert json.loads(call.function.arguments)["n"] in (3, 44)
        assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
        with client.chat.completions.stream(**given) as events:
            streamed = events.get_final_completion().choices[0]
        (again,) = streamed.message.tool_calls or ()
        assert again.function.arguments == call.function.arguments and streamed.finish_reason == "tool_calls"
        spec = "autoregressive" if speculation == "off" else speculation
        prompt = "2 <tool_call>u:hi|a:"
        expected = caller.engine.generate(
            prompt, spec, max_new_tokens=2000, seed=seed, structured={"grammar": grammar}, skip_special_tokens=False
        )
        assert form.reader(expected.prompt_tokens).feed(expected.text, True).calls == [
            (call.function.name, call.function.arguments)
        ]


def test_every_method_follows_the_same_law(caller: Running) -> None:
    """Greedy: the call of plain decoding."""
    found = [
        caller.post(
            CHAT, messages=HI, tools=TOOLS, tool_choice="required", temperature=0, speculation=one, max_tokens=300
        )["choices"][0]["message"]
        for one in METHODS[:4]
    ]
    for message in found:
        for call in message.get("tool_calls") or ():
            del call["id"]
    assert found[0]["tool_calls"] and all(message == found[0] for message in found)


def test_three_turns(client: openai.OpenAI, caller: Running) -> None:
    """The server's own calls are sent back, as agents do."""
    talk: list[Any] = list(HI)
    for _ in range(3):
        answer = client.chat.completions.create(
            model=caller.service.name,
            messages=talk,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "put"}},
            parallel_tool_calls=False,
        )
        message = answer.choices[0].message
        (call,) = message.tool_calls or ()
        assert call.type == "function" and call.function.name == "put"
        sent = message.model_dump() | {"provider_specific_fields": {"a": 1}, "annotations": [{"type": "x"}]}
        talk += [sent, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    read = caller.post("/tokenize", messages=talk, tools=TOOLS)
    said = json.loads(call.function.arguments)["n"]
    assert caller.post("/detokenize", tokens=read["tokens"])["prompt"].endswith(f"<put:{said}>|t:7|a:")


def test_older_functions(client: openai.OpenAI, caller: Running) -> None:
    functions: Any = [tool["function"] for tool in TOOLS]
    answer = client.chat.completions.create(
        model=caller.service.name, messages=HI, functions=functions, function_call={"name": "get"}
    )
    message = answer.choices[0].message
    assert message.function_call is not None and message.function_call.name == "get" and not message.tool_calls
    assert answer.choices[0].finish_reason == "function_call"
    caller.post(
        CHAT, messages=[*HI, message.model_dump(), {"role": "function", "name": "get", "content": "7"}], max_tokens=1
    )


def test_thoughts(caller: Running) -> None:
    """The template opened the thought; the grammar says how the reply goes on."""
    given: Any = {
        "messages": HI,
        "chat_template_kwargs": {"enable_thinking": True},
        "guided_grammar": r"start: /ab<\/think>\n(c|d)/",
    }
    message = caller.post(CHAT, **given)["choices"][0]["message"]
    assert message["reasoning_content"] == "ab" and message["content"] in ("c", "d")
    deltas = [chunk["choices"][0]["delta"] for chunk in caller.chunks(CHAT, **given, seed=1)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "ab"
    assert "".join(delta["content"] for delta in deltas) in ("c", "d")
    form = {"response_format": {"type": "json_object"}}  # which is for what follows the thought
    free = caller.post(CHAT, messages=HI, chat_template_kwargs={"enable_thinking": True}, max_tokens=9, seed=1, **form)
    assert free["choices"][0]["message"]["content"] == "" and free["choices"][0]["message"]["reasoning_content"]
    plain = caller.post(CHAT, messages=HI, guided_regex="ab")["choices"][0]["message"]
    assert plain["content"] == "ab" and "reasoning_content" not in plain
    assert caller.post("/tokenize", messages=HI, reasoning_effort="low")["count"] == len("u:hi|a:low")


def test_fields_that_clients_send(caller: Running) -> None:
    ignored: Any = {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k", "user": "u"}
    ignored |= {"safety_identifier": "s", "verbosity": "low", "modalities": ["text"], "parallel_tool_calls": True}
    ignored |= {
        "prediction": {"type": "content", "content": "x"},
        "max_tokens": None,
        "tool_choice": "auto",
        "tools": [],
    }
    given: Any = {"messages": HI, "seed": 1, "guided_choice": ["ab"]}
    assert caller.post(CHAT, **given, **ignored)["choices"][0]["message"]["content"] == "ab"
    assert caller.post(CHAT, **given | {"max_tokens": -1})["system_fingerprint"].startswith("fp_")
    form = {"type": "json_object", "schema": {"enum": ["x"]}}
    assert caller.post(CHAT, messages=HI, response_format=form)["choices"][0]["message"]["content"] == '"x"'
    ids = caller.post(CHAT, **given, return_token_ids=True)["choices"][0]
    assert len(ids["prompt_token_ids"]) == len("u:hi|a:") and len(ids["token_ids"]) >= 2
    half: Any = [*HI, {"role": "assistant", "content": "so"}]
    read = caller.post("/tokenize", messages=half, continue_final_message=True, add_generation_prompt=False)
    assert caller.post("/detokenize", tokens=read["tokens"])["prompt"] == "u:hi|a:so"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tool_choice": "required"}, "there are no tools; give tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "the tools are get, put"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "more than once"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools: "),
        ({"chat_template_kwargs": {"messages": []}}, "messages is no variable that can be set"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "image_url cannot be read",
        ),
        ({"tool_choise": 1}, "did you mean 'tool_choice'?"),
        ({"max_tokens": 1, "echo": True}, "there is no field 'echo'"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_refusals(caller: Running, body: dict[str, Any], told: str) -> None:
    status, error = caller.refused(CHAT, **{"messages": HI, **body})
    assert status == 400 and told in error["message"], error


def test_keys(caller: Running) -> None:
    name = caller.service.name
    assert httpx.get(f"{caller.url}/v1/models/{name}").status_code == 401
    assert httpx.get(f"{caller.url}/models", headers={"x-api-key": "wrong"}).status_code == 401
    assert caller.client.get(f"/v1/models/{name}").json()["id"] == name
    answer = caller.client.get("/v1/models/org/other")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    assert caller.client.post("/chat/completions", json={"messages": HI, "max_tokens": 1}).status_code == 200


ANTHROPIC: Any = {
    "max_tokens": 200,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"n": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "7"}]},
    ],
    "tools": [{"name": "get", "input_schema": NUMBER}, {"name": "put", "input_schema": NUMBER}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "temperature": 0,
}


@pytest.mark.parametrize("speculation", METHODS[:4], ids=str)
def test_anthropic_messages(caller: Running, speculation: Any) -> None:
    given = {**ANTHROPIC, "model": caller.service.name, "speculation": speculation}
    whole = caller.post("/v1/messages", **given)
    (block,) = whole["content"]
    assert block["type"] == "tool_use" and block["name"] in ("get", "put") and block["input"]["n"] in (3, 44)
    assert whole["stop_reason"] == "tool_use" and whole["usage"]["output_tokens"]
    read = caller.post("/v1/messages/count_tokens", **{key: given[key] for key in ("messages", "tools")})
    assert read["input_tokens"] == whole["usage"]["input_tokens"] == len("2 <tool_call>u:hi|a:<get:3>|t:7|a:")
    events = events_of(caller, given)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-2:] == ["message_delta", "message_stop"]
    written = "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
    assert json.loads(written) == block["input"] and events[1]["content_block"]["name"] == block["name"]


def events_of(caller: Running, given: dict[str, Any]) -> list[dict[str, Any]]:
    answer = caller.client.post("/v1/messages", json={**given, "stream": True})
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_anthropic_texts(caller: Running) -> None:
    """The text of a chat, and its end."""
    given: Any = {"messages": HI, "max_tokens": 20, "temperature": 0, "system": [{"type": "text", "text": "be"}]}
    talk = [{"role": "system", "content": "be"}, *HI]
    expected = caller.post(CHAT, messages=talk, max_tokens=20, temperature=0)["choices"][0]
    whole = caller.post("/v1/messages", **given)
    assert whole["content"] == [{"type": "text", "text": expected["message"]["content"]}]
    assert whole["stop_reason"] == {"stop": "end_turn", "length": "max_tokens"}[expected["finish_reason"]]
    deltas = [event["delta"]["text"] for event in events_of(caller, given) if event["type"] == "content_block_delta"]
    assert "".join(deltas) == expected["message"]["content"]
    stop = expected["message"]["content"][3]
    assert caller.post("/v1/messages", **given, stop_sequences=[stop])["stop_reason"] == "stop_sequence"
    for bad, told in (
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image cannot be read"),
        ({"model": "claude"}, "there is no model 'claude'"),
        ({"max_tokens": None}, "max_tokens"),
    ):
        assert told in caller.refused("/v1/messages", **{**given, **bad})[1]["message"]


def test_ollama(caller: Running) -> None:
    """Chats, texts and calls, streamed and not; the text is that of chat completions."""
    name, options = caller.service.name, {"temperature": 0, "num_predict": 20, "num_ctx": 4096}
    expected = caller.post(CHAT, messages=HI, max_tokens=20, temperature=0)["choices"][0]["message"]["content"]
    given: Any = {"model": f"{name}:latest", "options": options}
    for path, asked, key in (
        ("/api/chat", {"messages": HI}, "message"),
        ("/api/generate", {"prompt": "hi"}, "response"),
    ):
        whole = caller.post(path, **given, **asked, stream=False)
        assert (whole[key] if key == "response" else whole[key]["content"]) == expected and whole["done"]
        answer = caller.client.post(path, json={**given, **asked})
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        *lines, last = map(json.loads, answer.text.splitlines())
        written = "".join(line[key] if key == "response" else line[key]["content"] for line in lines)
        assert written == expected and last["done"] and last["eval_count"] == whole["eval_count"] == 20
    call = {"function": {"name": "get", "arguments": {"n": 3}}}
    talk = [*HI, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "7"}]
    form = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    whole = caller.post("/api/chat", model=name, messages=talk, tools=TOOLS, format=form, stream=False)
    assert json.loads(whole["message"]["content"]) == {"a": 1}
    assert whole["prompt_eval_count"] == len("2 <tool_call>u:hi|a:<get:3>|t:7|a:")
    assert caller.client.get("/api/tags").json()["models"][0]["name"] == name
    assert caller.post("/api/show", model=name)["template"] == TEMPLATE
    assert caller.refused("/api/show", model="x")[0] == 404


@pytest.mark.slow
@pytest.mark.real
def test_an_agent_with_a_real_model(smollm2: Path) -> None:
    """SmolLM2's template knows no tools: it is told of them, and the grammar does the rest."""
    where = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}}, "required": ["city"]}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": where}}]
    with (
        running(load(smollm2)) as found,
        openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0) as client,
    ):
        talk: list[Any] = []
        for city in ("Paris", "Rome", "Oslo"):
            talk.append({"role": "user", "content": f"How is the weather in {city}?"})
            answer = client.chat.completions.create(
                model=found.service.name,
                messages=talk,
                tools=tools,
                tool_choice="required",
                temperature=0,
                max_tokens=40,
            )
            (call,) = answer.choices[0].message.tool_calls or ()
            assert call.type == "function" and json.loads(call.function.arguments) == {"city": city}
            talk += [
                answer.choices[0].message,
                {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"},
            ]
