"""Agents of other libraries: python agents.py NAME URL MODEL runs one against a server, in any environment that has it.

All of them call tools in three turns and check that the calls are valid; the exit code is 3 where a library is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import pydantic

CITIES = ("Paris", "Rome", "Oslo")
WEATHER = "sunny, 20 degrees"
MISSING = 3
FIXED: dict[str, Any] = {"temperature": 0, "max_tokens": 60}


class Weather(pydantic.BaseModel):
    """Tell the weather in a city."""

    city: Literal["Paris", "Rome", "Oslo"]
    unit: Literal["celsius", "fahrenheit"]


def question(city: str) -> str:
    return f"How is the weather in {city}, in celsius?"


def langchain(url: str, model: str) -> None:
    """bind_tools, whole and streamed, plain and speculative."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    for speculation in ("off", "lookup"):
        extra = {"speculation": speculation}
        chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, extra_body=extra, **FIXED)
        bound = chat.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False)
        talk: list[Any] = []
        for city in CITIES:
            talk.append(HumanMessage(question(city)))
            answer = bound.invoke(talk)
            (call,) = answer.tool_calls
            assert call["name"] == "Weather" and Weather.model_validate(call["args"]).city == city, call
            parts = list(bound.stream(talk))
            whole: Any = sum(parts[1:], start=parts[0])
            assert whole.tool_calls[0]["args"] == call["args"], whole
            talk += [answer, ToolMessage(WEATHER, tool_call_id=call["id"])]
        assert chat.invoke(talk).content


def instructor(url: str, model: str) -> None:
    """The default mode calls a tool that is named as the type."""
    import openai
    from instructor import from_openai

    patched = from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    for city in CITIES:
        talk = [{"role": "user", "content": question(city)}]
        found = patched.chat.completions.create(
            model=model, response_model=Weather, messages=talk, max_retries=0, **FIXED
        )
        assert isinstance(found, Weather) and found.city == city, found


def litellm(url: str, model: str) -> None:
    """Three interfaces; its answers, which have fields of its own, are sent back."""
    from litellm import completion

    tools = [{"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}]
    for name, place in (("openai", f"{url}/v1"), ("anthropic", url), ("ollama_chat", url)):
        given: dict[str, Any] = {"model": f"{name}/{model}", "api_base": place, "api_key": "none", **FIXED}
        required = {} if name == "ollama_chat" else {"tools": tools, "tool_choice": "required"}  # which cannot require
        talk: list[Any] = []
        for city in CITIES:
            talk.append({"role": "user", "content": question(city)})
            message = completion(messages=talk, **required, **given).choices[0].message
            talk.append(message)
            assert required or message.content, message
            for call in message.tool_calls or () if required else ():
                assert Weather.model_validate(json.loads(call.function.arguments)), call
                talk.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER})
            assert not required or message.tool_calls, message


def pydantic_ai(url: str, model: str) -> None:
    """Its output is a call of a tool, by chat completions and by responses."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        agent: Any = Agent(kind(model, provider=provider), output_type=Weather, retries=0)
        for city in CITIES:
            found = agent.run_sync(question(city), model_settings=FIXED)
            assert found.output.city == city, found


AGENTS: dict[str, Callable[[str, str], None]] = {
    one.__name__: one for one in (langchain, instructor, litellm, pydantic_ai)
}

if __name__ == "__main__":
    try:
        AGENTS[sys.argv[1]](*sys.argv[2:])
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        sys.exit(MISSING)
