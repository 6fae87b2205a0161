"""The memory of what a target said: mixtures by hand, what it drafts, and the law of beams drawn from it."""

import math
from typing import Any

import pytest
import torch
from small_decoder import decoder
from test_beams_end_to_end import END
from test_beams_exact import ENDLESS, EXACT, Enumerated, distance

from draftwood import Engine, TabularModel
from draftwood.core.forest import Forest
from draftwood.core.row_tops import LogitsRow
from draftwood.draft.base import Proposer
from draftwood.draft.beam import _Rows
from draftwood.draft.row_memory import LATEST, LONGEST, Mixture, RowMemory
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.rows import Leading, leading


def said(prompt: list[int], *rows: list[float]) -> tuple[Forest, Distributions]:
    """A forest whose fresh nodes are the prompt's last token and a chain of 1s below it, and what the target says."""
    forest = Forest.from_prompt(prompt)
    node = forest.roots[0]
    for _ in rows[1:]:
        (node,) = forest.propose(node, [1], None)
    return forest, Distributions(forest, torch.tensor(rows).log(), SamplingParams())


def test_longer_contexts_come_first() -> None:
    """By hand: after 2 3 the target said 0.75, 0.25; after 3 once more, behind another token, 0.5, 0.5."""
    memory = RowMemory()
    for prompt, row in (([2, 3], [0.75, 0.25]), ([0, 3], [0.5, 0.5])):
        memory.learn(said(prompt, row)[1])
    mixture = memory.after([2, 3])
    # one distribution after two tokens: share 1 / (1 + 1/2), rest 1/3; two after one: rest / (2 + 1) each, rest 1/9
    assert mixture.mass == pytest.approx({0: 2 / 3 * 0.75 + 1.25 / 9, 1: 2 / 3 * 0.25 + 0.75 / 9})
    assert mixture.rest == pytest.approx(1 / 9)
    assert math.fsum(mixture.mass.values()) + mixture.rest == pytest.approx(1)
    assert memory.after([3]).rest == pytest.approx(1 / 3) and not memory.after([7]).mass
    assert memory.after([2, 3], 2).rest == pytest.approx(1 / 3)


def test_the_prompt_tells_its_next_tokens_once() -> None:
    memory, (forest, _) = RowMemory(), said([4, 5, 6, 4, 5], [1.0])
    memory.read(forest)
    memory.read(forest)
    assert memory.after([4, 5]).mass == pytest.approx({6: 2 / 3 + 1 / 3 * 1 / 2})
    assert not memory.after([6, 5]).mass.keys() - {6}


def test_the_latest_distributions_are_kept() -> None:
    memory = RowMemory()
    for number in range(LATEST + 3):
        memory.learn(said([9, 8], [1.0 if token == number else 0.0 for token in range(10)])[1])
    assert set(memory.after([8]).mass) == set(range(3, LATEST + 3))
    assert all(1 <= len(context) <= LONGEST for context in memory._rows)


def test_the_oldest_contexts_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.draft.row_memory.MOST_CONTEXTS", 6)
    memory = RowMemory()
    for number in range(8):
        memory.learn(said([number, 100 + number], [0.5, 0.5])[1])
    assert len(memory._rows) == 6 and memory.after([107]).mass and not memory.after([100]).mass


def test_a_mixture_is_a_distribution_wherever_it_is_asked() -> None:
    mixture, like = Mixture({2: 0.5, 0: 0.2}, 0.3), torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(mixture.dense(None, like).exp(), torch.tensor([0.275, 0.075, 0.575, 0.075]).double())
    other = torch.tensor([0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(mixture.dense(other, like), mixture.dense(None, like))
    row = leading([LogitsRow(other.log_softmax(-1), 0.0)], 2)[0]
    likeliest = mixture.likeliest(row, 3)
    assert likeliest.tokens == [2, 0, 1]
    assert [math.exp(one) for one in likeliest.log_probs] == pytest.approx([0.5, 0.275, 0.075])
    assert Mixture({}, 1.0).likeliest(None, 3) == Leading([], [])


def test_a_draft_is_sure_of_what_is_known_and_unsure_of_what_was_never_said() -> None:
    forest, target = said([2, 3], [0.75, 0.25])
    memory = RowMemory()
    memory.learn(target)
    propose = Proposer(SamplingParams(), Streams(0), 2)
    root = forest.roots[0]

    def sureness(least: float = 0.0) -> float:
        return _Rows(memory, forest, [root], [], {}, propose).sureness([root], {root: -1.0}, least)

    told, nats = memory.after([2, 3]), 0.0
    for prob in told.mass.values():
        nats -= prob * math.log(prob)
    assert sureness() == pytest.approx(math.exp(-nats + told.rest * math.log(told.rest / 150)))
    forest.known[root] = LogitsRow(torch.tensor([0.5, 0.5]).log(), None)
    assert sureness() == 1.0
    del forest.known[root]
    memory._rows.clear()
    assert sureness() == pytest.approx(1 / 150) and sureness(0.5) < 0.5


PROMPTED: dict[str, Any] = {"width": 2, "draft_width": 2, "gamma": 2, "drafter": "lookup"}


@pytest.mark.parametrize(
    ("options", "sampling", "vocab", "tokens", "end"),
    [
        ({}, {}, 2, 3, END),
        ({"width": 1}, {"top_p": 0.8}, 3, 3, END),
        ({"replacement": False}, {}, 2, 3, ENDLESS),
        ({"warp": "token"}, {"temperature": 0.7}, 2, 3, END),
        ({"drafter": "model", "memory": True}, {}, 2, 2, END),
        pytest.param({"drafter": "model", "memory": True}, {}, 2, 3, END, marks=pytest.mark.slow),
        ({"drafter": "model", "memory": True, "width": 1}, {"presence_penalty": 0.5}, 3, 3, END),
    ],
    ids=str,
)
def test_beams_drawn_from_memory_have_the_law_of_beam_sampling(
    options: dict[str, Any],
    sampling: dict[str, Any],
    vocab: int,
    tokens: int,
    end: frozenset[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every draw and coin of all rounds is enumerated; and drafts are drawn, of which some stand."""
    enumerated = Enumerated(monkeypatch, vocab, end=end, target=TabularModel.random(vocab, seed=31))
    rounds: list[Any] = []
    generate = enumerated.engine.generate

    def noted(*args: Any, **named: Any) -> Any:
        result = generate(*args, **named)
        rounds.extend(result.rounds)
        return result

    monkeypatch.setattr(enumerated.engine, "generate", noted)
    assert distance(enumerated, {**PROMPTED, **options}, sampling, tokens) < EXACT
    assert any(round_.drafted for round_ in rounds) and any(round_.depth_accepted for round_ in rounds)


def test_memory_alone_makes_layers_stand() -> None:
    """A text that comes again and again, on a target that nothing else drafts for."""
    engine = Engine(decoder(3), [])
    method = {"name": "speculative-beam-search", "drafter": "lookup", "width": 3, "n_best": 3, "depth": "fixed"}
    prompt = [1 + token % 5 for token in range(30)]
    found = engine.generate(prompt, method, max_new_tokens=40)
    plain = engine.generate(prompt, {"name": "beam-search", "width": 3, "n_best": 3}, max_new_tokens=40)
    assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in plain.beams]
    assert found.metrics.rounds < 0.9 * plain.metrics.rounds


@pytest.mark.parametrize("name", ["speculative-beam-search", "dsbd"])
@pytest.mark.parametrize("drafter", ["lookup", "model"])
@pytest.mark.parametrize("depth", ["confidence:1.0", "entropy:0.0"])
def test_controllers_read_what_was_drafted_from(name: str, drafter: str, depth: str) -> None:
    """One that is never sure enough stops after a layer, one that always is goes on to the last."""
    engine = Engine(TabularModel.random(5, seed=1, order=4), [TabularModel.random(5, seed=1, order=2)])
    method = {"name": name, "drafter": drafter, "width": 2, "draft_width": 3, "gamma": 3, "depth": depth}
    prompt = [1 + token % 4 for token in range(20)]
    sure = {**method, "depth": {"confidence:1.0": "confidence:0.0", "entropy:0.0": "entropy:100"}[depth]}
    deepest = [
        max(round_.attempted for round_ in engine.generate(prompt, one, max_new_tokens=16, seed=3).rounds)
        for one in (method, sure)
    ]
    assert deepest[0] == 1 and deepest[1] > 1
