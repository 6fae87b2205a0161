"""Requests with a grammar: what is refused, and how it goes together with the other options."""

from __future__ import annotations

import json
import re
import time
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from grammar_words import LETTERS, words
from tokenizers import pre_tokenizers

from draftwood import ConfigurationError, DraftwoodError, Engine, RequestError, TabularModel
from draftwood.core.forest import Forest
from draftwood.sampling.grammar import Grammars, allowing, bias
from draftwood.sampling.params import Structured

END = frozenset({0})
BYTES = words(sorted(pre_tokenizers.ByteLevel.alphabet()))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Lena", "Tom"]}, "pears": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "pears"],
    "additionalProperties": False,
}


def engine(vocab: int = 4, **options: Any) -> Engine:
    target, draft = (TabularModel.random(vocab, seed, order=3) for seed in (1, 2))
    return Engine(target, [draft], LETTERS if vocab == 4 else BYTES, END, **options)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "give exactly one of json_schema, json_object, regex, choice, grammar; none was given"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice was given"),
        ({"json_object": False}, "none was given"),
        ({"regexp": "a"}, "has no option 'regexp' (did you mean 'regex'?)"),
        ({"regex": ""}, "should have at least 1 character"),
        ({"choice": []}, "should have at least 1 item"),
        ({"choice": ["a", ""]}, "should have at least 1 character"),
        ({"regex": "a" * 300_000}, "at most 262144 characters"),
        ({"choice": ["a" * 200_000, "b" * 200_000]}, "but at most 262,144 are read"),
        ({"json_schema": {"const": float("nan")}}, "json_schema is no JSON"),
        ({"json_schema": {"type": object()}}, "json_schema is no JSON"),
        ({"regex": "(a"}, 'structured: invalid regex "(a" (in regex): unclosed group'),
        ({"regex": "(" + "a" * 900}, 'a" (in regex): unclosed group'),
        ({"regex": r"(?=a)b"}, "look-around"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": "what is this?"}, "structured: "),
        ({"json_schema": {"type": "number", "frobnicate": 1, "unevaluatedProperties": 7}}, "structured: "),
        ({"json_schema": {"$ref": "https://example.org/schema.json"}}, "structured: "),
        ("json", "structured is 'json', but must be a mapping"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:20],
)
def test_wrong_ones_are_refused_in_one_sentence(spec: Any, sentence: str) -> None:
    with pytest.raises((RequestError, ConfigurationError)) as refused:
        engine().requests.request([1], structured=spec)
    text = str(refused.value)
    assert sentence in text and "\n" not in text and len(text) < 500


def test_what_a_grammar_needs() -> None:
    for ours, options, sentence in (
        (Engine(TabularModel.random(4, 1), end_tokens=END), {}, "needs a tokenizer"),
        (Engine(TabularModel.random(4, 1), tokenizer=LETTERS), {}, "this model has none"),
        (engine(), {"ignore_eos": True}, "leave out ignore_eos"),
    ):
        with pytest.raises(RequestError, match=sentence):
            ours.requests.request([1], structured={"regex": "a"}, **options)


HOSTILE: list[dict[str, Any]] = [
    {"regex": "(((((a{1,99}){1,99}){1,99}){1,99}){1,99})b"},
    {"regex": "(a|b)*a(a|b){2000}"},
    {"regex": "(" * 5000 + "a" + ")" * 5000},
    {"regex": "(.*a){60}" + "b" * 100},
    {"grammar": "start: x\n" + "".join(f"x{i}: x{i + 1} x{i + 1}\n" for i in range(60)) + 'x60: "a"\nx: x0'},
    {"grammar": 'start: a\na: a a | a "b" | "c" | a a a'},
    {"grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000},
    {"json_schema": {"anyOf": [{"type": "string", "pattern": f"(a|b{{1,{i}}})*c{{{i},999}}"} for i in range(1, 200)]}},
    {"json_schema": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}},
    {"json_schema": {"type": "array", "minItems": 100_000_000, "items": {"type": "integer"}}},
    {"json_schema": {"properties": {f"p{i}": {"type": "string"} for i in range(3000)}, "type": "object"}},
]


@pytest.mark.parametrize("spec", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_grammars_take_little_time(spec: dict[str, Any]) -> None:
    began = time.monotonic()
    try:
        result = engine(257).generate([1], "speculative", max_new_tokens=4, structured=spec)
        assert result.finish_reason in ("eos", "length")
    except DraftwoodError as refused:
        assert "\n" not in str(refused) and len(str(refused)) < 500
    assert time.monotonic() - began < 20


def test_masks_do_not_depend_on_the_way_there() -> None:
    """One matcher that walks through a tree says what a new one says of each path."""
    begin = Grammars(BYTES, END, 257, torch.device("cpu")).compiled(Structured(json_schema=SCHEMA))
    walker = begin()
    forest = Forest.from_prompt([5, 6])
    forest.end = END
    generator = torch.Generator().manual_seed(0)
    nodes = [forest.roots[0]]
    for _ in range(300):
        node = nodes[int(torch.randint(len(nodes), (1,), generator=generator))]
        allowed = walker.allowed(forest, node)
        assert begin().allowed(forest, node) is allowed  # and equal masks are read once
        tokens = [token for token in range(257) if allowed.has(token)]
        child = forest.add(node, tokens[torch.randint(len(tokens), (1,), generator=generator)])
        if child not in forest.finished:
            nodes.append(child)


@pytest.mark.parametrize(("vocab_size", "words"), [(257, 257), (31, 31), (40, 33), (33, 40)])
def test_masks_are_added_to_logits_of_a_model_whose_vocabulary_is_padded_or_cut(vocab_size: int, words: int) -> None:
    generator = np.random.default_rng(words)
    for ending in (True, False):
        bits = generator.integers(2, size=words)
        mask = np.packbits(np.pad(bits, (0, -words % 32)), bitorder="little").tobytes()
        allowed = allowing(mask, ending, frozenset({0, 9}), vocab_size)
        expected = [token < words and bool(bits[token]) for token in range(vocab_size)]
        expected[0] = expected[9] = ending
        assert [allowed.has(token) for token in range(vocab_size)] == expected
        assert bias(allowed.mask, vocab_size, torch.device("cpu")).tolist() == [0 if may else -inf for may in expected]
    assert allowing(b"\x20", False, frozenset({0}), vocab_size).only == 5
    stuck = allowing(b"\1", False, frozenset({0}), vocab_size)
    assert stuck.has(0) and stuck.only is None and "change the grammar" in stuck.failure


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "mcsd", "lookup", "dsbd"])
def test_limits_stops_and_seeds(method: str) -> None:
    ours, spec = engine(257), {"json_schema": SCHEMA}
    for seed in range(3):
        whole = ours.generate([1, 2], method, max_new_tokens=60, seed=seed, structured=spec)
        assert whole.finish_reason == "eos" and json.loads(whole.text)["name"] in ("Lena", "Tom")
        assert ours.generate([1, 2], method, max_new_tokens=60, seed=seed, structured=spec).tokens == whole.tokens
        short = ours.generate([1, 2], method, max_new_tokens=7, seed=seed, structured=spec)
        assert short.finish_reason == "length" and short.text == '{"name"'
        stopped = ours.generate([1, 2], method, max_new_tokens=60, seed=seed, stop='", "', structured=spec)
        assert stopped.finish_reason == "stop" and re.fullmatch('{"name": "(Lena|Tom)', stopped.text)


def test_a_grammar_wins_over_a_bias() -> None:
    bias = {token: -float("inf") for token in (0, 1, 2)}
    result = engine().generate([1], "speculative", {"logit_bias": bias}, 9, structured={"choice": ["ab", "ba"]})
    assert result.text in ("ab", "ba") and result.finish_reason == "eos"


def test_a_batch_with_and_without_grammars_is_as_alone() -> None:
    specs: list[dict[str, Any] | None] = [{"json_schema": SCHEMA}, None, {"regex": "[a-z]{3,9}"}, {"choice": ["x y"]}]
    methods = ["speculative", "mcsd", "dsbd", "lookup", "autoregressive"]
    requests = [
        {"prompt": [1, 2, 3], "method": method, "seed": i, "structured": spec, "max_new_tokens": 30}
        for i, method in enumerate(methods)
        for spec in specs
    ]
    alone = [engine(257, reuse_prefixes=False).generate(**request) for request in requests]  # type: ignore[arg-type]
    ours = engine(257)
    for _ in range(2):  # the second time with prefixes of the first
        together = ours.batch(requests, concurrency=7)
        assert [result.tokens for result in together] == [result.tokens for result in alone]


def test_a_vocabulary_that_cannot_spell_it_ends_the_request() -> None:
    with pytest.raises(RequestError, match="no token of this model goes on"):
        engine().generate([1], "speculative", max_new_tokens=9, structured={"choice": ["abx"]})


def test_forced_tokens_are_told_in_results_and_rounds() -> None:
    result = engine(257).generate([1], "speculative", max_new_tokens=60, structured={"json_schema": SCHEMA})
    document = result.as_dict()
    assert document["structured"] == {"json_schema": SCHEMA}
    assert document["kinds"].count("forced") == document["metrics"]["forced"] > 10
    assert sum(one["forced"] for one in document["rounds"]) >= document["metrics"]["forced"]
    assert result.metrics.accepted <= result.metrics.drafted
    for round_ in result.rounds:
        assert round_.forced <= 64 + 1 and round_.depth_accepted <= round_.attempted <= round_.depth_accepted + 1
