"""The target's distributions are computed for the nodes that somebody visits, once each."""

import pytest
import torch

import draftwood
from draftwood import Engine, TabularModel
from draftwood.core.forest import FINISHED, Forest, Verdict, advance
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.sampling import distributions
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.params import SamplingParams


def test_a_row_is_warped_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    warped: list[int] = []
    warp = distributions.warp
    monkeypatch.setattr(distributions, "warp", lambda logits, params: warped.append(1) or warp(logits, params))
    forest = Forest.from_prompt([0])
    forest.propose(0, [1, 2], None)
    target = Distributions(forest, torch.randn(3, 4), SamplingParams(temperature=0.7))
    assert not warped
    assert target.probs(1) is target.probs(1) and warped == [1]
    assert target.log_prob(1, 2) == pytest.approx(float(target.probs(1)[2].log()))


def test_verification_and_recording_warp_visited_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """45 nodes of a tree are verified; at most one row for each accepted layer and the next token is warped."""
    rows: list[int] = []
    warp = distributions.warp
    monkeypatch.setattr(distributions, "warp", lambda logits, params: rows.append(1) or warp(logits, params))
    drafts = "draftwood.draft.base.warped"  # theirs are not counted
    monkeypatch.setattr(drafts, lambda logits, params: [warp(row, params) for row in logits])
    engine = draftwood.load(TabularModel.random(6, seed=1), TabularModel.random(6, seed=2))
    method = {"name": "mcsd", "tree": [4, 2, 2, 1], "verify": "rejection"}
    result = engine.generate([1], method, {"temperature": 0.8}, 40, top_logprobs=2)
    assert sum(rows) == sum(1 + round_.depth_accepted for round_ in result.rounds)
    assert sum(round_.drafted for round_ in result.rounds) > 3 * sum(rows)


def test_advancing_leaves_the_forest_as_it_was() -> None:
    forest = Forest.from_prompt([3, 1], end=frozenset({4}))
    forest.propose(0, [2, 0], None)
    before = (list(forest.trunk), list(forest.token), list(forest.parent), set(forest.finished), list(forest.roots))
    trunk, _, grown = advance(forest, Verdict([1], [4], ["bonus"], {}))
    assert (trunk, grown.trunk, grown.room) == ([0, 1], [3, 1, 2], 0)
    assert before == (forest.trunk, forest.token, forest.parent, forest.finished, forest.roots)


class Counting:
    """A stop check that counts how often it is asked, and sees how much."""

    reach = 3

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, tokens: object, new: int) -> bool:
        self.asked.append((len(tokens), new))  # type: ignore[arg-type]
        return tokens == [7, 8, 9]


def test_adding_a_node_asks_for_no_stop_string() -> None:
    stop = Counting()
    forest = Forest.from_prompt([1] * 5000 + [7], stop=stop)
    node = 0
    for token in (5, 7, 8, 9):
        node = forest.add(node, token)
    assert not stop.asked and node not in forest.finished
    outcome = forest.add_outcome(forest.add(forest.add(0, 7), 8), 9)
    assert outcome in forest.finished and stop.asked == [(3, 3)]
    assert forest.add_outcome(outcome, FINISHED) == outcome
    assert forest.tail(0, 2) == [1, 7] and forest.tail(1, 3) == [1, 7, 5] and forest.tail(node, 2) == [8, 9]


def test_a_run_may_want_states_and_no_logits() -> None:
    engine: Engine = draftwood.load()
    target = engine.target
    session = Session(target, target.new_cache(64))
    forest = Forest.from_prompt([5, 6, 7, 8])
    nodes = [-2, -3, -4, 0]  # the trunk and the root
    layers = (4, target.n_layers)
    with torch.inference_mode():
        (answer,) = execute([Run(session, forest, nodes, logits=False, hidden=layers)])
        x = target.train_layers(target.embed(torch.tensor([[5, 6, 7, 8]])), 0, 4)  # type: ignore[attr-defined]
        last = target.train_layers(x, 4, target.n_layers)  # type: ignore[attr-defined]
    assert answer.logits.shape == (4, 0) and set(answer.hidden) == set(layers)
    torch.testing.assert_close(answer.hidden[4], x[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(answer.hidden[12], target.normed(last)[0], atol=1e-4, rtol=1e-4)  # type: ignore[attr-defined]
