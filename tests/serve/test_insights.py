"""Metrics for Prometheus, and the rounds of a request as they happen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from servers import Running, running

from draftwood import load


def scraped(served: Running) -> dict[str, float]:
    """Name and labels -> value."""
    text = served.client.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == served.service.name
            rest = {key: value for key, value in sample.labels.items() if key != "model_name"}
            found[" ".join((sample.name, *rest.values()))] = sample.value
    return found


def test_metrics(target: Any, draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.engine.recording.BOUNDED_ROUNDS", 1)
    with running(load(target, draft)) as served:
        assert scraped(served)["vllm:generation_tokens_total"] == 0
        wide = {"name": "dsbd", "width": 2, "draft_width": 2}
        answers = [
            served.post(
                "/v1/completions",
                prompt="a" * 30,
                max_tokens=20,
                seed=i,
                ignore_eos=True,
                temperature=1,
                speculation=spec,
            )
            for i, spec in enumerate(({"name": "speculative", "gamma": 3}, wide, "speculative"))
        ]
        found = scraped(served)
        figures = [answer["metrics"]["speculative_decoding"] for answer in answers]
        assert found["vllm:generation_tokens_total"] == 60 and found["vllm:prompt_tokens_total"] == 90
        for name in ("draft_tokens", "accepted_tokens"):
            expected = sum(one[f"num_{name}"] for one in figures)
            assert found[f"vllm:spec_decode_num_{name}_total"] == expected
        by_place = [value for name, value in found.items() if "per_pos_total" in name]
        assert sum(by_place) == found["vllm:spec_decode_num_accepted_tokens_total"]
        assert found["vllm:request_success_total length"] == 3
        assert found["vllm:time_to_first_token_seconds_count"] == 3 == found["vllm:e2e_request_latency_seconds_count"]
        assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
        assert found["vllm:prefix_cache_hits_total"] > 0 and found["draftwood:target_rows_total"] > 60
        accepted, positions = (found[f"draftwood:bounded_{name}_total"] for name in ("accepted", "positions"))
        assert 0 <= accepted <= positions and found["draftwood:acceptance_bounds_total"] <= positions > 0
        assert 1 <= found["draftwood:mean_width"] <= 2 and found["draftwood:tau"] > 0


@pytest.mark.parametrize(
    "method", [{"name": "speculative", "gamma": 3}, {"name": "dsbd", "width": 2, "gamma": 3}], ids=str
)
def test_rounds_as_they_happen(served: Running, method: dict[str, Any]) -> None:
    asked = {"prompt": "Story: a fox", "max_tokens": 20, "seed": 4, "speculation": method, "n": 2}
    with served.client.stream("POST", "/v1/forest", json=asked) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.partition(": ")[2] for line in answer.iter_lines() if line]
    heard = [(kind, json.loads(data)) for kind, data in zip(lines[::2], lines[1::2], strict=True)]
    choices = served.post("/v1/completions", **asked)["choices"]  # being told changes nothing
    generations = 1 if method["name"] == "dsbd" else 2
    for place in range(generations):
        mine = [(kind, data) for kind, data in heard if data["generation"] == place]
        assert [kind for kind, _ in mine] == ["start", *["round"] * (len(mine) - 2), "end"]
        rounds = [data for kind, data in mine if kind == "round"]
        assert "".join(piece for data in rounds for piece, _ in data["pieces"]) == choices[place]["text"]
        fates = {fate["fate"] for data in rounds for root in data["roots"] for fate in below(root)}
        assert fates & {"accepted", "rejected", "corrected", "bonus"}
        assert "".join(mine[0][1]["prompt"]) == "Story: a fox" and mine[0][1]["options"]["name"] == method["name"]


def test_what_cannot_be_told_is_refused(served: Running) -> None:
    for wrong in ({"max_tokens": 0, "echo": True}, {"echo": True}, {"speculation": "mcds"}):
        status, error = served.refused("/v1/forest", prompt="Once", **wrong)
        assert status == 400 and error["message"]


@pytest.mark.parametrize("method", ["speculative", {"name": "dsbd", "width": 2, "gamma": 3}], ids=str)
def test_rounds_of_a_conversation(served: Running, method: Any) -> None:
    """The text and the message are those of /v1/chat/completions, which understands the next request."""
    messages: list[Any] = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    for seed in (1, 2):
        asked = {"messages": messages, "max_tokens": 12, "seed": seed, "temperature": 1, "speculation": method}
        lines = [line.partition(": ")[2] for line in served.client.post("/v1/forest", json=asked).iter_lines() if line]
        start, *rounds, end = (json.loads(data) for data in lines[1::2])
        expected = served.post("/v1/chat/completions", **asked)["choices"][0]["message"]
        assert end["message"] == expected and "".join(start["prompt"]).endswith("u:hi|a:" if seed == 1 else "a:")
        if method == "speculative":
            assert "".join(piece for one in rounds for piece, _ in one["pieces"]) == expected["content"]
        messages += [end["message"], {"role": "user", "content": "and"}]
    status, error = served.refused("/v1/forest", messages=messages, prompt="Once")
    assert status == 400 and "no field 'prompt'" in error["message"]
    status, error = served.refused("/v1/forest", messages=[{"role": "user", "content": 3}])
    assert status == 400 and error["param"] == "messages"


def below(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [*node["fates"], *(fate for child in node["children"] for fate in below(child))]


def test_the_load(served: Running) -> None:
    with served.client.stream("GET", "/v1/forest") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                load_now = json.loads(line.removeprefix("data: "))
                break
    assert load_now["running"] == 0 and load_now["kv_budget"] > 0 and "prompt" not in line


class Meter:
    """A counter of energy, which moves whenever it is read."""

    def __init__(self) -> None:
        self.read = 0.0

    def joules(self) -> float:
        self.read += 1
        return self.read


def test_energy_is_told_where_there_is_a_counter(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.serve.metrics.counters", lambda device: [Meter()])
    asked = {"prompt": "a", "max_tokens": 5, "seed": 1}
    with running(load(target)) as served:
        assert served.post("/v1/completions", **asked)["metrics"]["joules"] > 0
        assert served.chunks("/v1/completions", **asked)[-1]["metrics"]["joules"] > 0
        beams = {"name": "beam-sampling", "width": 2}
        assert served.post("/v1/completions", **asked, speculation=beams)["metrics"]["joules"] > 0
        assert '"joules": ' in served.client.post("/v1/forest", json=asked).text
        assert scraped(served)["draftwood:energy_joules_total"] > 4


def test_spans_of_requests(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry, where it is set up: spans below the client's say what was generated, not what was said."""
    pytest.importorskip("fastapi.telemetry", reason="this FastAPI makes no spans; those of other packages are the same")
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    headers = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", "x-request-id": "mine"}
    body = {"prompt": "hidden words", "max_tokens": 3, "ignore_eos": True}
    with running(load(target)) as served:
        for stream in (False, True):
            answer = served.client.post("/v1/completions", json={**body, "stream": stream}, headers=headers)
            assert answer.status_code == 200
    spans = [span for span in found.get_finished_spans() if span.name == "POST /v1/completions"]
    assert len(spans) == 2
    for span in spans:
        assert f"{span.context.trace_id:032x}" in headers["traceparent"] and "hidden" not in span.to_json()
        assert span.attributes is not None and span.attributes["gen_ai.usage.output_tokens"] == 3
        assert span.attributes["http.response.status_code"] == 200
        assert span.attributes["draftwood.request_id"] == "mine"


def test_the_dashboard_draws_metrics_that_are_exported(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.serve.metrics.counters", lambda device: [Meter()])
    with running(load(target, target)) as served:  # whose drafts are all accepted
        chain = {"name": "speculative", "gamma": 3, "depth": "fixed"}
        asked = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True, "speculation": chain}
        assert served.post("/v1/completions", prompt="a", **asked)["usage"]["completion_tokens"] == 20
        exported = {name.partition(" ")[0] for name in scraped(served)}
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text("utf-8"))
    drawn = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm|draftwood):\w+", target["expr"])
    }
    assert drawn == {name for name in exported if not name.endswith(("_sum", "_count", "_created"))}  # none is missing
