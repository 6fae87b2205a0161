"""Grammars on tokenizers without bytes: followed where a text is that of its tokens joined, else refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer as FastBackend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from draftwood import Engine, ModelError, RequestError, TabularModel
from draftwood.models.text.tokenizer import Tokenizer

LETTERS = '▁abcdefghilnorstxyz"{}:,0123日é\n'
MERGES = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "in")]
SPECIAL = ["<unk>", "</s>"]


def bpe() -> FastBackend:
    vocab = {text: i for i, text in enumerate([*SPECIAL, *LETTERS, *(left + right for left, right in MERGES)])}
    backend = FastBackend(models.BPE(vocab, MERGES, unk_token="<unk>", fuse_unk=True))
    backend.add_special_tokens(SPECIAL)
    return backend


def fused() -> FastBackend:
    """As Llama 2's without its bytes."""
    backend = bpe()
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


def metaspace() -> FastBackend:
    backend = bpe()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return backend


def unigram() -> FastBackend:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((text, -4.0) for text in LETTERS), ("▁the", -3.0), ("▁in", -3.0)]
    backend = FastBackend(models.Unigram(pieces, 0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return backend


def suffixes() -> FastBackend:
    backend = bpe()
    backend.decoder = decoders.BPEDecoder()
    return backend


def word_pieces() -> FastBackend:
    backend = FastBackend(models.WordPiece({"<unk>": 0, "</s>": 1, "the": 2, "##n": 3, "a": 4}, unk_token="<unk>"))
    backend.decoder = decoders.WordPiece()
    return backend


def whole_words() -> FastBackend:
    backend = FastBackend(models.WordLevel({"<unk>": 0, "</s>": 1, "the": 2, "a": 3}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def engine(make: Callable[[], FastBackend]) -> Engine:
    words = Tokenizer(make(), make.__name__)
    target, draft = (TabularModel.random(words.size, seed, order=1) for seed in (1, 2))
    return Engine(target, [draft], words, frozenset({1}))


METHODS: list[Any] = [
    "autoregressive",
    "speculative",
    {"name": "mcsd", "tree": [2, 2]},
    {"name": "dsbd", "width": 2, "gamma": 3},
]
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"choice": ["the inn", " 日 the", "thin"]}, "the inn| 日 the|thin"),
    ({"regex": "[a-i]{1,3} (in|the )日?é"}, "[a-i]{1,3} (in|the )日?é"),
    (
        {
            "json_schema": {
                "type": "object",
                "properties": {"the": {"enum": ["in", 10]}},
                "required": ["the"],
                "additionalProperties": False,
            }
        },
        r"\{.*\}",
    ),
]


@pytest.mark.parametrize("make", [fused, metaspace, unigram])
def test_every_complete_text_is_of_the_grammar(make: Callable[[], FastBackend]) -> None:
    ours = engine(make)
    complete = 0
    for seed, (spec, pattern) in enumerate(SPECS):
        for method in METHODS:
            result = ours.generate("hat", method, max_new_tokens=40, seed=seed, structured=spec)
            if result.finish_reason == "eos":
                complete += 1
                assert re.fullmatch(pattern, result.text), (spec, result.text)
                if "json_schema" in spec:
                    assert json.loads(result.text)["the"] in ("in", 10)
    assert complete > len(SPECS) * len(METHODS) // 2
    with pytest.raises(RequestError, match="no token of this model goes on"):
        ours.generate("hat", structured={"choice": ["QUIZ"]})


@pytest.mark.parametrize(
    ("make", "step"), [(suffixes, "BPEDecoder"), (word_pieces, "WordPiece"), (whole_words, "spaces")]
)
def test_tokens_that_change_when_they_are_joined_are_refused(make: Callable[[], FastBackend], step: str) -> None:
    with pytest.raises(ModelError, match=f"joins tokens by {step}, which structured output cannot follow") as caught:
        engine(make).generate([2], structured={"regex": "the"})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_no_token_spells_is_not_skipped(method: Any) -> None:
    """Behind "n" a grammar demands "ull", which has a letter that is no token: what comes after it does not follow."""
    ours, spec = engine(unigram), {"regex": "n(ull[,}]|i[0-3])"}
    found = set()
    for seed in range(12):
        try:
            found.add(ours.generate("hat", method, max_new_tokens=8, seed=seed, structured=spec).text)
        except RequestError as error:
            assert "no token of this model goes on" in str(error)
    assert found <= {"ni0", "ni1", "ni2", "ni3"} and len(found) > 1
    with pytest.raises(RequestError, match="no token of this model goes on"):
        ours.generate("hat", method, structured={"regex": "null[,}]"})
