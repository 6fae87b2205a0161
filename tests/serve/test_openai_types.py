"""Requests and answers of the server are of openai-python's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams
from pydantic import TypeAdapter
from servers import Running

from draftwood.serve.protocol import ChatRequest, CompletionRequest, GenerationRequest
from draftwood.serve.response_request import ResponseRequest

BEYOND = {  # fields that are not OpenAI's: vLLM's, and ours
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "speculation"),
    *("use_beam_search", "length_penalty", "early_stopping", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "skip_special_tokens", "return_token_ids"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "include_stop_str_in_output"),
    *("bad_words", "allowed_token_ids", "prompt_logprobs", "truncate_prompt_tokens", "priority"),
}
ASKED = {"n": 2, "seed": 1, "temperature": 0.9, "top_p": 0.9, "stop": ["\n"], "user": "u", "logit_bias": {"5": 1}}
ASKED |= {"presence_penalty": 0.1, "frequency_penalty": 0.1, "max_tokens": 8}
STREAM = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
JSON = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}, "strict": True}}
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
COMPLETION = {"model": "m", "prompt": "ab", "logprobs": 2, "best_of": 2, "echo": True, **ASKED}
CHAT = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "response_format": JSON, **ASKED}
RESPONSE = {
    "model": "m",
    "input": "hi",
    "instructions": "be brief",
    "max_output_tokens": 8,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "store": False,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "boolean"}}},
}


@pytest.mark.parametrize(
    ("ours", "theirs", "more", "body"),
    [
        (CompletionRequest, CompletionParams, {"response_format", "stream"}, COMPLETION),
        (ChatRequest, ChatParams, {"best_of", "stream"}, CHAT),
        (ResponseRequest, ResponseParams, {"seed", "stream"}, RESPONSE),
    ],
    ids=["completions", "chat", "responses"],
)
def test_requests(ours: type[GenerationRequest], theirs: Any, more: set[str], body: dict[str, Any]) -> None:
    known = theirs.__required_keys__ | theirs.__optional_keys__
    assert set(ours.model_fields) - known <= BEYOND | more
    assert set(body) <= known
    TypeAdapter(theirs).validate_python(body)
    ours.model_validate_json(json.dumps(body))
    ours.model_validate(dict.fromkeys(known) | body)  # what is null asks for nothing, whether it is known here or not


def of(kind: Any, document: Any) -> None:
    TypeAdapter(kind).validate_python(document)


@pytest.mark.parametrize("speculation", ["speculative", {"name": "dsbd", "width": 2, "draft_width": 2}], ids=str)
def test_answers(served: Running, speculation: Any) -> None:
    asked = {"max_tokens": 6, "seed": 1, "n": 2, "speculation": speculation}
    of(Completion, served.post("/v1/completions", prompt="ab", logprobs=2, **asked))
    for chunk in served.chunks("/v1/completions", prompt="ab", logprobs=2, **asked, **STREAM):
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null in OpenAI's streams, not in its type
        of(Completion, chunk)
    asked |= {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    of(ChatCompletion, served.post("/v1/chat/completions", **asked))
    for chunk in served.chunks("/v1/chat/completions", **asked, **STREAM):
        of(ChatCompletionChunk, chunk)
    asked = {"input": "hi", "max_output_tokens": 6, "seed": 1, "speculation": speculation}
    of(Response, served.post("/v1/responses", **asked, include=RESPONSE["include"], top_logprobs=1))
    asked |= {"stream": True, "stream_options": {"include_obfuscation": False}}
    lines = served.client.post("/v1/responses", json=asked).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert len(events) > 6
    for event in events:
        of(ResponseStreamEvent, event)
    for model in served.client.get("/v1/models").json()["data"]:
        of(Model, model)
