"""Refusals: OpenAI's form, a status that fits, a message that names the field."""

from __future__ import annotations

import json
import logging
import socket
import time
from typing import Any

import httpx
import pytest
from servers import Running, running

from draftwood import METHODS, ConfigurationError, Engine, TabularModel, load
from draftwood.methods.base import FILE
from draftwood.runtime import scheduler
from draftwood.runtime.executor import run_layers
from draftwood.serve.settings import ServeSettings

COMPLETIONS, CHAT, FOREST = "/v1/completions", "/v1/chat/completions", "/v1/forest"


@pytest.mark.parametrize(
    ("body", "status", "param", "told"),
    [
        ({}, 400, "prompt", "'prompt' is missing"),
        ({"prompt": "a", "temprature": 1}, 400, "temprature", "did you mean 'temperature'?"),
        ({"prompt": "a", "stream_options": {"usage": True}}, 400, "stream_options", "'stream_options.usage'"),
        ({"prompt": 5}, 400, "prompt", "a prompt is a text, a list of token ids, or a list of such texts or lists"),
        ({"prompt": "a", "stop": [""]}, 400, "stop", "at least 1 item"),
        ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", "integer"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "echo"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature", "must be at least 0"),
        ({"prompt": "a", "n": 1000}, 400, "n", "128"),
        ({"prompt": ["a"] * 100, "n": 2}, 400, "n", "more than 128"),
        ({"prompt": "a", "n": 17}, 400, "n", "17 texts are asked for, but this server takes 16 (--max-sequences)"),
        ({"prompt": "a", "best_of": 17, "stream": False}, 400, "best_of", "17 texts"),
        ({"prompt": "a", "best_of": 17, "use_beam_search": True}, 400, "best_of", "17 beams"),
        ({"prompt": "a", "n": 17, "use_beam_search": True}, 400, "n", "17 beams"),
        ({"prompt": "a", "speculation": {"name": "beam-sampling", "width": 17}}, 400, "speculation", "lower the width"),
        ({"prompt": "a", "speculation": {"name": "dsbd", "draft_width": 17}}, 400, "speculation", "17 beams"),
        ({"prompt": "a", "speculation": {"name": "beam-search", "width": 17}}, 400, "speculation", "17 beams"),
        (
            {"prompt": ["a"] * 9, "speculation": {"name": "beam-search", "width": 16}},
            400,
            "speculation",
            "more than 128",
        ),
        ({"prompt": "a", "n": 3, "best_of": 2}, 400, "best_of", "raise it"),
        ({"prompt": "a", "best_of": 2, "stream": True}, 400, "best_of", "streamed"),
        ({"prompt": "a", "best_of": 2, "speculation": {"name": "dsbd"}}, 400, "best_of", "set the width of dsbd"),
        ({"prompt": ["a"] * 100, "stream": False, "max_tokens": 0, "echo": True, "n": 2}, 400, "n", "more than 128"),
        (
            {"prompt": "a", "stream": False, "max_tokens": 0, "echo": True, "speculation": "x"},
            400,
            "speculation",
            "'x'",
        ),
        ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "token ids"),
        ({"prompt": "a", "logit_bias": {"999": 1}}, 400, None, "ids go from 0"),
        ({"prompt": "a", "model": "gpt-5"}, 404, "model", "there is no model 'gpt-5'"),
        ({"prompt": ""}, 400, None, "the prompt is empty"),
        ({"prompt": "a" * 400}, 400, None, "context"),
        ({"prompt": "a", "speculation": "dbsd"}, 400, "speculation", "did you mean 'dsbd'?"),
        ({"prompt": "a", "speculation": {"name": "dsbd", "wdith": 2}}, 400, "speculation", "did you mean 'width'?"),
        ({"prompt": "a", "speculation": {"name": "beam-search", "width": 10**6}}, 400, "speculation", "256"),
        ({"prompt": "a", "speculation": {"name": "mcsd", "tree": [9] * 9999}}, 400, "speculation", "characters"),
        ({"prompt": "a", "speculation": "file:/etc/passwd"}, 400, "speculation", "not read for clients"),
        (
            {"prompt": "a", "speculation": {"name": "medusa", "heads": "/etc"}},
            400,
            "speculation",
            "files of the server",
        ),
        (
            {"prompt": "a", "speculation": {"name": "speculative", "depth": "decision:/etc/passwd"}},
            *(400, "speculation", "files of the server"),
        ),
        ({"prompt": "a", "speculation": {"name": "lookup", "shared": True}}, 400, "speculation", "leave out shared"),
        (
            {"prompt": "a", "speculation": {"name": "speculative", "depth": "beta-ts:shared=true"}},
            *(400, "speculation", "leave out shared"),
        ),
        ({"prompt": "a", "use_beam_search": True, "speculation": "mcsd"}, 400, "speculation", "has no beams"),
        (
            {"prompt": "a", "speculation": {"name": "dsbd", "length_penalty": 1000}},
            *(400, "speculation", "must be at most 10"),
        ),
        ({"prompt": "a", "repetition_penalty": 1e-300}, 400, "repetition_penalty", "0.01"),
        ({"prompt": "a", "length_penalty": 1.0}, 400, "length_penalty", "use_beam_search"),
        (
            {"prompt": "a", "use_beam_search": True, "speculation": "dsbd", "length_penalty": 1.0},
            *(400, "length_penalty", "an option of speculation"),
        ),
        ({"prompt": "a", "use_beam_search": True, "top_p": 0.5}, 400, None, "draws nothing"),
        ({"prompt": "a", "stop_token_ids": [5000]}, 400, None, "stop_token_ids has 5000"),
        ({"prompt": "a", "min_tokens": 20, "max_tokens": 10}, 400, None, "min_tokens is 20"),
        ({"prompt": "\ud800"}, 400, "prompt", "not valid Unicode"),
        ({"prompt": "a", "stop": ["\ud800"]}, 400, "stop", "not valid Unicode"),
        ({"prompt": "a", "\ud800": 1}, 400, None, "not valid Unicode"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode() if isinstance(value, dict) else "",
)
def test_bad_requests(served: Running, body: dict[str, Any], status: int, param: str | None, told: str) -> None:
    for stream in (False, True):
        answer = served.client.post(COMPLETIONS, content=json.dumps({"stream": stream, **body}), headers=JSON)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["param"] == param and told in error["message"]
        assert set(error) == {"message", "type", "param", "code"}


JSON = {"content-type": "application/json"}


def test_half_a_surrogate_pair_is_refused_wherever_it_is(served: Running) -> None:
    half, hi = "\ud800", [{"role": "user", "content": "hi"}]
    for path, body in (
        (COMPLETIONS, {"prompt": "a", "model": half}),
        (COMPLETIONS, {"prompt": "a", "user": half}),
        (COMPLETIONS, {"prompt": ["a", half]}),
        (COMPLETIONS, {"prompt": "a", "guided_json": {"enum": [half]}}),
        (COMPLETIONS, {"prompt": "a", "speculation": half}),
        (CHAT, {"messages": [{"role": "user", "content": half}]}),
        (CHAT, {"messages": hi, "response_format": {"type": "json_schema", "json_schema": {"schema": {half: 1}}}}),
        ("/v1/responses", {"input": "a", "metadata": {"a": half}}),
        ("/v1/responses", {"input": "a", "metadata": {half: "a"}}),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "schema": {"const": half}}}}),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "text", "name": half}}}),
        ("/v1/responses", {"input": "a", half: 1}),
        ("/tokenize", {"prompt": half}),
    ):
        answer = served.client.post(path, content=json.dumps(body), headers=JSON)
        assert answer.status_code == 400 and "Unicode" in answer.json()["error"]["message"], (path, body, answer.text)


def test_fields_that_need_others(served: Running) -> None:
    hi = [{"role": "user", "content": "hi"}]
    for path, body, param in (
        (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0, "echo": True, "stream": True}, "max_tokens"),
        (CHAT, {"messages": hi, "top_logprobs": 2}, "top_logprobs"),
    ):
        status, error = served.refused(path, **body)
        assert (status, error["param"]) == (400, param), error


def test_bodies_that_are_no_requests(served: Running) -> None:
    deep = "[" * 100_000
    for content in (
        "",
        "{",
        "null",
        "[]",
        '{"prompt": NaN}',
        deep,
        b"\xff\xfe",
        '{"prompt": "a", "temperature": 1e999}',
    ):
        answer = served.client.post(COMPLETIONS, content=content, headers=JSON)
        assert answer.status_code == 400 and answer.json()["error"]["message"], content[:40]
    assert (
        served.client.post(COMPLETIONS, content='{"prompt": "a"}', headers={"content-type": "text/plain"}).status_code
        == 400
    )


def test_conversations_need_a_template(served: Running, target: Any) -> None:
    assert served.refused(CHAT, messages=[])[0] == 400
    assert served.refused(CHAT, messages=[{"role": "robot", "content": "x"}])[1]["param"] == "messages"
    with running(load(target)) as other:
        status, error = other.refused(CHAT, messages=[{"role": "user", "content": "x"}])
        assert status == 400 and "no chat template" in error["message"]
        assert other.post("/v1/responses", input="ab", max_output_tokens=3)["output"][0]["content"]


def test_unknown_paths_and_methods(served: Running) -> None:
    assert served.client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    for method, path, allowed in (("GET", COMPLETIONS, "POST"), ("POST", "/health", "GET"), ("HEAD", CHAT, "POST")):
        answer = served.client.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == allowed
    assert served.client.post("/v1/embeddings", json={}).status_code == 404
    for path in ("/ready", "/v1/models", "/metrics", FOREST):
        answer = served.client.head(path)
        assert answer.status_code == 200 and not answer.content
    assert served.client.get("/../settings.py").status_code == 404
    assert served.client.get("/%2e%2e/settings.py").status_code == 404


def test_request_ids_come_back(served: Running) -> None:
    mine = served.client.get("/health", headers={"x-request-id": "mine.1"})
    assert mine.headers["x-request-id"] == "mine.1"
    assert len(served.client.get("/health", headers={"x-request-id": "a\tb"}).headers["x-request-id"]) == 32
    answer = served.client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "mine.2"})
    assert answer.json()["id"] == "cmpl-mine.2"
    assert served.client.post(COMPLETIONS, json={}).headers["x-request-id"]


def test_hosts_and_origins(served: Running) -> None:
    assert served.client.get("/health", headers={"host": "evil.example"}).status_code == 400
    assert served.client.get("/health", headers={"host": "[::1]:80"}).status_code == 200
    own = served.url
    for origin, status in ((own, 200), ("https://evil.example", 403), ("null", 403)):
        assert served.client.post("/reset_prefix_cache", headers={"origin": origin}).status_code == status
    assert "access-control-allow-origin" not in served.client.get("/health", headers={"origin": own}).headers


def test_origins_that_are_allowed(target: Any) -> None:
    with running(load(target), ServeSettings(allowed_origin=["https://a.org"], allowed_host=["127.0.0.1"])) as other:
        headers = {"origin": "https://a.org", "access-control-request-method": "POST"}
        assert (
            other.client.options(COMPLETIONS, headers=headers).headers["access-control-allow-origin"] == "https://a.org"
        )
        answer = other.client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://a.org"
        assert other.client.get("/health", headers={"host": "localhost"}).status_code == 400


def test_keys(target: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("second\n\n third \n")
    caplog.set_level(logging.DEBUG)
    with running(load(target), ServeSettings(api_key="first", api_key_file=file, log_json=True)) as other:
        for key, status in (
            ("first", 200),
            ("second", 200),
            ("third", 200),
            ("fourth", 401),
            ("firs", 401),
            ("\xff", 401),
        ):
            headers = {"authorization": f"Bearer {key}".encode("latin-1")}
            answer = other.client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
            assert answer.status_code == status
        assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in (
            "/v1/models",
            f"/v1/models/{other.service.name}",
            "/metrics",
            "/openapi.json",
            "/v1/forest",
            "/v1/methods",
        ):
            assert other.client.get(path).status_code == 401
        for path in ("/", "/health", "/ready", "/version"):
            assert other.client.get(path).status_code == 200
        assert other.client.get("/v1/models", headers={"authorization": "bearer first"}).status_code == 200
        assert other.client.get("/v1/models", headers={"authorization": "Basic first"}).status_code == 401
    assert not any(key in caplog.text for key in ("first", "second", "third", "fourth"))
    for settings, told in (
        (ServeSettings(api_key=""), "empty"),
        (ServeSettings(api_key_file=tmp_path / "none"), "cannot be read"),
        (ServeSettings(api_key="schlüssel"), "ASCII"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            settings.keys()


def test_limits(target: Any) -> None:
    settings = ServeSettings(max_body=2000, max_prompt_tokens=10, max_tokens=20)
    with running(load(target, max_running=1, max_queued=1), settings) as other:
        status, error = other.refused(COMPLETIONS, prompt="a" * 3000)
        assert status == 413 and "2,000 bytes" in error["message"]
        pieces = (b" " * 500 for _ in range(10))
        assert other.client.post(COMPLETIONS, content=pieces, headers=JSON).status_code == 413
        for echo in ({}, {"echo": True}, {"echo": True, "max_tokens": 0, "logprobs": 1}):
            assert "this server takes 10" in other.refused(COMPLETIONS, prompt="a" * 11, **echo)[1]["message"]
        assert other.refused(COMPLETIONS, prompt="a", max_tokens=21)[1]["param"] == "max_tokens"
        assert other.post(COMPLETIONS, prompt="a", max_tokens=20, ignore_eos=True)["usage"]["completion_tokens"] == 20
        calls = other.service.engine.scheduler.calls
        calls.live.update({"another": set(), "and another": set()})
        answer = other.client.post(COMPLETIONS, json={"prompt": "a"})
        calls.live.clear()
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        other.wait(other.idle)
        assert other.client.post(COMPLETIONS, json={"prompt": "a", "n": 5}).status_code == 200


def test_too_many_connections(target: Any) -> None:
    """Whoever comes when all are taken is told so, as of other errors; whether the server is well is always told."""
    with running(load(target), ServeSettings(max_connections=2)) as other:
        address = other.client.base_url.host, other.client.base_url.port or 0
        waiting = [socket.create_connection(address) for _ in range(2)]
        other.wait(lambda: other.client.get("/v1/models").status_code == 503)
        answer = other.client.post(COMPLETIONS, json={"prompt": "a"})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1" and "2 connections" in answer.text
        assert answer.json()["error"]["type"] == "server_error"
        assert other.client.get("/health").status_code == 200
        for connection in waiting:
            connection.close()
        other.client.close()
        other.client = httpx.Client(base_url=other.url)
        other.wait(lambda: other.client.get("/v1/models", headers={"connection": "close"}).status_code == 200)
        assert other.post(COMPLETIONS, prompt="a")["choices"]


def test_a_request_that_takes_too_long(long_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(load(long_target), ServeSettings(request_seconds=0.2)) as other:
        asked = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}
        status, error = other.refused(COMPLETIONS, **asked)
        assert (status, error["code"]) == (504, "timeout")
        with other.client.stream("POST", COMPLETIONS, json={**asked, "stream": True}) as answer:
            assert json.loads(list(answer.iter_lines())[-2].removeprefix("data: "))["error"]["code"] == "timeout"

        def slow(*all: Any) -> Any:
            time.sleep(0.5)
            return run_layers(*all)

        monkeypatch.setattr(scheduler, "run_layers", slow)
        status, error = other.refused(COMPLETIONS, prompt="a", echo=True, logprobs=1)
        assert (status, error["code"]) == (504, "timeout")


def test_what_fails_inside_says_nothing_of_the_inside(
    target: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does."""
    with running(load(target)) as other:

        def fail(*given: Any) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr("draftwood.serve.completions.plan_request", fail)
        status, error = other.refused(COMPLETIONS, prompt="a")
        assert (status, error["type"]) == (500, "server_error") and "secret" not in str(error)
        monkeypatch.undo()
        monkeypatch.setattr(
            "draftwood.engine.generation.Generation.distributions", fail
        )  # a step, for this request alone
        for path, body in (
            (COMPLETIONS, {"prompt": "a"}),
            ("/v1/responses", {"input": "a"}),
            (FOREST, {"prompt": "a"}),
        ):
            for stream in {"stream": False}, {"stream": True}:
                caplog.clear()
                answer = other.client.post(path, json=body | stream)
                assert "secret" not in answer.text and "server_error" in answer.text
                other.wait(lambda: "secret" in caplog.text)
        monkeypatch.undo()
        assert other.post(COMPLETIONS, prompt="a")["choices"]


def test_no_request_while_draining(target: Any) -> None:
    with running(load(target)) as other:
        other.service.draining.set()
        answer = other.client.post(COMPLETIONS, json={"prompt": "a"})
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert other.client.get("/ready").status_code == 503 and other.client.get("/health").status_code == 200


def test_options_that_name_files_are_marked() -> None:
    """All options that are free text: a client must not make the server read what they name."""
    free = {
        (name, option)
        for name, method in METHODS.items()
        for option, field in method.model_fields.items()
        if field.annotation in (str, str | None) and FILE not in field.metadata
    }
    assert {option for _, option in free} <= {"depth"}


def test_an_engine_without_tokenizer_is_not_served() -> None:
    from draftwood.serve.app import create_app

    with pytest.raises(ConfigurationError, match="needs a tokenizer"):
        create_app(Engine(TabularModel.random(3, seed=1)))


def test_the_log_has_prompts_only_if_wanted(target: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "draftwood.serve.access")
    for log_prompts in (False, True):
        with running(load(target), ServeSettings(log_json=True, log_prompts=log_prompts)) as other:
            other.post(COMPLETIONS, prompt="hidden words", max_tokens=2)
        line = json.loads(next(text for text in reversed(caplog.messages) if "completion_tokens" in text))
        assert (line["path"], line["status"], line["prompt_tokens"]) == (COMPLETIONS, 200, 12)
        assert ("hidden words" in str(line)) == log_prompts


def test_the_log_has_what_was_generated_however_it_was_asked_for(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftwood.serve.access")
    asked = {"seed": 1, "speculation": {"name": "mcsd", "tree": [2]}}
    hi = [{"role": "user", "content": "hi"}]
    for path, body in (
        (COMPLETIONS, {"prompt": "ab", "max_tokens": 3, "ignore_eos": True, "stream": True}),
        (FOREST, {"prompt": "ab", "max_tokens": 3, "ignore_eos": True}),
        (CHAT, {"messages": hi, "max_tokens": 3, "ignore_eos": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1}),
    ):
        caplog.clear()
        assert served.client.post(path, json={**asked, **body}).status_code == 200
        served.wait(lambda: bool(caplog.messages))
        told = dict(part.split("=") for part in caplog.messages[0].split())
        assert told["speculation"] == "mcsd" and told["completion_tokens"] == ("1" if "input" in body else "3")
        assert told["prompt_tokens"] == ("2" if "prompt" in body else "7")
