"""Text as it grows, behind prompts that end anywhere: characters of several tokens, in many scripts and tokenizers."""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

import pieces
import pytest
from checkpoint_files import byte_level, llama_like
from growing import certain, following

import draftwood
from draftwood import Engine
from draftwood.core.forest import Forest
from draftwood.engine.stopping import Ending, StopStrings
from draftwood.explain.text import spelling
from draftwood.models.text.tokenizer import REPLACEMENT, Tokenizer, TokenStream

TEXTS = [
    "伣偆傧璣偬",
    "the thin tin, in the 東京 of old: 日本語の文章。",
    "Привет, мир! Ещё ёлка.",
    "שלום עולם — مرحبا بالعالم",
    "नमस्ते दुनिया, ภาษาไทย, မြန်မာ, ጤና ይስጥልኝ",
    "e\u0301a\u0308o\u0302\u0323 Z\u0351\u036b\u0343algo q\u0307\u0323",
    "👩‍👩‍👧‍👦👨🏽‍🚒🏳️‍🌈🇩🇪🇫🇷❤️‍🔥 ok",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐎀 𠀋𠮷 🜁",
    "한국어 텍스트\n\n\ttab  and   spaces ",
    "x\u200by\u00a0z\u2028 \ufeff½…‰",
    "ab\x00\x01 \x7f",
]


def ours(kind: str) -> Tokenizer:
    return Tokenizer(byte_level() if kind == "byte_level" else llama_like(), kind)


@cache
def own_sentencepiece(directory: Path) -> Tokenizer:
    return Tokenizer.load(pieces.write(directory))


@pytest.fixture(params=["byte_level", "llama_like", "sentencepiece", "smollm2", "gemma"])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param in ("smollm2", "gemma"):
        return real(request.getfixturevalue(request.param))
    if request.param == "sentencepiece":
        return own_sentencepiece(tmp_path_factory.getbasetemp() / "pieces")
    return ours(request.param)


@cache
def real(place: Path) -> Tokenizer:
    return Tokenizer.load(place)


FOUR = pytest.mark.parametrize(
    "words",
    [
        "byte_level",
        "llama_like",
        "sentencepiece",
        pytest.param("smollm2", marks=pytest.mark.real),
        pytest.param("gemma", marks=pytest.mark.real),
    ],
    indirect=True,
)


@pytest.mark.some(12)
@FOUR
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_continued_at_every_cut(words: Tokenizer, text: str) -> None:
    """After each token exactly the characters are there that are complete by then; nothing is lost, nothing twice."""
    ids = words.encode(text)
    known = certain(words, ids)
    assert known[-1] == words.decode(ids) and REPLACEMENT not in known[-1]
    for cut in range(len(ids) + 1):
        stream = words.stream(ids[:cut])
        joined = list(itertools.accumulate((stream.step(token) for token in ids[cut:]), initial=""))
        assert joined == [one[len(known[cut]) :] for one in known[cut:]], (cut, ids)


ANY = "伣é🙂 \n日te\u0301"


def parts(words: Tokenizer) -> list[int]:
    """Ids that are no whole characters."""
    return [token for token in range(words.size) if words.known(token).part is not None]


@FOUR
def test_a_stop_string_is_found_at_the_token_that_completes_it(words: Tokenizer) -> None:
    """By the check of hypotheses and by that of what is emitted, wherever prompt and answer meet."""
    rng = random.Random(3)
    found = 0
    for text in TEXTS:
        ids = words.encode(text)
        for cut in range(1, len(ids), 2):
            stream = words.stream(ids[:cut])
            joined = list(itertools.accumulate(stream.step(token) for token in ids[cut:]))
            if not joined[-1]:
                continue
            start = rng.randrange(len(joined[-1]))
            stop = joined[-1][start : start + rng.randrange(1, 5)]
            least = rng.choice([0, 0, 1, 3])
            check = StopStrings([stop], words.stream, TokenStream.CONTEXT)
            forest = Forest.from_prompt(ids[:cut], stop=check, min_new_tokens=least)
            ending = Ending(1000, frozenset(), [stop], words.stream(ids[:cut]), min_new_tokens=least)
            node = 0
            for token in ids[cut:]:
                ends = forest.ends(node, token)
                ending.feed([token])
                assert ends == (ending.reason == "stop"), (text, cut, stop, least)
                if ends:
                    found += 1
                    break
                node = forest.add(node, token)
            else:
                assert least
    assert found > 70


@FOUR
def test_bytes_that_are_no_character_spoil_nothing_around_them(words: Tokenizer) -> None:
    """Broken bytes between characters: the text is that of all the bytes, as Python and Unicode decode them."""
    rng, broken = random.Random(4), parts(words)
    letters = [words.encode(letter, add_special=False) for letter in ANY]
    for _ in range(200):
        ids = [*words.encode("a")]
        for _ in range(rng.randrange(1, 8)):
            ids += rng.choice(letters) if rng.random() < 0.7 else [rng.choice(broken)]
        spelled = [words.bytes_of(token) or b"" for token in ids[len(words.encode("a")) :]]
        cut = rng.randrange(len(spelled) + 1)
        stream = words.stream(ids[: len(ids) - len(spelled) + cut])
        text = "".join(stream.step(token) for token in ids[len(ids) - len(spelled) + cut :]) + stream.rest()
        whole, before = (b"".join(spelled[:end]).decode(errors="replace") for end in (None, cut))
        assert text == whole[len(before) - (not whole.startswith(before)) :]


@FOUR
def test_bytes_of_all_tokens_are_those_of_the_text(words: Tokenizer) -> None:
    for text in TEXTS:
        ids = words.encode("a" + text)
        assert (
            b"".join(words.bytes_of(token) or b"" for token in ids if words.known(token).ordinary).strip()
            == ("a" + text).encode().strip()
        )


@FOUR
def test_a_literal_replacement_character_is_text(words: Tokenizer) -> None:
    ids = words.encode("the \ufffd")
    stream = words.stream()
    assert "".join(map(stream.step, ids)) == "the \ufffd"


@FOUR
def test_tokens_are_spelled_from_the_middle_of_a_character_on(words: Tokenizer) -> None:
    """As pages and terminals show parts of an answer."""
    spell = spelling(words)
    ids = words.encode("伣偆傧 🙂", add_special=False)
    assert spell(ids).strip() == "伣偆傧 🙂"
    for start in range(len(ids) - 4):
        assert spell(ids[start:]).endswith("🙂")


METHODS: list[Any] = [
    "autoregressive",
    {"name": "speculative", "gamma": 3},
    {"name": "mcsd", "tree": [2, 1]},
    {"name": "dsbd", "width": 2, "depth": "fixed"},
    {"name": "beam-search", "width": 2},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method if isinstance(method, str) else method["name"])
def test_every_method_writes_what_the_tokens_say(method: Any) -> None:
    words, text = ours("llama_like"), "日伣偆傧璣偬🙂é end"
    ids = words.encode(text)
    end = words.id_of("</s>")
    assert end is not None
    engine = Engine(following(ids, end, words.size), [following(ids, end, words.size)], words, frozenset({end}))
    known = certain(words, ids)
    options: dict[str, Any] = {"method": method, "sampling": {"temperature": 0}}
    for cut in range(2, len(ids) - 4, 2):
        rest = known[-1][len(known[cut]) :]
        result = engine.generate(ids[:cut], **options)
        assert result.text == rest and all(beam.text == rest for beam in result.beams[:1])
        assert "".join(event.text for event in engine.stream(ids[:cut], **options)) == rest
        stopped = engine.generate(ids[:cut], **options, stop="偬🙂")
        expected = rest.split("偬🙂")[0] if "偬🙂" in rest else rest
        assert (stopped.text, stopped.finish_reason) == (expected, "stop" if "偬🙂" in rest else "eos")
    explained = engine.explain(ids[:12], **options)
    assert "".join(piece for round_ in explained.pieces for piece, _ in round_) == known[-1][len(known[12]) :]


@pytest.mark.real
@pytest.mark.slow
def test_a_real_model_continues_rare_characters(gemma: Path) -> None:
    """Gemma spells them in bytes: the answer goes on in bytes as the prompt ended."""
    engine = draftwood.load(gemma, dtype="float32")
    prompt, options = "伣偆傧", {"sampling": {"temperature": 0}, "max_new_tokens": 6}
    ids = engine.tokens(prompt)
    for method in ("autoregressive", "lookup", {"name": "beam-search", "width": 2}):
        result = engine.generate(prompt, method, **options)
        assert result.text == engine.tokenizer.decode([*ids, *result.tokens])[3:] != ""
        if method != METHODS[-1]:
            assert result.text == "璣偬"
            assert engine.generate(prompt, method, **options, stop="偬").text == "璣"
    assert "".join(event.text for event in engine.stream(prompt, **options)) == "璣偬"
    chosen = engine.generate(prompt, **options, structured={"choice": ["yes", "no"]})
    assert chosen.text in ("yes", "no")
