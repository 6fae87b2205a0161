"""llama.cpp's endpoints, as its own clients use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Running, running

from draftwood import load

PROMPT, SEED = "Story: a fox", 3


def events(served: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = served.client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line]


@pytest.mark.parametrize("speculation", ["off", "speculative", {"name": "mcsd", "tree": [2, 1]}], ids=str)
def test_completion(served: Running, speculation: Any) -> None:
    given: Any = {"prompt": PROMPT, "n_predict": 12, "seed": SEED, "speculation": speculation, "cache_prompt": True}
    spec = "autoregressive" if speculation == "off" else speculation
    expected = served.engine.generate(PROMPT, spec, max_new_tokens=12, seed=SEED)
    whole = served.post("/completion", **given, samplers=["top_k"], id_slot=-1, return_tokens=True)
    assert (whole["content"], whole["tokens"], whole["stop"]) == (expected.text, expected.tokens, True)
    assert whole["tokens_predicted"] == len(expected.tokens) and whole["tokens_evaluated"] == len(PROMPT)
    assert whole["stop_type"] == {"eos": "eos", "length": "limit"}[expected.finish_reason]
    assert whole["timings"]["draft_n"] == expected.metrics.drafted
    *parts, last = events(served, "/completion", **given)
    assert "".join(part["content"] for part in parts) == expected.text and not any(part["stop"] for part in parts)
    assert [token for part in parts for token in part["tokens"]] == expected.tokens
    assert last["stop"] and not last["content"] and last["tokens_predicted"] == len(expected.tokens)


def test_fields_of_completion(served: Running) -> None:
    stop = served.engine.generate(PROMPT, max_new_tokens=12, seed=SEED).text[4]
    asked: Any = {"prompt": PROMPT, "n_predict": 12, "seed": SEED}
    assert served.post("/completion", **asked, stop=[stop])["stop_type"] == "word"
    biased = served.post("/completion", **asked, logit_bias=[[5, False], [70, 90.0]], return_tokens=True)
    assert set(biased["tokens"]) == {70}
    probable = served.post("/completion", **asked, n_probs=2)["completion_probabilities"]
    assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 and one["bytes"] for one in probable)
    assert served.post("/completion", prompt="a", json_schema={"enum": ["x"]})["content"] == '"x"'
    assert served.post("/completion", prompt="a", grammar='root ::= "b" "c"')["content"] == "bc"
    several = served.post("/completion", prompt=["a", "b"], n_predict=2)
    assert [one["index"] for one in several] == [0, 1]
    mixed = served.post("/completion", prompt=["Story: ", *served.engine.tokens("a fox")], n_predict=12, seed=SEED)
    assert mixed["content"] == served.post("/completion", **asked)["content"]
    assert served.post("/completion", prompt=PROMPT, n_predict=0)["tokens_predicted"] == 1
    for body, told in (
        ({"prompt": ["a", None]}, "prompt"),
        ({"prompt": "a", "logit_bias": [[1]]}, "pairs of a token id and a number"),
        ({"prompt": "a", "temperature": -1}, "at least 0"),
        ({"prompt": "a", "model": "other"}, "there is no model 'other'"),
        ({}, "the prompt is empty"),
    ):
        assert told in served.refused("/completion", **body)[1]["message"]


def test_tokens_and_templates(served: Running) -> None:
    ids = served.engine.tokens("aé")
    found = served.post("/tokenize", content="aé", with_pieces=True)["tokens"]
    assert [one["id"] for one in found] == ids
    assert [one["piece"] for one in found] == ["a", [0xC3], [0xA9]]
    assert served.post("/tokenize", content="aé", add_special=False)["tokens"] == ids
    assert served.post("/detokenize", tokens=ids)["content"] == "aé"
    talk = [{"role": "user", "content": "hi"}]
    assert served.post("/apply-template", messages=talk) == {"prompt": "u:hi|a:"}
    assert served.post("/apply-template", messages=talk, add_generation_prompt=False) == {"prompt": "u:hi|"}
    assert served.refused("/tokenize", content="a", prompt="a")[0] == 400


def test_facts(served: Running) -> None:
    props = served.client.get("/props").json()
    context = served.engine.target.context
    assert props["default_generation_settings"]["n_ctx"] == context and props["chat_template"]
    assert "/" not in props["model_path"]
    slots = served.client.get("/slots").json()
    assert len(slots) == props["total_slots"] and not any(slot["is_processing"] for slot in slots)
    for path in ("/v1/embeddings", "/embedding", "/embeddings", "/api/embed"):
        status, error = served.refused(path, input="a")
        assert status == 404 and "has no embeddings" in error["message"]


@pytest.fixture(scope="module")
def coder(long_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that has tokens for what is filled in."""
    place = tmp_path_factory.mktemp("coder")
    for file in filter(Path.is_file, long_target.iterdir()):
        (place / file.name).write_bytes(file.read_bytes())
    tokens = json.loads((place / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    freed = sorted(vocabulary, key=vocabulary.__getitem__)[-3:]  # of letters that no text here has
    for name, letter in zip(names, freed, strict=True):
        id = vocabulary.pop(letter)
        vocabulary[name] = id
        tokens["added_tokens"].append(
            {"id": id, "content": name, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
            | {"single_word": False}
        )
    (place / "tokenizer.json").write_text(json.dumps(tokens))
    with running(load(place)) as found:
        yield found


def test_infill(coder: Running, served: Running) -> None:
    given: Any = {"input_prefix": "ab", "prompt": "c", "input_suffix": "ef", "n_predict": 6, "seed": SEED}
    whole = coder.post("/infill", **given, return_tokens=True, input_extra=[{"filename": "x.py", "text": "x"}])
    words = coder.service.tokenizer
    front, back, middle = (words.id_of(f"<fim_{name}>") for name in ("prefix", "suffix", "middle"))
    prompt = [front, *words.encode("x\nabc"), back, *words.encode("ef"), middle]
    assert whole["tokens"] == coder.engine.generate(prompt, max_new_tokens=6, seed=SEED).tokens
    assert events(coder, "/infill", **given)[-1]["stop"]
    asked: Any = {"prompt": ["abc", "x"], "suffix": "ef", "max_tokens": 6, "seed": SEED}
    texts = [choice["text"] for choice in coder.post("/v1/completions", **asked)["choices"]]
    plain = coder.service.engine.generate([*prompt[:1], *prompt[3:]], max_new_tokens=6, seed=SEED).text
    assert texts[0] == plain and len(texts) == 2
    name, options = coder.service.name, {"num_predict": 6, "seed": SEED}
    generated = coder.post("/api/generate", model=name, prompt="abc", suffix="ef", options=options, stream=False)
    assert generated["response"] == plain
    raw = coder.post("/api/generate", model=name, prompt="abc", options=options, stream=False)  # without a template
    assert raw["response"] == coder.service.engine.generate("abc", max_new_tokens=6, seed=SEED).text
    assert "no tokens for text" in served.refused("/v1/completions", prompt="a", suffix="b")[1]["message"]
    assert "are texts" in coder.refused("/v1/completions", prompt=[1], suffix="b")[1]["message"]
    assert "no tokens for text that is filled in" in served.refused("/infill", **given)[1]["message"]
