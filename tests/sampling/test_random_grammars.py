"""Random grammars, methods and seeds: every complete text parses, those of all beams too."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import torch
from grammar_words import words
from tokenizers import pre_tokenizers

from draftwood import GenerationResult, Method
from draftwood.certify.small import END, WARPS, Case
from draftwood.certify.tables import PROMPT
from draftwood.sampling.grammar import Grammars

BYTES = words(sorted(pre_tokenizers.ByteLevel.alphabet()))
GRAMMARS = Grammars(BYTES, END, BYTES.size, torch.device("cpu"))
METHODS: list[dict[str, Any]] = [
    {"name": "autoregressive"},
    {"name": "autoregressive", "verify": "coupled"},
    {"name": "speculative", "gamma": 3},
    {"name": "speculative"},
    {"name": "speculative", "gamma": 3, "verify": "coupled"},
    {"name": "specinfer", "expansion": [2, 1]},
    {"name": "mcsd", "tree": [3, 1], "replacement": True},
    {"name": "mcsd", "tree": [2], "initial": 2},
    {"name": "mcsd-fork", "width": 3, "gamma": 2},
    {"name": "mcsd-fork", "width": 2, "gamma": 2, "verify": "longest"},
    {"name": "eesd", "gamma": 3},
    {"name": "self-spec", "gamma": 2},
    {"name": "medusa", "tree": [2, 1]},
    {"name": "medusa", "tree": [2, 1], "verify": "typical"},
    {"name": "lookup", "min_ngram": 1},
    {"name": "beam-sampling", "width": 3, "n_best": 3},
    {"name": "dsbd", "gamma": 2, "draft_width": 3, "width": 2, "n_best": 2},
    {"name": "dsbd", "gamma": 2, "draft_width": 4, "replacement": False},
    {"name": "dsbd", "gamma": 2, "draft_width": 3, "one_cache": True, "warp": "token"},
    {"name": "beam-search", "width": 3, "n_best": 2},
    {"name": "speculative-beam-search", "width": 2, "gamma": 2},
]
NAMES = ["a", "id", "naïve", 'quo"te', "two words"]


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random schema whose texts are short."""
    kinds = ["boolean", "null", "integer", "string", "enum", "const", *(["object", "array", "anyOf"] if depth else [])]
    match rng.choice(kinds):
        case "integer":
            low = rng.randint(-20, 20)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}
        case "string":
            return rng.choice([{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^[a-f]{2,4}$"}])
        case "enum":
            return {"enum": rng.sample([*NAMES, 1, 2.5, None, True], rng.randint(1, 3))}
        case "const":
            return {"const": rng.choice([*NAMES, 7, False])}
        case "object":
            names = rng.sample(NAMES, rng.randint(0, 3))
            return {
                "type": "object",
                "properties": {name: schema(rng, depth - 1) for name in names},
                "required": [name for name in names if rng.random() < 0.7],
                "additionalProperties": False,
            }
        case "array":
            return {"type": "array", "items": schema(rng, depth - 1), "minItems": rng.randint(0, 1), "maxItems": 2}
        case "anyOf":
            return {"anyOf": [schema(rng, depth - 1) for _ in range(2)]}
        case kind:
            return {"type": kind}


def valid(value: Any, of: dict[str, Any]) -> bool:
    """Whether a value is of a schema as `schema` makes them."""
    if "anyOf" in of:
        return any(valid(value, one) for one in of["anyOf"])
    if "enum" in of or "const" in of:
        return any(value == one and type(value) is type(one) for one in of.get("enum", [of.get("const")]))
    match of["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return type(value) is int and of["minimum"] <= value <= of["maximum"]
        case "string":
            fits = re.fullmatch(of.get("pattern", "(?s).*"), value) if isinstance(value, str) else None
            return fits is not None and len(value) <= of.get("maxLength", 99)
        case "array":
            return isinstance(value, list) and len(value) <= 2 and all(valid(one, of["items"]) for one in value)
        case _:
            known = of["properties"]
            return (
                isinstance(value, dict)
                and all(name in known and valid(one, known[name]) for name, one in value.items())
                and all(name in value for name in of["required"])
            )


LISP = 'start: list\nlist: "(" [item (" " item)*] ")"\nitem: WORD | list\nWORD: /[a-z]{1,2}/\n'
GBNF = 'root ::= sum\nsum ::= digit ("+" digit)*\ndigit ::= [0-9]\n'


def grammar(rng: random.Random) -> tuple[dict[str, Any], Any]:
    """A request's grammar and what says whether a text is of it."""
    match rng.choice(["schema"] * 6 + ["object", "regex", "choice", "lisp", "sum"]):
        case "schema":
            wanted = {"anyOf": [schema(rng), schema(rng)]} if rng.random() < 0.1 else schema(rng)
            return {"json_schema": wanted}, lambda text: valid(json.loads(text), wanted)
        case "object":
            return {"json_object": True}, lambda text: isinstance(json.loads(text), dict)
        case "regex":
            regex = rng.choice(["[a-c]{2,5}é?", "(yes|no|maybe) [0-9]{1,3}", "[0-9]{4}-[0-9]{2}", "(ab|a|b)*c"])
            return {"regex": regex}, lambda text: re.fullmatch(regex, text)
        case "choice":
            texts = rng.sample(["yes", "no", 'a "quoted"\nline', "ja — nein", "yes, indeed", "\\"], 3)
            return {"choice": texts}, texts.__contains__
        case "lisp":
            return {"grammar": LISP}, lambda text: text.count("(") == text.count(")") and text[0] + text[-1] == "()"
        case _:
            return {"grammar": GBNF}, lambda text: re.fullmatch(r"\d(\+\d)*", text)


def run(seed: int) -> int:
    """One random request; how many of its texts were complete, all of which must parse."""
    rng = random.Random(seed)
    method = Method.parse(rng.choice(METHODS))
    warps = ["plain", "greedy"] if method.name.endswith("search") else [*WARPS]
    drafts = 2 if method.name == "specinfer" else None
    case = Case(method, BYTES.size, 60, rng.choice(warps), seed, drafts, order=3)
    case.engine.builder.tokenizer, case.engine.requests.grammars = BYTES, GRAMMARS
    spec, parses = grammar(rng)
    result = case.engine.generate(PROMPT, method, case.params, case.tokens, seed, structured=spec)
    return check(result, parses, spec)


def check(result: GenerationResult, parses: Any, spec: dict[str, Any]) -> int:
    complete = 0
    texts = [(beam.text, beam.finish_reason) for beam in result.beams] or [(result.text, result.finish_reason)]
    for text, reason in [*texts, (result.text, result.finish_reason)]:
        assert reason in ("eos", "length"), (reason, spec)
        if reason == "eos":
            complete += 1
            assert parses(text), (text, spec, result.method)
    assert result.structured == spec
    return complete


def test_every_complete_text_parses() -> None:
    assert sum(bool(run(seed)) for seed in range(60)) > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_every_complete_text_of_a_thousand_parses(part: int) -> None:
    assert sum(bool(run(1000 + 100 * part + i)) for i in range(100)) > 60
