"""Lookup: the automaton beside searches of the whole text, what is proposed and how sure it is, shared answers."""

import random
from pathlib import Path
from typing import Any

import pytest

from draftwood import ConfigurationError, Engine, Method, SamplingParams, TabularModel, load
from draftwood.core.forest import TRUNK, Forest
from draftwood.depth import Auto, Fixed, Load
from draftwood.depth.acceptance import PRIOR_TRIALS
from draftwood.draft import EarlierAnswers, ModelDrafter, Proposer, SuffixLookup
from draftwood.draft.suffix import ESCAPE, FAINT, Match, SuffixAutomaton
from draftwood.sampling.distributions import Streams

PROPOSE = Proposer(SamplingParams(), Streams(0), 100)


def automaton(tokens: list[int]) -> SuffixAutomaton:
    texts = SuffixAutomaton()
    for token in tokens:
        texts.append(token)
    return texts


def state_of(texts: SuffixAutomaton, tokens: list[int]) -> int:
    state = 0
    for token in tokens:
        state = texts.following[state][token]
    return state


def longest(text: list[int], wanted: list[int], before: int = 0) -> int:
    """Length of the longest suffix of `wanted` that ends in `text`, at least `before` tokens from its end."""
    ends = range(len(text) - before + 1)
    fits = [n for n in range(len(wanted) + 1) if any(wanted[len(wanted) - n :] == text[i - n : i] for i in ends)]
    return max(n for n in fits if not n or n <= len(text) - before)


@pytest.mark.parametrize("letters", [1, 2, 3, 5])
def test_the_automaton_is_that_of_all_substrings(letters: int) -> None:
    rng = random.Random(letters)
    for _ in range(40):
        text = [rng.randrange(letters) for _ in range(rng.randrange(1, 25))]
        texts = automaton(text)
        assert texts.match.length == longest(text, text, before=1) and len(texts.length) <= 2 * len(text) + 1
        for i in range(len(text)):
            for j in range(i + 1, len(text) + 1):
                state = state_of(texts, text[i:j])
                assert texts.length[texts.shorter[state]] < j - i <= texts.length[state]


def test_matches_follow_a_text_in_an_automaton_that_grows() -> None:
    rng = random.Random(0)
    for _ in range(60):
        text, other = [rng.randrange(3) for _ in range(12)], []
        texts = automaton(text)
        match = Match(texts)
        for step in range(15):
            match.settle()
            other.append(rng.randrange(3))
            match.step(other[-1])
            assert match.state == state_of(texts, other[len(other) - match.length :])
            assert step > 4 or match.length == longest(text, other)
            if step % 5 == 4:
                text.append(rng.randrange(3))
                texts.append(text[-1])


def test_a_guess_is_the_token_that_followed_most_often() -> None:
    """n of N times behind a match of some length: the chance n / (N + ESCAPE / length); of equals the latest."""
    assert automaton([7, 1, 8, 7, 2, 9, 7]).match.guess(1) == (1 / (2 + ESCAPE), 2)
    often = automaton([7, 1, 9, 7, 1, 8, 7, 2, 6, 7])
    assert often.match.length == 1 and often.match.guess(1) == (2 / (3 + ESCAPE), 1)
    longer = automaton([5, 6, 7, 1, 7, 2, 7, 2, 5, 6, 7])
    assert longer.match.length == 3 and longer.match.guess(1) == (1 / (1 + ESCAPE / 3), 1)
    assert longer.match.guess(4) == automaton([1, 2, 3]).match.guess(1) == (0.0, -1)


def test_a_lookup_knows_how_often_such_guesses_were_right() -> None:
    """A match of one token says 1 / (1 + ESCAPE) each time; here it never goes on as it did, there it always does."""

    def first(text: list[int]) -> float:
        ((_, chance), *_) = SuffixLookup().continuation(Forest.from_prompt(text), 1)
        return chance

    alone = 1 / (1 + ESCAPE)
    never = [token for i in range(8) for token in (i, 100 + i, i, 200 + i)]
    always = [token for i in range(8) for token in (i, 100 + i, 50 + i, i, 100 + i)]
    assert first([*never, 99, 98, 99]) == pytest.approx(PRIOR_TRIALS * alone / (8 + PRIOR_TRIALS))
    assert first([*always, 99, 98, 97, 99]) == pytest.approx((8 + PRIOR_TRIALS * alone) / (8 + PRIOR_TRIALS))
    assert first([99, 98, 99]) == alone


def drafts(
    tokens: list[int], least: int = 1, most: int = 4, end: frozenset[int] = frozenset(), depth: int = 9
) -> list[int]:
    """The drafted tokens; checks that they are a chain of point masses."""
    forest = Forest.from_prompt(tokens)
    forest.end = end
    drafter = ModelDrafter((), lookup=SuffixLookup(least))
    assert list(drafter.draft(forest, Fixed(depth), most, PROPOSE)) == []
    assert forest.parent == [TRUNK, *range(len(forest) - 1)]
    assert all(made.q is None for proposals in forest.proposals.values() for made in proposals)
    return forest.token[1:]


def test_what_followed_is_proposed() -> None:
    assert drafts([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]
    assert drafts([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], most=2) == [4, 9]  # the latest of two
    assert drafts([1, 2, 3, 7, 8, 2, 4, 9, 1, 2], most=2) == [3, 7]  # the longest match before the latest
    assert drafts([1, 2, 3, 4]) == drafts([5]) == []


def test_a_copy_may_run_into_itself() -> None:
    assert drafts([7, 7], most=3) == [7, 7, 7]
    assert drafts([1, 2, 1, 2, 1]) == [2, 1, 2, 1]


def test_where_drafting_ends() -> None:
    text = [1, 2, 3, 4, 5, 6, 1]
    assert drafts(text, depth=3) == drafts(text, most=3) == [2, 3, 4]
    assert drafts(text, most=0) == drafts(text, depth=0) == drafts(text, least=2) == []
    assert drafts(text, most=9, end=frozenset({4})) == [2, 3, 4]  # nothing after an end token
    unlike = [token for i in range(10) for token in (0, i + 1)]
    assert drafts([*unlike, 0], most=40) == [10, 0] and FAINT < 1 / (10 + ESCAPE)  # a match that says little


def test_one_lookup_over_a_growing_text_is_a_new_one_over_it_all() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(40):
        text, growing = [rng.randrange(3) for _ in range(rng.randrange(1, 12))], SuffixLookup()
        for _ in range(6):
            once = SuffixLookup().continuation(Forest.from_prompt(text), 8)
            assert growing.continuation(Forest.from_prompt(text), 8) == once
            found += bool(once)
            text += [rng.randrange(3) for _ in range(rng.randrange(1, 5))]
    assert found > 50


def test_auto_drafts_long_matches_further() -> None:
    """A row costs a twentieth of a forward: a match of one token is worth less than one of twenty."""
    load = Load(draft=lambda rows: 0.0, verify=lambda rows: 1 + rows / 20)

    def layers(matched: int) -> int:
        same = [*range(matched)]
        forest = Forest.from_prompt([*same, *range(30, 62), *same])
        depth = Auto(32, lookup=True)
        depth.start(Streams(0), load)
        assert list(ModelDrafter((), lookup=SuffixLookup()).draft(forest, depth, 99, PROPOSE)) == []
        return len(forest) - 1

    assert 0 < layers(1) < layers(4) < layers(20)


# -- earlier answers -------------------------------------------------------------------------------------------------


def test_earlier_answers_are_found_and_old_ones_go() -> None:
    earlier = EarlierAnswers(most=20)
    earlier.add([1, 2, 3, 4])
    assert SuffixLookup().continuation(Forest.from_prompt([9, 2]), 3) == []

    def found(*prompt: int) -> list[int]:
        lookup = SuffixLookup(shared=True)
        lookup.share(earlier)
        return [token for token, _ in lookup.continuation(Forest.from_prompt([*prompt]), 9)]

    assert found(9, 2) == [3, 4] and found(9) == []
    earlier.add([2, 5])
    assert found(2) == [5] and found(1, 2) == [3, 4]  # nothing behind the end of an answer
    for i in range(50):
        earlier.add([100 + i, 200 + i])
    assert found(2) == [] and found(149) == [249]
    assert sum(text.size for text in earlier.texts) <= 2 * 20
    earlier.add(list(range(300, 400)))
    assert found(389)[:2] == [390, 391] and found(310) == [] and sum(text.size for text in earlier.texts) <= 2 * 21


def test_answers_are_shared_among_requests_that_ask_for_it_only() -> None:
    """Under a seed the text is that of plain decoding whatever was answered before; the rounds are fewer."""
    engine = Engine(TabularModel.random(40, seed=1, order=2))
    plain = engine.generate([1, 2], {"name": "autoregressive", "verify": "coupled"}, max_new_tokens=30, seed=3)

    def asked(**options: bool) -> tuple[list[int], int]:
        found = engine.generate([1, 2], {"name": "lookup", "verify": "coupled", **options}, max_new_tokens=30, seed=3)
        return found.tokens, found.metrics.rounds

    alone = asked()
    assert asked() == alone and asked(shared=True) == alone  # the first that shares has nobody to share with
    text, rounds = asked(shared=True)
    assert text == alone[0] == plain.tokens and rounds < 0.6 * alone[1]
    assert asked() == alone
    engine.forget_answers()
    assert asked(shared=True) == alone


# -- a corpus ----------------------------------------------------------------------------------------------------------


def test_a_corpus_is_searched(tmp_path: Path) -> None:
    """Answers in a file: the same text in fewer rounds, also when answers are forgotten."""
    engine, file = Engine(TabularModel.random(40, seed=1, order=2)), tmp_path / "log.txt"
    engine.builder.earlier_answers.encode = lambda text: list(map(int, text.split()))
    options: dict[str, Any] = {"max_new_tokens": 30, "seed": 3}
    plain = engine.generate([1, 2], {"name": "autoregressive", "verify": "coupled"}, **options)
    alone = engine.generate([1, 2], {"name": "lookup", "verify": "coupled"}, **options)
    file.write_text("7 1 2 " + " ".join(map(str, plain.tokens)), "utf-8")
    method = {"name": "lookup", "corpus": str(file), "verify": "coupled"}
    for _ in range(2):
        found = engine.generate([1, 2], method, **options)
        assert found.tokens == plain.tokens and len(found.rounds) < 0.6 * len(alone.rounds)
        engine.forget_answers()
    unlike = Method.parse({"name": "lookup", "corpus": str(file)})
    assert unlike.files == [str(file)] and unlike.verifier().name == "rejection"
    assert len(engine.generate([1, 2], {"name": "lookup", "verify": "coupled"}, **options).rounds) == len(alone.rounds)


def test_corpora_that_cannot_be_searched(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, file = load(target), tmp_path / "log.txt"
    file.write_text("word " * 50, "utf-8")
    method = {"name": "lookup", "corpus": str(file)}
    monkeypatch.setattr("draftwood.draft.suffix.MOST_OF_CORPUS", 20)
    with pytest.raises(ConfigurationError, match="tokens, but at most 20 are searched; cut it"):
        engine.generate("ab", method=method)
    with pytest.raises(ConfigurationError, match="no tokenizer, so it cannot read a corpus"):
        Engine(TabularModel.random(5, seed=1)).generate([1, 2], method)
    with pytest.raises(ConfigurationError, match="cannot be read; name a text file"):
        engine.generate("ab", method={"name": "lookup", "corpus": str(tmp_path / "nothing")})
    with pytest.raises(ConfigurationError, match="leave out shared, corpus and min_ngram"):
        Method.parse({**method, "drafts": "drawn"})
    with pytest.raises(ConfigurationError, match="lookup with drafts=copied draws none"):
        Method.parse({"name": "lookup", "verify": "traversal"})
