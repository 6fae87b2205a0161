"""Requests with beams: pieces, cancelling, limits, greedy, cache slots, and refusals."""

from itertools import islice
from typing import Any

import pytest
from test_random_requests import LetterTokenizer

import draftwood
from draftwood import ConfigurationError, Engine, TabularModel
from draftwood.corpus import documents
from draftwood.runtime.session import Session

END = frozenset({0})
TARGET = TabularModel.random(5, seed=41, order=3)
DRAFT = TabularModel.random(5, seed=42, order=2)
METHODS: dict[str, dict[str, Any]] = {
    "beam-sampling": {"name": "beam-sampling", "width": 3, "n_best": 3},
    "dsbd": {"name": "dsbd", "draft_width": 5, "gamma": 3, "threshold": 0.5, "n_best": 3},
    "dsbd distinct": {"name": "dsbd", "draft_width": 5, "gamma": 2, "width": 3, "replacement": False, "n_best": 3},
    "one cache": {"name": "dsbd", "draft_width": 5, "gamma": 2, "one_cache": True, "n_best": 1},
    "beam-search": {"name": "beam-search", "width": 3, "n_best": 3},
    "drafted search": {"name": "speculative-beam-search", "width": 3, "n_best": 3, "depth": "fixed"},
}
EACH = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def engine(end: frozenset[int] = END) -> Engine:
    return Engine(TARGET, [DRAFT], LetterTokenizer(), end)  # type: ignore[arg-type]


# -- what is said -----------------------------------------------------------------------------------------------------


@EACH
def test_pieces_add_up_and_agreed_text_comes_before_the_end(method: dict[str, Any]) -> None:
    early = 0
    for seed in range(8):
        events = list(engine(frozenset()).stream([1, 2], method=method, max_new_tokens=14, seed=seed))
        result = events[-1].result
        assert result is not None and result.text == result.beams[0].text == "".join(event.text for event in events)
        assert [token for event in events for token in event.tokens] == result.tokens == result.beams[0].tokens
        assert len(result.tokens) == 14 and result.finish_reason == "length"
        early += any(event.text for event in events[:-1])
    assert early > 3


@EACH
@pytest.mark.parametrize("rounds", [1, 3])
def test_cancelling_gives_the_best_beams_so_far(method: dict[str, Any], rounds: int) -> None:
    ended, open_ = 0, 0
    for seed in range(8):
        left = iter([False] * (rounds - 1) + [True] * 99)
        result = engine().generate([1, 2], method, max_new_tokens=40, seed=seed, cancelled=lambda it=left: next(it))  # type: ignore[misc]
        assert len(result.rounds) <= rounds
        assert result.tokens == result.beams[0].tokens and result.finish_reason == result.beams[0].finish_reason
        assert [beam.score for beam in result.beams] == sorted((beam.score for beam in result.beams), reverse=True)
        for beam in result.beams:
            assert beam.finish_reason == ("eos" if beam.tokens[-1] in END else "cancelled")
            assert beam.log_likelihood == pytest.approx(sum(beam.logprobs), abs=1e-9)
            ended, open_ = ended + (beam.tokens[-1] in END), open_ + (beam.tokens[-1] not in END)
    assert open_ > 0 and (ended > 0 or rounds == 1)


@EACH
def test_one_token_and_a_prompt_that_ends_as_outputs_do(method: dict[str, Any]) -> None:
    """An end token or stop string in the prompt ends nothing."""
    for seed in range(8):
        one = engine().generate([1, 0], method, max_new_tokens=1, seed=seed)
        assert len(one.tokens) == 1 and len(one.rounds) == 1
        assert all(len(beam.tokens) == 1 for beam in one.beams)
        more = engine().generate([3, 2, 0], method, max_new_tokens=5, seed=seed, stop="da", ignore_eos=True)
        assert len(more.tokens) == 5 or more.finish_reason == "stop"


@pytest.mark.parametrize("options", [{"warp": "joint"}, {"warp": "token"}, {"warp": "joint", "replacement": False}])
def test_temperature_zero_is_greedy(options: dict[str, Any]) -> None:
    for seed in range(10):
        target = TabularModel.random(5, seed=100 + seed)
        greedy = Engine(target, [DRAFT], end_tokens=END)
        wanted = greedy.generate([1, seed % 5], "autoregressive", {"temperature": 0}, max_new_tokens=8)
        for method in ({"name": "beam-sampling"}, {"name": "dsbd"}, {"name": "dsbd", "width": 2, "gamma": 2}):
            found = greedy.generate([1, seed % 5], {**method, **options}, {"temperature": 0}, max_new_tokens=8)
            assert found.tokens == wanted.tokens
            assert len(found.beams) == 1


def test_ranking_is_by_the_penalised_score() -> None:
    """The same run, ranked by perplexity and by likelihood."""
    for seed in range(8):
        options: dict[str, Any] = {"name": "dsbd", "draft_width": 4, "width": 4, "n_best": 4, "replacement": False}
        by = {
            penalty: engine()
            .generate([2, 1], {**options, "length_penalty": penalty}, max_new_tokens=6, seed=seed)
            .beams
            for penalty in (0.0, 1.0)
        }
        assert sorted(beam.tokens for beam in by[0.0]) == sorted(beam.tokens for beam in by[1.0])
        assert [beam.log_likelihood for beam in by[0.0]] == sorted((b.log_likelihood for b in by[0.0]), reverse=True)
        assert [beam.perplexity for beam in by[1.0]] == sorted(beam.perplexity for beam in by[1.0])


class SpacedTokenizer(LetterTokenizer):
    """Words with a space in front, which a text does not begin with, as SentencePiece has them."""

    def step(self, token: int) -> str:
        return f" w{token}"

    def decode(self, tokens: list[int]) -> str:
        return super().decode(tokens).removeprefix(" ")


@EACH
def test_a_stop_string_that_begins_with_a_space(method: dict[str, Any]) -> None:
    """It may be the first thing said; hypotheses end where the text does, then as later."""
    for seed in range(10):
        spaced = Engine(TARGET, [DRAFT], SpacedTokenizer())  # type: ignore[arg-type]
        result = spaced.generate([1, 2], method, max_new_tokens=8, seed=seed, stop=" w4")
        assert result.tokens == result.beams[0].tokens
        for beam in result.beams:
            assert 4 not in beam.tokens[:-1]
            assert beam.finish_reason == ("stop" if beam.tokens[-1] == 4 else "length")
            assert beam.text == "".join(f" w{token}" for token in beam.tokens if token != 4)


# -- the cache --------------------------------------------------------------------------------------------------------


def test_beams_share_the_cache() -> None:
    """Fewer slots than a row for each beam has; and one_cache holds hardly more than one sequence."""
    shipped = draftwood.load()
    text = " ".join(item.prompt for item in islice(documents("stories", "held-out", seed=9), 15))
    prompt = shipped.tokens(text)[:300]
    options: dict[str, Any] = {"sampling": {"top_k": 10, "top_p": 0.8}, "max_new_tokens": 24, "ignore_eos": True}
    one = shipped.generate(prompt, "autoregressive", **options).metrics.peak_slots
    assert one == len(prompt) + 23
    dsbd = {"name": "dsbd", "draft_width": 6, "gamma": 3, "threshold": 0.7}
    assert shipped.generate(prompt, {**dsbd, "one_cache": True}, **options).metrics.peak_slots <= 1.1 * one
    assert shipped.generate(prompt, {**dsbd, "width": 4}, **options).metrics.peak_slots < 1.5 * one
    plain = {**options, "sampling": {}}
    assert shipped.generate(prompt, {"name": "beam-search", "width": 4}, **plain).metrics.peak_slots < 1.5 * one


@pytest.mark.parametrize("method", ["dsbd", "speculative-beam-search"])
def test_no_slot_is_lost_over_200_rounds_with_a_finished_beam(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round the target holds the trunk, what live beams descend from and known answers, nothing else."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        return [0.3, 0.4, 0.3] if len(prefix) < 3 else [0.0, 0.9, 0.1]

    options: dict[str, Any] = {"width": 3, "draft_width": 3, "gamma": 1, "n_best": 3}
    options |= {"replacement": False} if method == "dsbd" else {"length_penalty": 4.0, "early_stopping": "never"}
    commit = Session.commit
    seen = []

    def spy(session: Session, trunk: Any, kept: Any, forest: Any) -> None:
        commit(session, trunk, kept, forest)
        paths = {node for root in forest.live for node in forest.path(root)} | forest.known.keys()
        assert session._node_slot.keys() <= paths
        assert session.live_slots == session.cached + len(session._node_slot)
        used = [*session._trunk_slot[: session.cached], *session._node_slot.values()]
        assert len(set(used)) == len(used) and max(used) < session.span
        if session.role == "target":
            seen.append(bool(forest.finished))

    monkeypatch.setattr(Session, "commit", spy)
    target, draft = TabularModel(law, 3), TabularModel.random(3, seed=8, order=1)
    result = Engine(target, [draft], end_tokens=END).generate([1, 2], {"name": method, **options}, max_new_tokens=260)
    assert len(seen) == len(result.rounds) >= 130 and sum(seen) > 120
    assert result.metrics.peak_slots < 3 * (260 + 2)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sampling", "says"),
    [
        (
            {"name": "dsbd", "draft_width": 2, "min_width": 3},
            {},
            "draft_width is 2, but must not be below min_width, 3",
        ),
        ({"name": "dsbd", "draft_width": 2, "width": 3}, {}, "draft_width is 2, but must not be below width, 3"),
        ({"name": "dsbd", "threshold": 1.5}, {}, "threshold"),
        ({"name": "dsbd", "threshold": -0.1}, {}, "threshold"),
        ({"name": "dsbd", "width": 0}, {}, "width"),
        ({"name": "beam-sampling", "width": 0}, {}, "width"),
        ({"name": "beam-search", "width": 0}, {}, "width"),
        ({"name": "dsbd", "draft_width": 3, "n_best": 4}, {}, "n_best is 4, but there are at most 3 beams"),
        ({"name": "dsbd", "width": 2, "n_best": 3}, {}, "n_best is 3, but there are at most 2 beams"),
        ({"name": "beam-search", "width": 2, "n_best": 3}, {}, "n_best is 3, but there are at most 2 beams"),
        ({"name": "dsbd", "drafter": "heads"}, {}, "option 'drafter' is 'heads'"),
        ({"name": "speculative-beam-search", "width": 4, "draft_width": 3}, {}, "draft_width is 3"),
        ({"name": "beam-search"}, {"top_k": 5}, "beam-search draws nothing"),
        ({"name": "speculative-beam-search"}, {"temperature": 0.7}, "draws nothing"),
        ({"name": "beam-search", "early_stopping": "sometimes"}, {}, "early_stopping"),
        ({"name": "beam-search", "length_penalty": float("nan")}, {}, "length_penalty"),
        ({"name": "dsbd", "root_weights": "both"}, {}, "root_weights"),
        ({"name": "dsbd", "widht": 3}, {}, "did you mean"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_in_one_sentence(method: dict[str, Any], sampling: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        engine().generate([1, 2], method, sampling, max_new_tokens=2)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["dsbd", "speculative-beam-search"])
def test_drafts_need_a_draft_model(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"method {name} needs a draft model"):
        Engine(TARGET).generate([1, 2], name, max_new_tokens=2)
