"""Bad words and allowed tokens: every method has the law of plain decoding of a target that cannot say them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from grammar_words import LETTERS, masked
from test_grammar_law import BEAMS, METHODS

from draftwood import Engine, GenerationResult, Method, RequestError, TabularModel
from draftwood.certify.enumeration import enumerated
from draftwood.certify.small import Case
from draftwood.certify.tables import PROMPT
from draftwood.errors import ConfigurationError

BAD_WORDS, ALLOWED = ["ab", "c", "bba"], [0, 1, 2, 3]
CHOSEN = {name: METHODS[name] for name in ("plain", "chain", "tree", "heads", "lookup", "drawn n-grams")}
CHOSEN["two beams"] = BEAMS["two beams"]


class Allowed:
    """The tokens that may follow generated ones; `bad` words as texts of LETTERS, one letter a token."""

    def allowed(self, output: tuple[int, ...]) -> set[int]:
        text = "".join("_abc"[token] for token in output)
        return {
            token for token in ALLOWED if not any((text + "_abc"[token]).endswith(word) for word in BAD_WORDS)
        } or set(ALLOWED)


@dataclass(slots=True)
class BadWordsCase(Case):
    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        engine = self._engine()
        engine.builder.tokenizer = LETTERS
        return engine.generate(
            PROMPT,
            method or self.method,
            self.params,
            self.tokens,
            seed,
            bad_words=BAD_WORDS,
            allowed_token_ids=ALLOWED,
        )


@pytest.mark.some(3)
@pytest.mark.parametrize("name", CHOSEN)
def test_law(name: str) -> None:
    method = Method.parse(CHOSEN[name])
    tokens = 2 if name == "two beams" else 3  # that have few outcomes
    case, twin = BadWordsCase(method, 4, tokens, "plain", 3), Case(method, 4, tokens, "plain", 3)
    twin.target = masked(case.target, Allowed(), len(PROMPT))  # type: ignore[arg-type]
    reference: Any = twin.reference
    with enumerated() as randomness:
        law = randomness.law_of(lambda: reference.outcome(case.run()), 4000)
    assert reference.distance(law) < 1e-6


def test_words_in_texts() -> None:
    """A word's last token is forbidden behind its others alone, and none of the prompt's counts."""
    engine = Engine(TabularModel.random(4, 5), tokenizer=LETTERS, end_tokens=frozenset((0,)))
    texts = [engine.generate([1], seed=seed, max_new_tokens=8, bad_words=["ab"]).text for seed in range(40)]
    assert not any("ab" in text for text in texts) and any(text.startswith("b") for text in texts)
    assert any("bb" in text for text in texts)
    ids = [engine.generate([1], seed=seed, max_new_tokens=8, allowed_token_ids=[2, 3]).tokens for seed in range(9)]
    assert {token for one in ids for token in one} == {2, 3}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("method", "plain"),
    [
        ({"name": "speculative", "gamma": 2}, {"name": "autoregressive"}),
        ({"name": "mcsd", "tree": [2, 1]}, {"name": "autoregressive"}),
        ({"name": "dsbd", "width": 1, "draft_width": 2, "gamma": 1}, {"name": "beam-sampling", "width": 1}),
    ],
    ids=lambda method: method["name"],
)
def test_tokens_that_the_draft_lacks(method: dict[str, Any], plain: dict[str, Any], temperature: int) -> None:
    """A draft with fewer logits than the target, where some that it lacks are all that is allowed, or one of them."""
    engine = Engine(TabularModel.random(6, 5), [TabularModel.random(4, 6)])
    for allowed in ([4, 5], [3, 5]):
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 3, "allowed_token_ids": allowed}
        with enumerated() as randomness:
            law, wanted = (
                randomness.law_of(lambda: tuple(engine.generate([1], one, **options).tokens), 4000)  # noqa: B023
                for one in (method, plain)
            )
        assert law == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bad_words": "ab"}, "must be a list of strings"),
        ({"bad_words": [""]}, "a bad word is empty"),
        ({"allowed_token_ids": []}, "must be a list of token ids"),
        ({"allowed_token_ids": [4]}, "ids go from 0 to 3"),
        ({"allowed_token_ids": [1], "bad_words": ["ba"]}, "may forbid every token"),
        ({"allowed_token_ids": [0], "min_new_tokens": 1}, "leave at least one"),
        ({"priority": "low"}, "must be a whole number"),
    ],
)
def test_refusals(options: dict[str, Any], told: str) -> None:
    engine = Engine(TabularModel.random(4, 5), tokenizer=LETTERS, end_tokens=frozenset((0,)))
    with pytest.raises((RequestError, ConfigurationError), match=told):
        engine.generate([1], **options)
