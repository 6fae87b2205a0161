"""Drafts with another tokenizer: the map between vocabularies, laws, bits, and the draft's own view of the text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import byte_level, llama_like, ours, write
from enumeration import EnumeratedRandomness
from every_method import shortage
from test_beams_exact import ENDLESS, EXACT, Enumerated, distance
from tokenizers import Tokenizer as FastBackend
from tokenizers import decoders, models

import draftwood
from draftwood import ConfigurationError, Engine, ModelError, SamplingParams, TabularModel
from draftwood.core.forest import Forest
from draftwood.draft import TranslatedSession
from draftwood.models.other_vocabulary import OtherVocabulary
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.models.text.vocabulary_map import VocabularyMap, Words
from draftwood.runtime.session import Session

TEXT = "the thin tin é 猫 in the<|end|> ther"


def letters(words: Sequence[str], name: str = "words", **more: Any) -> Tokenizer:
    """A tokenizer of an end token and some words, made of letters or of two words each."""
    vocab = {"<e>": 0} | {word: i for i, word in enumerate(words, 1)}
    merges = [(word[:1], word[1:]) for word in words if len(word) > 1]
    backend = FastBackend(models.BPE(vocab, merges))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<e>"])
    return Tokenizer(backend, name, {"eos_token": "<e>"})


TARGET, DRAFT = letters(["a", "b", "ab"]), letters(["b", "a", "c"])  # 'ab' is 'a', 'b' to the draft; 'c' it has alone


def tables(seed: int = 21) -> tuple[TabularModel, OtherVocabulary]:
    between = VocabularyMap.of(TARGET, DRAFT)
    return TabularModel.random(4, seed=seed), OtherVocabulary(TabularModel.random(4, seed=seed + 1), between)


# -- the map -----------------------------------------------------------------------------------------------------------


def test_tokens_of_equal_bytes_are_shared() -> None:
    between = VocabularyMap.of(TARGET, DRAFT)
    assert (between.target_ids, between.draft_ids) == ([0, 1, 2], [0, 2, 1])
    assert [between.pieces(token) for token in range(4)] == [[0], [2], [1], [2, 1]]
    assert between.text([3, 1]) == [2, 1, 2]


@pytest.mark.parametrize("turned", [False, True])
def test_texts_go_to_the_other_tokenizer_and_back(turned: bool) -> None:
    pair = [Tokenizer(byte_level(), "bytes"), Tokenizer(llama_like(), "pieces")]
    target, draft = reversed(pair) if turned else pair
    between = VocabularyMap.of(target, draft)
    for ours_, theirs in zip(between.target_ids, between.draft_ids, strict=True):
        assert target.bytes_of(ours_) == draft.bytes_of(theirs) or ours_ in target.end_tokens
    assert len(between.target_ids) >= 256, "every byte is in both"
    tokens = target.encode(TEXT)
    assert draft.decode(between.text(tokens), skip_special=False).removeprefix("<s>").strip() == TEXT
    pieces = [piece for token in target.encode(TEXT, add_special=False) for piece in between.pieces(token)]
    assert b"".join(map(between.draft.spelled, pieces)).decode().strip() == TEXT
    tokens = target.encode("the thin tin in the hat", add_special=False)
    for cut in range(1, len(tokens)):
        rest = b"".join(map(between.target.spelled, tokens[cut:]))
        assert between.cut_by_target(tokens[:cut], rest) == tokens[cut:]
        assert between.cut_by_target(tokens[:cut], rest + b"\xe7\x8c") == tokens[cut:], "half a character is left out"


def test_vocabularies_without_a_shared_token_are_refused() -> None:
    with pytest.raises(ModelError, match=r"no token in common.*use a draft whose vocabulary overlaps"):
        VocabularyMap.of(letters(["a"]), letters(["b"]))


@pytest.mark.slow
@pytest.mark.real
def test_the_map_is_that_of_universal_assisted_decoding() -> None:
    """SmolLM2 and Gemma 3, beside what transformers maps by the spelling of tokens."""
    from transformers import PreTrainedTokenizerFast
    from transformers.generation.candidate_generator import AssistantToTargetTranslator

    from recipes import real_models

    paths = [real_models.fetch(model) for model in (real_models.SMOLLM2, real_models.GEMMA)]
    target, draft = (Tokenizer.load(path) for path in paths)
    between = VocabularyMap.of(target, draft)
    theirs = [PreTrainedTokenizerFast(tokenizer_object=words.backend) for words in (target, draft)]
    mapped = AssistantToTargetTranslator(*theirs, target_vocab_size=target.size)
    wanted = {(int(id), place) for place, id in enumerate(mapped._assistant_to_target_input_ids.tolist()) if id >= 0}
    found = set(zip(between.target_ids, between.draft_ids, strict=True))
    spelled = {pair for pair in wanted if between.target.spelled(pair[0]) == between.draft.spelled(pair[1])}
    assert len(spelled) > 40_000
    assert spelled <= found


# -- laws --------------------------------------------------------------------------------------------------------------

SEQUENCES: list[tuple[dict[str, Any], int]] = [
    ({"name": "speculative", "gamma": 2}, 3),
    ({"name": "speculative", "gamma": 2, "verify": "rejection"}, 3),
    ({"name": "speculative", "gamma": 3, "vocabulary": "text"}, 4),
    ({"name": "speculative", "gamma": 3, "vocabulary": "text", "verify": "rejection"}, 4),
    ({"name": "speculative", "gamma": 3, "vocabulary": "text", "lookup": True}, 4),
    ({"name": "mcsd", "tree": [2, 1]}, 3),
]


@pytest.mark.some(7)
@pytest.mark.parametrize(("method", "length"), SEQUENCES, ids=str)
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=1.5, top_k=2)], ids=["plain", "warped"]
)
def test_the_law_is_that_of_plain_decoding(
    method: dict[str, Any], length: int, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables()
    engine = Engine(target, [draft], end_tokens=frozenset({0}))
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 3], method, length, params)


def test_the_law_of_beams_is_that_of_beam_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = tables(31)
    enumerated = Enumerated(monkeypatch, 4, end=ENDLESS, target=target, draft=draft)  # type: ignore[arg-type]
    options: dict[str, Any] = {"width": 1, "draft_width": 2, "gamma": 1}
    assert distance(enumerated, options, {"top_k": 2}, 2) < EXACT


def test_a_draft_that_writes_its_end_drafts_the_targets() -> None:
    """'a', 'b', then the end, in the tokens of each."""
    target = TabularModel(lambda prefix: [0, 1, 0, 0] if len(prefix) < 3 else [1, 0, 0, 0], 4)
    draft = TabularModel(lambda prefix: [0, 0, 1, 0] if len(prefix) < 3 else [1, 0, 0, 0], 4)
    engine = Engine(target, [OtherVocabulary(draft, VocabularyMap.of(TARGET, DRAFT))], end_tokens=frozenset({0}))
    found = engine.generate([1], {"name": "speculative", "gamma": 6, "vocabulary": "text"}, temperature=0)
    assert found.tokens == [1, 1, 0] and [round_.accepted for round_ in found.rounds] == [3]


# -- bits --------------------------------------------------------------------------------------------------------------

METHODS: list[dict[str, Any]] = [
    {"name": "speculative", "gamma": 4, "vocabulary": "shared"},
    {"name": "speculative", "gamma": 4, "vocabulary": "text"},
    {"name": "speculative", "lookup": True, "vocabulary": "text"},
    {"name": "specinfer", "expansion": [2, 2]},
    {"name": "speculative", "gamma": 3, "verify": "coupled"},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A target of one tokenizer, and a draft of the other."""
    place = tmp_path_factory.mktemp("pair")
    for name, words, seed in (("target", llama_like(), 1), ("draft", byte_level(), 2)):
        write(place / name, seed, vocab_size=words.get_vocab_size(), num_hidden_layers=1)
        words.save(str(place / name / "tokenizer.json"))
    return draftwood.load(place / "target", place / "draft", device="cpu")


def spelled(words: Words, tokens: Sequence[int]) -> bytes:
    """The bytes of tokens, or the name of special ones, without what only begins a text."""
    return b"".join(words.spelled(id) or words.name(id).encode() for id in tokens).removeprefix(b"<s>").strip()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every answer of a draft beside a forward over the text as the draft has it; counts of rows."""
    answer, counts = TranslatedSession.answer, []

    def beside(self: TranslatedSession, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Any:
        found = yield from answer(self, forest, nodes, hidden)
        for node, row in zip(nodes, found.logits, strict=True):
            tokens = self.own.trunk + [self.own.token[one] for one in self.own.path(self.place[node])]
            text = [*forest.trunk, *(forest.token[one] for one in forest.path(node))]
            assert spelled(self.words.draft, tokens) == spelled(self.words.target, text)
            alone = Forest.from_prompt(tokens)
            full = ours(self.model, alone, Session(self.model, self.model.new_cache(len(tokens) + 1)))  # type: ignore[arg-type]
            torch.testing.assert_close(row[self.words.target_ids], full[0][self.words.draft_ids], atol=1e-4, rtol=1e-4)
        counts.append(len(nodes))
        return found

    monkeypatch.setattr(TranslatedSession, "answer", beside)
    yield counts


@pytest.mark.some(5)
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_texts_are_those_without_drafts(method: dict[str, Any], temperature: int, engine: Engine) -> None:
    plain = {"name": "autoregressive", "verify": "coupled" if temperature else "rejection"}
    if temperature and method.get("verify") != "coupled":
        method = {**method, "verify": "coupled"}
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 24, "ignore_eos": True}
    prompts = ["the thin tin in", "é 猫", "in", "the hat<|end|> is"]
    wanted = [engine.generate(prompt, plain, **options).tokens for prompt in prompts]
    assert [engine.generate(prompt, method, **options).tokens for prompt in prompts] == wanted
    with shortage(0.1, random.Random(3), engine):
        found = engine.batch(prompts, 4, method=method, **options)
    assert [result.tokens for result in found] == wanted


@pytest.mark.parametrize("name", ["speculative", "mcsd", "dsbd", "speculative-beam-search"])
def test_the_draft_reads_the_whole_text(name: str, engine: Engine, checked: list[int]) -> None:
    method = {"name": name} | ({"tree": [2, 1]} if name == "mcsd" else {"gamma": 3})
    options: dict[str, Any] = {"method": method, "max_new_tokens": 16, "ignore_eos": True}
    for prompt in ("the thin tin in", "in é 猫"):
        engine.generate(prompt, **options, **({} if "search" in name else {"top_k": 9}))
    assert sum(checked) > 10


def test_a_draft_whose_context_is_full_stops_drafting(tmp_path: Path) -> None:
    for name, words, context in (("target", llama_like(), 128), ("draft", byte_level(), 40)):
        write(tmp_path / name, vocab_size=words.get_vocab_size(), num_hidden_layers=1, max_position_embeddings=context)
        words.save(str(tmp_path / name / "tokenizer.json"))
    engine = draftwood.load(tmp_path / "target", tmp_path / "draft", device="cpu")
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    for prompt in ("the", "the thin tin in " * 4):
        wanted = engine.generate(prompt, "autoregressive", **options).tokens
        for mode in ("shared", "text"):
            method = {"name": "speculative", "gamma": 4, "vocabulary": mode}
            assert engine.generate(prompt, method, **options).tokens == wanted


def test_the_option_is_for_other_tokenizers() -> None:
    engine = Engine(TabularModel.random(4, 1), [TabularModel.random(4, 2)])
    with pytest.raises(ConfigurationError, match="have the same; leave it out"):
        engine.generate([1], {"name": "speculative", "vocabulary": "text"})
