"""Lookup and models in one forest: who drafts where, the order of judgement, and what it is never worse than."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from enumeration import ScriptedChoices, emitted, law_of, sequences
from torch import Tensor

from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.core.forest import Forest, Proposal
from draftwood.core.records import Round
from draftwood.depth import Auto, DraftState, Fixed, Load
from draftwood.draft import ModelDrafter, Proposer, SuffixLookup
from draftwood.errors import ConfigurationError
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.sampling.distributions import Streams
from draftwood.verify import tree

VOCAB = 6


def a_round(accepted: int, drafted: int) -> Round:
    numbers = (drafted, drafted, accepted, accepted, drafted, 0.0, 1.0, 0.0, 0.0, drafted + 1.0, drafted)
    return Round(0, [], [], [], [], [], [], *numbers, drafted, [], [], [], [], [], [])


class Finds(SuffixLookup):
    """Finds the same whatever the text is."""

    def continuation(self, forest: Forest, most: int, path: Sequence[int] = ()) -> list[tuple[int, float]]:
        return [(1, 0.9), (2, 0.9), (3, 0.2), (4, 0.9)]


def drafted(
    model: TabularModel, prompt: list[int], depth: int = 6, lookup: SuffixLookup | None = None, **params: Any
) -> tuple[Forest, list[Run]]:
    """The forest of one round, and the runs that it took."""
    session = Session(model, model.new_cache(64), "draft")
    drafter = ModelDrafter([session], lookup=lookup or SuffixLookup())
    propose = Proposer(SamplingParams(**params), Streams(0), model.vocab_size)
    forest = Forest.from_prompt(prompt)
    drafting = drafter.draft(forest, Fixed(depth), depth, propose)
    runs: list[Run] = []
    try:
        runs.append(next(drafting))
        while True:
            runs.append(drafting.send(execute([runs[-1]])[0]))
    except StopIteration:
        return forest, runs


def chain(forest: Forest) -> list[int]:
    """The nodes of what lookup found."""
    points = [one.nodes[0] for proposals in forest.proposals.values() for one in proposals if one.q is None]
    return [forest.roots[0], *points]


OTHER = TabularModel(lambda prefix: [0.0] * 5 + [1.0], VOCAB)  # always says 5


def test_models_draft_alone_where_a_copy_most_likely_ends_at_once() -> None:
    """A match of one token has the chance 1/3."""
    forest, runs = drafted(OTHER, [1, 2, 3, 4, 0, 1])
    assert chain(forest) == forest.roots and len(runs) == 6 and len(forest) == 7


def test_models_go_on_where_a_copy_most_likely_ends() -> None:
    """It ends behind 0 to 4 tokens with the chances 0.1, 0.09, 0.65, 0.02 and 0.15."""
    forest, runs = drafted(OTHER, [0], 6, Finds())
    copied = chain(forest)
    assert [forest.token[node] for node in copied] == [0, 1, 2]
    assert forest.token == [0, 1, 2, 5, 5, 5, 5] and [len(run.nodes) for run in runs] == [1] * 4
    assert runs[0].nodes[0] == copied[-1]


def test_a_sure_copy_costs_no_draft_forward() -> None:
    text = [1, 2, 3, 4] * 12
    forest, runs = drafted(OTHER, text, depth=3)
    assert runs == [] and len(forest) == 4


def accepted(p: Tensor, proposals: list[tuple[Tensor | None, int, bool]], point: int) -> float:
    """The chance that a draft is accepted."""

    def experiment(choices: ScriptedChoices) -> bool:
        made = [
            Proposal(q, [point] if q is None else sequences(choices, q, count, replacement), replacement)
            for q, count, replacement in proposals
        ]
        child, _ = tree.resolve(p, made, range(len(p)), lambda p_x, q_x: choices.coin(tree.acceptance(p_x, q_x)))
        return child is not None

    return law_of(experiment).get(True, 0.0)


@pytest.mark.parametrize("count", [1, 2])
def test_the_law_is_exact_and_acceptance_no_lower_than_of_either(count: int) -> None:
    """Draws first, the point mass behind them: every random choice enumerated."""
    generator = torch.Generator().manual_seed(count)
    for trial in range(30):
        p, q = (torch.rand(4, generator=generator, dtype=torch.float64) ** 3 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        draws, point = (q, count, trial % 2 == 0), (None, 0, True)
        for order in ([draws, point], [point, draws]):
            spots = [(None, i, True) if one is point else one for i, one in enumerate(order)]
            law = emitted(p, spots, points=[[trial % 4]] * 2)
            assert torch.allclose(law, p, atol=1e-12)
        both = accepted(p, [draws, point], trial % 4)
        assert both >= accepted(p, [draws], 0) - 1e-12 and both >= float(p[trial % 4]) - 1e-12


MIXED: list[tuple[dict[str, Any], int]] = [
    ({"name": "speculative", "lookup": True}, 1),
    ({"name": "speculative", "gamma": 3, "lookup": True}, 1),
    ({"name": "specinfer", "expansion": [2, 1, 1], "lookup": True}, 2),
    ({"name": "mcsd", "tree": [2, 2, 1], "lookup": True}, 1),
    ({"name": "mcsd", "tree": [3, 1], "replacement": True, "lookup": True}, 1),
]


@pytest.mark.parametrize(("method", "count"), MIXED, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_plain_decoding(method: dict[str, Any], count: int, temperature: float) -> None:
    """Greedy and coupled: token for token, with and without what lookup adds."""
    target = TabularModel.random(VOCAB, 1, order=2, sharpness=2)
    engine = Engine(target, [TabularModel.random(VOCAB, 2 + i, order=2) for i in range(count)], end_tokens={0})  # type: ignore[arg-type]
    options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": 16}
    for seed in range(8):
        prompt = [1, 2, 3, seed % VOCAB, 1, 2]
        plain = engine.generate(prompt, {"name": "autoregressive", "verify": "coupled"}, seed=seed, **options)
        assert engine.generate(prompt, {**method, "verify": "coupled"}, seed=seed, **options).tokens == plain.tokens


def test_auto_takes_layers_of_lookup_for_what_they_cost() -> None:
    """Drafting costs as much as a target forward here: a model's layer never pays, a copy's does."""
    auto = Auto(8, lookup=True)
    auto.start(Streams(0), Load(draft=lambda rows: 1.0, verify=lambda rows: 1 + rows / 20))
    assert auto.deeper(DraftState(0, ahead=[0.9, 0.9])) and not auto.deeper(DraftState(0))


def test_auto_drops_copies_that_are_not_worth_their_rows() -> None:
    """Beside a model that is right in seven of ten, where rows cost: not a match of one token, but a long one."""
    auto = Auto(8, lookup=True)
    auto.start(Streams(0), Load(draft=lambda rows: 0.2, verify=lambda rows: 1 + rows / 10))
    assert auto.copies([0.33, 0.5, 0.6]) == 0 and auto.copies([0.9] * 8) == 8 and 0 < auto.copies([0.9] * 3 + [0.1]) < 4


def test_auto_copies_what_is_worth_more_than_a_models_drafts() -> None:
    """Rows are free: three layers of the model are worth half a token beyond their time, however faint a copy is; a
    token more until they were tried."""
    auto = Auto(8, lookup=True)
    load = Load(draft=lambda rows: 0.2, verify=lambda rows: 1.0)
    auto.start(Streams(0), load)
    assert auto.copies([0.5, 0.5, 0.5]) == 0 and auto.copies([0.9, 0.9, 0.9]) == 3
    auto.own_evidence.drafted = 50
    auto.start(Streams(0), load)
    assert auto.copies([0.3, 0.3, 0.3]) == 0 and auto.copies([0.5, 0.5, 0.5]) == 3
    dear = Auto(8, lookup=True)
    dear.start(Streams(0), Load(draft=lambda rows: 1.0, verify=lambda rows: 1.0))
    assert dear.copies([0.3, 0.3, 0.3]) == 3


def test_no_copy_stands_in_the_way_of_a_trial() -> None:
    """Once in a while models draft where they do not pay, however much lookup finds."""
    auto, load = Auto(8, lookup=True).repeatable(), Load(draft=lambda rows: 0.9, verify=lambda rows: 1.0)
    copied = []
    for _ in range(1000):
        auto.start(Streams(0), load)
        copied.append(auto.copies([0.9] * 8))
        auto.own_evidence.undrafted += 1
    assert set(copied) == {0, 8} and 0 < copied.count(0) < 10


def test_lookup_goes_on_from_one_token() -> None:
    with pytest.raises(ConfigurationError, match="lookup goes on from one token, but a round begins with several"):
        Method.parse({"name": "mcsd", "initial": 2, "lookup": True})
    assert Method.parse({"name": "speculative", "lookup": True}).as_dict()["gamma"] == 32
    assert Method.parse({"name": "speculative", "gamma": 5, "lookup": True}).as_dict()["depth"] == "fixed"
