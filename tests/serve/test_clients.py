"""Clients that know OpenAI's interface work unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from servers import Running

PROMPT = "Story: a fox"


@pytest.fixture
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completions(client: openai.OpenAI, served: Running) -> None:
    expected = served.engine.generate(PROMPT, max_new_tokens=20, seed=3)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=20, seed=3, logprobs=2)
    assert whole.choices[0].text == expected.text
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.token_logprobs
    assert whole.usage is not None and whole.usage.completion_tokens == len(expected.tokens)
    chunks = list(client.completions.create(model=model, prompt=PROMPT, max_tokens=20, seed=3, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_chat(client: openai.OpenAI, served: Running) -> None:
    expected = served.engine.generate("u:hi|a:", {"name": "mcsd", "tree": [2, 1]}, max_new_tokens=20, seed=3)
    whole = client.chat.completions.create(
        model=served.service.name,
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=20,
        seed=3,
        logprobs=True,
        top_logprobs=2,
        extra_body={"speculation": {"name": "mcsd", "tree": [2, 1]}},
    )
    assert whole.choices[0].message.content == expected.text
    assert whole.model_extra is not None and whole.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.content or ()) == len(
        expected.tokens
    )
    stream = client.chat.completions.create(
        model=served.service.name,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=20,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculation": {"name": "mcsd", "tree": [2, 1]}},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected.text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == len(expected.tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dumped", [False, True])
def test_answers_may_be_sent_back(client: openai.OpenAI, served: Running, stream: bool, dumped: bool) -> None:
    """As conversations are carried on: the message as it came, or as the client writes it down, nulls included."""
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    spoken = "u:hi|a:"
    for _ in range(3):
        given: Any = {"model": served.service.name, "messages": talk, "extra_body": {"guided_choice": ["ab"]}}
        if stream:
            with client.chat.completions.stream(**given, stream_options={"include_usage": True}) as events:
                answer: Any = events.get_final_completion()
        else:
            answer = client.chat.completions.create(**given)
        message = answer.choices[0].message
        assert message.content == "ab" and answer.usage.prompt_tokens == len(served.engine.tokens(spoken))
        talk += [message.model_dump() if dumped else message, {"role": "user", "content": "go"}]
        spoken += "ab|u:go|a:"


@pytest.mark.parametrize("stream", [False, True])
def test_responses_may_be_sent_back(client: openai.OpenAI, served: Running, stream: bool) -> None:
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    spoken = "u:hi|a:"
    schema = {"format": {"type": "json_schema", "name": "word", "schema": {"enum": ["ab"]}}}
    for _ in range(3):
        given: Any = {"model": served.service.name, "input": talk, "text": schema, "top_logprobs": 1}
        given |= {"include": ["message.output_text.logprobs"]}
        if stream:
            with client.responses.stream(**given) as events:
                answer: Any = events.get_final_response()
        else:
            answer = client.responses.create(**given)
        assert answer.output_text == '"ab"' and answer.usage.input_tokens == len(served.engine.tokens(spoken))
        talk += [*answer.output, {"role": "user", "content": "go"}]
        spoken += '"ab"|u:go|a:'


def test_a_message_without_text_may_be_sent_back(client: openai.OpenAI, served: Running) -> None:
    silent: Any = {"role": "assistant", "content": None, "refusal": None}
    for message in (silent, {"role": "assistant", "content": ""}, {"role": "assistant"}):
        talk: Any = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "go"}]
        found = client.chat.completions.create(model=served.service.name, messages=talk, max_tokens=4, seed=3)
        expected = served.engine.generate("u:hi|a:|u:go|a:", max_new_tokens=4, seed=3).text
        assert found.choices[0].message.content == expected


def test_responses(client: openai.OpenAI, served: Running) -> None:
    expected = served.engine.generate("u:hi|a:", max_new_tokens=20, seed=3).text
    extra = {"seed": 3}
    whole = client.responses.create(
        model=served.service.name,
        input="hi",
        max_output_tokens=20,
        include=["message.output_text.logprobs"],
        top_logprobs=1,
        extra_body=extra,
    )
    assert whole.output_text == expected
    (part,) = whole.output[0].content  # type: ignore[union-attr]
    assert part.type == "output_text" and part.logprobs is not None and part.logprobs[0].top_logprobs
    with client.responses.stream(
        model=served.service.name, input=[{"role": "user", "content": "hi"}], max_output_tokens=20, extra_body=extra
    ) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete") and last.response.output_text == expected


def test_asyncio(served: Running) -> None:
    expected = [served.engine.generate(PROMPT, max_new_tokens=20, seed=seed).text for seed in range(6)]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:

            async def one(seed: int) -> str:
                chunks = await client.completions.create(
                    model=served.service.name, prompt=PROMPT, max_tokens=20, seed=seed, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in chunks])

            return list(await asyncio.gather(*map(one, range(6))))

    assert asyncio.run(ask()) == expected


def test_errors(client: openai.OpenAI, served: Running) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-5", prompt="a")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="there is no field 'depth'"):
        client.completions.create(model=served.service.name, prompt="a", extra_body={"depth": 1})


class Fruit(pydantic.BaseModel):
    """The text that the model must write."""

    name: Literal["pear", "plum"]
    ripe: bool


def test_structured_output(client: openai.OpenAI, served: Running) -> None:
    answer = client.chat.completions.parse(
        model=served.service.name,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=60,
        seed=1,
        response_format=Fruit,
        extra_body={"speculation": {"name": "dsbd", "width": 2, "draft_width": 2}},
    )
    found = answer.choices[0].message.parsed
    assert found is not None and found.name in ("pear", "plum")
