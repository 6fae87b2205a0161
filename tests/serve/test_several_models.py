"""Several models in one server: loaded when they are asked for, unloaded where others need their room."""

from __future__ import annotations

import gc
import json
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conftest import Command
from servers import listening

from draftwood import ConfigurationError, Engine, load
from draftwood.cli.groups import ModelOptions
from draftwood.cli.served import checkpoint_bytes, served_models
from draftwood.serve.app import create_models_app
from draftwood.serve.served_models import ServedModels
from draftwood.serve.settings import ServeSettings

COMPLETIONS, PROMPT = "/v1/completions", "Story: a fox"


class Several:
    """A server of three models, two of which fit."""

    def __init__(self, models: ServedModels, url: str) -> None:
        self.models, self.client = models, httpx.Client(base_url=url, timeout=60, headers={"x-api-key": "k"})
        self.url = url

    @property
    def loaded(self) -> set[str]:
        return {model.name for model in self.models.loaded}

    def text(self, model: str | None, **more: Any) -> str:
        body = {"prompt": PROMPT, "max_tokens": 12, "seed": 3, **more}
        answer = self.client.post(COMPLETIONS, json=body if model is None else {**body, "model": model})
        assert answer.status_code == 200, answer.text
        assert model is None or answer.json()["model"] == model
        return str(answer.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def places(target: Path, draft: Path, long_target: Path) -> dict[str, str]:
    return {
        "one": f"{target},draft={draft}",
        "two": f"{draft},method=lookup:gamma=2,max_queued=9",
        "org/three": str(target),
    }


@pytest.fixture
def several(places: dict[str, str]) -> Iterator[Several]:
    made = served_models(
        [f"{name}={place}" for name, place in places.items()], ModelOptions(kv_cache_bytes=1 << 24), None
    )
    models = ServedModels(made, ServeSettings(api_key="k"), load(places["org/three"]).weight_bytes * 7 // 2)
    with listening(create_models_app(models), 0) as url:
        found = Several(models, url)
        yield found
        found.client.close()


def test_models_come_and_go(several: Several, target: Path, draft: Path) -> None:
    """Each by its own drafts and method, and with its own texts; what is unused for longest makes room."""
    assert not several.loaded
    listed = several.client.get("/v1/models").json()["data"]
    assert [(one["id"], one["loaded"]) for one in listed] == [("one", False), ("two", False), ("org/three", False)]
    engines: list[weakref.ref[Engine]] = []
    expected = {
        "one": load(target, draft).generate(PROMPT, max_new_tokens=12, seed=3).text,
        "two": load(draft).generate(PROMPT, {"name": "lookup", "gamma": 2}, max_new_tokens=12, seed=3).text,
    }
    for name, loaded in (("one", {"one"}), ("two", {"one", "two"}), ("org/three", {"two", "org/three"}), ("two", None)):
        assert name not in expected or several.text(name) == expected[name]
        assert name in expected or several.text(name)
        assert loaded is None or several.loaded == loaded
        service = several.models.models[name].service
        assert service is not None
        engines.append(weakref.ref(service.engine))
        del service
    assert several.text("one") == expected["one"] and several.loaded == {"two", "one"}
    gc.collect()
    assert [engine() is None for engine in engines] == [True, False, True, False]
    assert several.text(None) == expected["one"]
    facts = several.client.get("/v1/models/two").json()
    assert facts["method"] == "lookup" and facts["loaded"] and facts["bytes"] > 0


def test_a_model_answers_before_it_goes(several: Several) -> None:
    """Those that are asked for at once all get their answers, whoever has to make room for whom."""
    names = list(several.models.models)
    texts = {name: several.text(name) for name in names}
    found: list[tuple[str, str]] = []

    def ask(name: str) -> None:
        found.append((name, several.text(name)))

    threads = [threading.Thread(target=ask, args=(names[i % 3],)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted((names[i % 3], texts[names[i % 3]]) for i in range(12))
    assert sum(model.bytes for model in several.models.loaded) <= several.models.limit
    while any(model.users for model in several.models.models.values()):  # a client has its answer a little earlier
        time.sleep(0.01)


def test_endpoints(several: Several) -> None:
    client = several.client
    assert client.get("/").status_code == 200 and not several.loaded  # the page needs no model
    assert client.get("/openapi.json").json()["paths"][COMPLETIONS]["post"] and not several.loaded
    assert client.head("/openapi.json").status_code == 200 and client.post("/openapi.json").status_code == 405
    assert httpx.get(f"{several.url}/v1/models").status_code == 401
    assert httpx.post(f"{several.url}{COMPLETIONS}", json={"prompt": "a"}).status_code == 401 and not several.loaded
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(f"{several.url}{path}").status_code == 200
    for body, status, told in (
        ({"prompt": "a", "model": "four"}, 404, "there is no model 'four'; this server has 'one', 'two', 'org/three'"),
        ({"prompt": "a", "model": "two", "temprature": 1}, 400, "did you mean 'temperature'?"),
        ({"prompt": "a", "model": 5}, 400, "model"),
    ):
        answer = client.post(COMPLETIONS, json=body)
        assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text
    assert client.get(COMPLETIONS).status_code == 405 and client.get("/nothing").status_code == 404
    assert client.get("/props", params={"model": "two"}).json()["model_alias"] == "two"
    for path in ("/v1/methods", "/page.json"):  # which say of which model they are
        assert client.get(path, params={"model": "two"}).json()["model"] == "two"
    assert [client.get(path).json()["model"] for path in ("/v1/methods", "/page.json")] == ["one", "one"]
    assert client.post(COMPLETIONS, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert client.post(COMPLETIONS, content=b"[" * 99999).status_code == 400
    tags = client.get("/api/tags").json()["models"]
    assert [one["name"] for one in tags] == ["one", "two", "org/three"] and all(one["size"] for one in tags)
    assert client.get("/v1/models/org/three").json()["id"] == "org/three"
    assert client.get("/v1/models/nothing").json()["error"]["code"] == "model_not_found"
    show = client.post("/api/show", json={"model": "two:latest"})
    assert show.status_code == 200, show.text
    lines = client.post("/api/generate", json={"model": "two", "prompt": "a", "options": {"num_predict": 2}})
    assert lines.status_code == 200 and json.loads(lines.text.splitlines()[-1])["done"]
    assert {one["name"] for one in client.get("/api/ps").json()["models"]} == several.loaded
    text = client.get("/metrics").text
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    assert 'vllm:num_requests_running{model_name="two"}' in text and 'model_name="one"' in text


@pytest.mark.slow
def test_the_load_is_told_while_models_come_and_go(several: Several) -> None:
    """An open page loads no model and keeps none; its figures are sums over those that are loaded."""
    with several.client.stream("GET", "/v1/forest") as answer:
        told = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        assert next(told)["running"] == 0 and not several.loaded
        for name in several.models.models:
            several.text(name)
        assert several.loaded == {"two", "org/three"}
        assert any(one["tokens"] == 2 * 12 for one in islice(told, 9))
    rounds = several.client.post("/v1/forest", json={"model": "two", "prompt": PROMPT, "max_tokens": 2})
    assert rounds.status_code == 200 and rounds.text.startswith("event: start")


def test_streams(several: Several) -> None:
    with openai.OpenAI(base_url=f"{several.url}/v1", api_key="k", max_retries=0) as other:
        for name in ("two", "one"):
            chunks = other.completions.create(model=name, prompt=PROMPT, max_tokens=12, seed=3, stream=True)
            assert "".join(chunk.choices[0].text for chunk in chunks) == several.text(name)
        assert [model.id for model in other.models.list()] == ["one", "two", "org/three"]


def test_a_model_that_cannot_be_loaded(places: dict[str, str], tmp_path: Path, copy_of_target: Path) -> None:
    (model,) = served_models([f"broken={copy_of_target}"], ModelOptions(), None)
    (copy_of_target / "model.safetensors").write_bytes(b"no weights")
    with listening(create_models_app(ServedModels([model], ServeSettings(), 1 << 30)), 0) as url:
        answer = httpx.post(url + COMPLETIONS, json={"prompt": "a"}, timeout=60)
        assert answer.status_code == 500 and "log says why" in answer.text and str(copy_of_target) not in answer.text
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "one"], "has to be NAME=PATH"),
        (["--model", "one=/nowhere"], "/nowhere is not a checkpoint directory"),
        (["--model", "one={target},quantise=int8"], "did you mean 'quantize'?"),
        (["--model", "one={target},quantize=int7"], "quantize"),
        (["--model", "one={target},method=speculative"], "draft"),
        (["--model", "one={target}", "--model", "one={target}"], "two models have the same name"),
        (["--model", "one={target}", "--models-memory", "10"], "--models-memory is 10; raise it"),
        (["--model", "one={target}", "--target", "{target}"], "not both"),
        (["--models-memory", "10"], "name them with --model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(command: Command, target: Path, arguments: list[str], told: str) -> None:
    outcome = command("serve", "--port", 0, *(one.format(target=target) for one in arguments))
    assert outcome.code == 2 and told in outcome.err, outcome.err


def test_one_name_is_not_for_several_models(target: Path) -> None:
    models = served_models([f"one={target}"], ModelOptions(), None)
    with pytest.raises(ConfigurationError, match="name each by --model NAME=PATH"):
        ServedModels(models, ServeSettings(served_model_name="two"), 1 << 30)


def test_a_model_without_drafts(copy_of_target: Path, draft: Path) -> None:
    """`draft=none`, as of --draft, leaves alone what is beside the weights."""
    shutil.copytree(draft, copy_of_target / "draft")
    (model,) = served_models([f"one={copy_of_target},draft=none"], ModelOptions(), None)
    assert not model.load().drafts and model.bytes == checkpoint_bytes(str(copy_of_target))


def test_options_of_drafts_are_for_models_that_have_one(target: Path, draft: Path) -> None:
    models = ModelOptions(draft_dtype="float64")
    alone, drafted, wrong = served_models(
        [f"alone={target}", f"drafted={target},draft={draft}", f"wrong={target},draft_dtype=float64"], models, None
    )
    assert alone.load().drafts == [] and drafted.load().names["draft_dtype"] == "float64"
    with pytest.raises(ConfigurationError, match="draft_dtype is for draft models, and there is none"):
        wrong.load()


def test_sizes(target: Path) -> None:
    assert checkpoint_bytes(str(target)) == (target / "model.safetensors").stat().st_size
    with pytest.raises(ConfigurationError, match="same name"):
        ServedModels(served_models([f"a={target}", f"a={target}"], ModelOptions(), None), ServeSettings(), 1 << 30)
