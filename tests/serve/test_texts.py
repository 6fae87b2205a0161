"""Texts through HTTP are the engine's: alone, under load, streamed or not, several texts, beams."""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import Running

METHODS: list[Any] = [
    "off",
    {"name": "speculative", "gamma": 3},
    {"name": "mcsd", "tree": [3, 2, 1], "verify": "coupled"},
    {"name": "lookup"},
]
BEAMS: list[Any] = [
    {"name": "dsbd", "width": 3, "draft_width": 4},
    {"name": "beam-sampling", "width": 3, "replacement": False},
    {"name": "speculative-beam-search", "width": 3, "depth": "fixed"},
]
PROMPT, LENGTH = "Story: a fox", 24


def method_of(spec: Any) -> Any:
    return "autoregressive" if spec == "off" else spec


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """The text of each choice of a stream."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"]["content"]
            found[choice["index"]] = found.get(choice["index"], "") + piece
    return found


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_the_engine(served: Running, method: Any, temperature: float) -> None:
    sampling = {"temperature": temperature, "top_p": 0.9}
    expected = [served.engine.generate(PROMPT, method_of(method), sampling, LENGTH, seed=seed) for seed in (5, 6, 7)]
    asked = {"prompt": PROMPT, "max_tokens": LENGTH, "seed": 5, "n": 3, "speculation": method, **sampling}
    whole = served.post("/v1/completions", **asked)
    assert [choice["text"] for choice in whole["choices"]] == [one.text for one in expected]
    reasons = {"eos": "stop", "length": "length"}
    assert [choice["finish_reason"] for choice in whole["choices"]] == [reasons[one.finish_reason] for one in expected]
    assert whole["usage"]["completion_tokens"] == sum(len(one.tokens) for one in expected)
    assert whole["usage"]["prompt_tokens"] == len(PROMPT)
    chunks = served.chunks("/v1/completions", **asked)
    assert texts(chunks) == dict(enumerate(one.text for one in expected))
    figures = chunks[-1]["metrics"]["speculative_decoding"]
    assert figures == whole["metrics"]["speculative_decoding"]
    assert figures["num_draft_tokens"] == sum(one.metrics.drafted for one in expected)
    steps = figures["acceptance_histogram"]
    assert sum(steps) == figures["num_spec_steps"]
    assert sum(j * count for j, count in enumerate(steps)) == figures["num_accepted_tokens"]


@pytest.mark.parametrize("method", BEAMS, ids=str)
def test_beams_are_those_of_the_engine(served: Running, method: Any) -> None:
    expected = served.engine.generate(PROMPT, {**method, "n_best": 3}, max_new_tokens=LENGTH, seed=4).beams
    asked = {"prompt": PROMPT, "max_tokens": LENGTH, "seed": 4, "n": 3, "speculation": method, "logprobs": 1}
    whole = served.post("/v1/completions", **asked)
    assert [choice["text"] for choice in whole["choices"]] == [beam.text for beam in expected]
    assert [choice["score"] for choice in whole["choices"]] == [beam.score for beam in expected]
    assert whole["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(expected[0].logprobs)
    chunks = served.chunks("/v1/completions", **asked)
    assert texts(chunks) == {i: beam.text for i, beam in enumerate(expected)}
    ended = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert [choice["index"] for choice in ended] == list(range(len(expected)))
    streamed = [
        value
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == 0
        for value in choice["logprobs"]["token_logprobs"]
    ]
    assert streamed == pytest.approx(expected[0].logprobs)


def test_the_trunk_of_beams_grows_before_the_end(served: Running) -> None:
    """Streamed, the first choice grows as far as all agree; how drafts went is told over all beams."""
    method = {"name": "dsbd", "width": 2, "draft_width": 3, "n_best": 2}
    asked = {"prompt": PROMPT, "max_tokens": LENGTH, "seed": 4, "speculation": method, "temperature": 0.3}
    chunks = served.chunks("/v1/completions", **asked)
    grown = [chunk for chunk in chunks if all(one["index"] == 0 and one["text"] for one in chunk["choices"])]
    assert len(grown) > 2
    figures = chunks[-1]["metrics"]["speculative_decoding"]
    assert figures == served.post("/v1/completions", **asked)["metrics"]["speculative_decoding"]
    assert figures["mean_acceptance_length"] >= 1 and figures["num_draft_tokens"] > figures["num_accepted_tokens"]


def test_beams_of_several_prompts(served: Running) -> None:
    """Where the method says how many beams there are, that is how many choices a prompt has."""
    method = {"name": "dsbd", "width": 3, "draft_width": 4, "n_best": 2, "replacement": False}
    expected = [
        f"{prompt}{beam.text}"
        for prompt in ("ab", "cde")
        for beam in served.engine.generate(prompt, method, max_new_tokens=8, seed=4).beams
    ]
    asked = {"prompt": ["ab", "cde"], "max_tokens": 8, "seed": 4, "speculation": method, "echo": True}
    choices = served.post("/v1/completions", **asked)["choices"]
    assert [choice["text"] for choice in choices] == expected and len(expected) == 4
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert texts(served.chunks("/v1/completions", **asked)) == dict(enumerate(expected))


def test_beam_search_is_asked_for_as_of_vllm(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    method = {"name": "beam-search", "width": 4, "n_best": 2, "length_penalty": 0.5}
    expected = served.engine.generate(PROMPT, method, max_new_tokens=LENGTH).beams
    asked = {"prompt": PROMPT, "max_tokens": LENGTH, "use_beam_search": True, "n": 2, "length_penalty": 0.5}
    names = list[str]()
    monkeypatch.setattr(served.engine.builder, "prepare", lambda made: names.append(made.request.method.name))
    for speculation in (None, "off"):
        found = served.post("/v1/completions", **asked, speculation=speculation, temperature=0.0)
        assert [choice["text"] for choice in found["choices"]] == [beam.text for beam in expected]
        assert found["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0 or speculation is None
    assert names == ["speculative-beam-search", "beam-search"]


def test_texts_under_load_are_those_alone(served: Running) -> None:
    specs = [*METHODS, *BEAMS]
    requests = [
        {
            "prompt": f"{PROMPT} {i % 5}",
            "seed": i,
            "max_tokens": 16,
            "speculation": specs[i % len(specs)],
            "temperature": 1.0,
            "n": 1 + i % 2,
        }
        for i in range(28)
    ]

    def ask(i: int) -> dict[int, str]:
        if i % 3:
            return texts(served.chunks("/v1/completions", **requests[i]))
        return {choice["index"]: choice["text"] for choice in served.post("/v1/completions", **requests[i])["choices"]}

    alone = [ask(i) for i in range(len(requests))]
    with ThreadPoolExecutor(14) as pool:
        assert list(pool.map(ask, range(len(requests)))) == alone


def test_several_prompts_and_token_ids(served: Running) -> None:
    ids = [served.engine.tokens(prompt) for prompt in ("ab", "cde")]
    asked = {"max_tokens": 5, "n": 2, "temperature": 0.0}
    by_text = served.post("/v1/completions", prompt=["ab", "cde"], **asked)
    by_ids = served.post("/v1/completions", prompt=ids, **asked)
    assert [choice["text"] for choice in by_text["choices"]] == [choice["text"] for choice in by_ids["choices"]]
    assert [choice["index"] for choice in by_text["choices"]] == [0, 1, 2, 3]
    assert by_text["usage"]["prompt_tokens"] == 5
    assert texts(served.chunks("/v1/completions", prompt=ids, **asked)) == {
        choice["index"]: choice["text"] for choice in by_ids["choices"]
    }


def test_log_probabilities(served: Running) -> None:
    expected = served.engine.generate(PROMPT, "speculative", max_new_tokens=8, seed=2, top_logprobs=3)
    asked = {"max_tokens": 8, "seed": 2, "speculation": "speculative"}
    whole = served.post("/v1/completions", prompt=PROMPT, logprobs=3, **asked)
    found = whole["choices"][0]["logprobs"]
    assert found["token_logprobs"] == pytest.approx(expected.logprobs)
    for top, wanted, token, value in zip(
        found["top_logprobs"], expected.top_logprobs, found["tokens"], found["token_logprobs"], strict=True
    ):
        assert 3 <= len(top) <= 4 and top[token] == value
        assert max(top.values()) == pytest.approx(wanted[0][1])
    assert served.post("/v1/completions", prompt=PROMPT, **asked)["choices"][0]["logprobs"] is None
    chunks = served.chunks("/v1/completions", prompt=PROMPT, logprobs=3, **asked)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for key, values in found.items():
        assert [value for part in parts for value in part[key]] == values


def test_echo_scores_the_prompt(served: Running) -> None:
    """As lm-eval asks for log-likelihoods."""
    scores = served.engine.score(PROMPT, 1)
    for most in (0, 1):
        answer = served.post(
            "/v1/completions",
            prompt=served.engine.tokens(PROMPT),
            echo=True,
            max_tokens=most,
            logprobs=1,
            temperature=0.0,
            seed=1234,
        )
        (choice,) = answer["choices"]
        assert choice["text"].startswith(PROMPT)
        found = choice["logprobs"]
        assert found["token_logprobs"][: len(PROMPT)] == pytest.approx(scores.logprobs)
        assert len(found["token_logprobs"]) == len(PROMPT) + most == len(found["top_logprobs"])
        assert found["top_logprobs"][0] is None
        assert max(found["top_logprobs"][3].values()) == pytest.approx(scores.top_logprobs[3][0][1])
    streamed = served.chunks("/v1/completions", prompt=PROMPT, echo=True, max_tokens=3, temperature=0.0)
    assert texts(streamed)[0].startswith(PROMPT)


def test_usage_while_it_grows(served: Running) -> None:
    """With stream_options every chunk has usage, null unless it is to be continuous; the last one has no choices."""
    asked = {"prompt": [PROMPT, "ab"], "max_tokens": 12, "seed": 5, "n": 2}
    whole = served.post("/v1/completions", **asked)["usage"]
    for continuous in (False, True):
        options = {"include_usage": True, "continuous_usage_stats": continuous}
        *chunks, last = served.chunks("/v1/completions", **asked, stream_options=options)
        counts = [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert last["choices"] == [] and last["usage"]["total_tokens"] == whole["total_tokens"]
        assert counts == (sorted(counts) if continuous else [None] * len(chunks))
        assert not continuous or (1 <= counts[0] < counts[-1] == whole["completion_tokens"])
    assert "usage" not in served.chunks("/v1/completions", **asked)[0]


def test_the_best_of_several(served: Running) -> None:
    each = [served.engine.generate(PROMPT, max_new_tokens=10, seed=seed) for seed in range(3, 8)]
    means = {one.text: sum(one.logprobs) / len(one.logprobs) for one in each}
    answer = served.post("/v1/completions", prompt=PROMPT, max_tokens=10, seed=3, n=2, best_of=5)
    found = [choice["text"] for choice in answer["choices"]]
    assert found == sorted(means, key=lambda text: -means[text])[:2]
    assert answer["usage"]["completion_tokens"] == sum(len(one.tokens) for one in each)


def test_where_texts_end(served: Running) -> None:
    plain = {"prompt": PROMPT, "temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    text = served.post("/v1/completions", **plain)["choices"][0]["text"]
    stop = text[3:5]
    found = served.post("/v1/completions", **plain, stop=[stop, "\x00\x01\x02"])["choices"][0]
    assert (found["text"], found["finish_reason"]) == (text[: text.index(stop)], "stop")
    made = served.engine.generate(PROMPT, None, {"temperature": 0}, 30, ignore_eos=True).tokens
    token = made[6]
    found = served.post("/v1/completions", **plain, stop_token_ids=[token])
    assert found["usage"]["completion_tokens"] == made.index(token) + 1
    assert found["choices"][0]["finish_reason"] == "stop"
    banned = {str(made[0]): -100}
    assert served.post("/v1/completions", **plain, logit_bias=banned)["choices"][0]["text"][0] != text[0]
    least = served.post("/v1/completions", **plain, stop_token_ids=[token], min_tokens=20)
    assert least["usage"]["completion_tokens"] >= 20
    assert served.post("/v1/completions", prompt=PROMPT)["usage"]["completion_tokens"] <= 16  # as of OpenAI


def test_penalties(served: Running) -> None:
    sampling = {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3}
    expected = served.engine.generate(PROMPT, None, sampling, 20)
    assert (
        served.post("/v1/completions", prompt=PROMPT, max_tokens=20, **sampling)["choices"][0]["text"] == expected.text
    )


def test_conversations(served: Running) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    expected = served.engine.generate("s:be brief|u:hi|a:", max_new_tokens=9, seed=1, top_logprobs=2)
    asked = {"messages": messages, "max_completion_tokens": 9, "seed": 1}
    whole = served.post("/v1/chat/completions", **asked, logprobs=True, top_logprobs=2)
    (choice,) = whole["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    content = choice["logprobs"]["content"]
    assert [one["logprob"] for one in content] == pytest.approx(expected.logprobs)
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    chunks = served.chunks("/v1/chat/completions", **asked, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:-1])
    assert texts(chunks) == {0: expected.text}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    unlimited = served.post("/v1/chat/completions", messages=messages, temperature=0.0)
    assert unlimited["usage"]["total_tokens"] <= served.engine.target.context


def test_responses(served: Running) -> None:
    expected = served.engine.generate("s:be kind|u:hi|a:", max_new_tokens=12, seed=1)
    asked = {"input": "hi", "instructions": "be kind", "max_output_tokens": 12, "seed": 1}
    whole = served.post("/v1/responses", **asked)
    assert whole["output"][0]["content"][0]["text"] == expected.text
    assert whole["status"] == ("incomplete" if expected.finish_reason == "length" else "completed")
    assert whole["usage"]["output_tokens"] == len(expected.tokens)


@pytest.mark.parametrize(
    "method", ["speculative", {"name": "speculative-beam-search", "width": 2, "gamma": 2}], ids=str
)
def test_log_probabilities_of_responses(served: Running, method: Any) -> None:
    """They are those of /v1/chat/completions; streamed, those of the deltas make up those of the whole."""
    asked = {"seed": 1, "speculation": method}
    messages = [{"role": "user", "content": "hi"}]
    chat = {"messages": messages, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    expected = served.post("/v1/chat/completions", **chat, **asked)["choices"][0]
    for one in expected["logprobs"]["content"]:
        for token in (one, *one["top_logprobs"]):
            token["bytes"] = token["bytes"] or []  # unknown; null is for chats alone
    asked |= {"input": messages, "max_output_tokens": 12, "top_logprobs": 2}
    plain = served.post("/v1/responses", **asked)["output"][0]["content"][0]
    assert plain["logprobs"] == [] and plain["text"] == expected["message"]["content"]
    asked["include"] = ["message.output_text.logprobs"]
    whole = served.post("/v1/responses", **asked)
    assert whole["top_logprobs"] == 2 and len(expected["logprobs"]["content"]) > 2
    assert whole["output"][0]["content"][0] == plain | {"logprobs": expected["logprobs"]["content"]}
    lines = served.client.post("/v1/responses", json={**asked, "stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == plain["text"]
    for found in ([one for event in deltas for one in event["logprobs"]], events[-4]["logprobs"]):
        assert found == expected["logprobs"]["content"]


def test_tokens(served: Running) -> None:
    found = served.post("/tokenize", prompt="a fox")
    assert found["count"] == len(found["tokens"]) == 5
    assert found["max_model_len"] == served.engine.target.context
    assert served.post("/detokenize", tokens=found["tokens"])["prompt"] == "a fox"
    chat = served.post("/tokenize", messages=[{"role": "user", "content": "x"}])
    assert served.post("/detokenize", tokens=chat["tokens"])["prompt"] == "u:x|a:"


def test_what_is_served(served: Running) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert model["id"] == served.service.name and model["max_model_len"] == served.engine.target.context
    assert model["dtype"] == "float32" and "quantize" not in model
    assert served.client.get("/health").json() == {"status": "ok"}
    assert served.client.get("/ready").status_code == 200
    methods = served.client.get("/v1/methods").json()
    dsbd = next(one for one in methods["data"] if one["name"] == "dsbd")
    assert methods["default"] == "speculative" and dsbd["usable"] and dsbd["lossless"]
    options = {option["name"]: option for option in dsbd["options"]}
    assert (options["gamma"]["minimum"], options["gamma"]["maximum"]) == (0, 64)
    assert options["root_weights"]["choices"] == ["draft", "target"] and options["gamma"]["description"]
    assert "draftwood" in served.client.get("/").text


def test_how_drafts_are_held_is_told(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert "draft_quantize" not in model
    monkeypatch.setitem(served.engine.names, "draft_quantize", "int8")
    assert served.client.get("/v1/models").json()["data"] == [{**model, "draft_quantize": "int8"}]


def test_impossible_tokens_are_numbers(served: Running) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 2, "logprobs": 20, "top_k": 1, "seed": 0}
    found = served.post("/v1/completions", **asked)["choices"][0]["logprobs"]
    assert all(math.isfinite(value) for top in found["top_logprobs"] for value in top.values())


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Lena", "Tom"]}, "pears": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "pears"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("method", ["off", "speculative", {"name": "dsbd", "width": 2, "draft_width": 2}], ids=str)
def test_structured_output(served: Running, method: Any) -> None:
    spec = method_of(method)
    expected = served.engine.generate("u:hi|a:", spec, max_new_tokens=60, seed=2, structured={"json_schema": SCHEMA})
    assert set(json.loads(expected.text)) == {"name", "pears"}
    asked = {"max_tokens": 60, "seed": 2, "speculation": method}
    chat = {"messages": [{"role": "user", "content": "hi"}], **asked}
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA, "strict": True}}
    for more in ({"response_format": form}, {"structured_outputs": {"json": SCHEMA}}, {"guided_json": SCHEMA}):
        assert served.post("/v1/chat/completions", **chat, **more)["choices"][0]["message"]["content"] == expected.text
    assert texts(served.chunks("/v1/chat/completions", **chat, response_format=form)) == {0: expected.text}
    text = {"format": {"type": "json_schema", "name": "fruit", "schema": SCHEMA}}
    answer = served.post("/v1/responses", input="hi", max_output_tokens=60, seed=2, speculation=method, text=text)
    assert answer["output"][0]["content"][0]["text"] == expected.text
    for more, pattern in (
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'start: "x" "y"'}, "xy"),
        ({"response_format": {"type": "text"}, "guided_regex": "z"}, "z"),
    ):
        found = served.post("/v1/completions", prompt=PROMPT, **asked, **more)["choices"][0]
        assert re.fullmatch(pattern, found["text"]) and found["finish_reason"] == "stop"


def test_structured_output_that_cannot_be(served: Running) -> None:
    for more, told in (
        ({"guided_regex": "(a"}, "regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "exactly one"),
        ({"structured_outputs": {}}, ""),
        ({"response_format": {"type": "json_schema"}}, ""),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"guided_regex": "a", "ignore_eos": True}, "leave out ignore_eos"),
    ):
        status, error = served.refused("/v1/completions", prompt=PROMPT, **more)
        assert status == 400 and told in error["message"], more
