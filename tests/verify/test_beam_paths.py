"""Traversal for beams (docs/exactness.md): acceptance may be carried from layer to layer where no draw is left over.

Written out on tables; DSBD itself decides layer by layer. `carry` says where acceptance is carried down instead of
being decided: nowhere is Algorithm 1; at the tail, where no draw is left over for a beam, is exact; everywhere, which
goes back to draws that were looked at already, is biased.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import networkx
import pytest
from enumeration import ScriptedChoices, law_of

Beam: TypeAlias = tuple[int, ...]
Joint: TypeAlias = dict[Beam, float]
Model: TypeAlias = Callable[[Beam], list[float]]
Layers: TypeAlias = list[tuple[Beam, ...]]
Carry: TypeAlias = Literal["nowhere", "tail", "everywhere"]
VOCAB, LAYERS = 2, 2


def model(seed: int) -> Model:
    def law(beam: Beam) -> list[float]:
        noise = random.Random(f"{seed}:{beam}")
        weights = [noise.expovariate(1) ** 1.5 for _ in range(VOCAB)]
        return [weight / sum(weights) for weight in weights]

    return law


def scaled(weights: Joint) -> Joint:
    total = sum(weights.values())
    return {beam: weight / total for beam, weight in weights.items()}


def joint(law: Model, beams: Iterable[Beam]) -> Joint:
    """DSBD Eq. 1 over distinct beams."""

    def weight(beam: Beam) -> float:
        return weight(beam[:-1]) * law(beam[:-1])[beam[-1]] if beam else 1.0

    return scaled({(*beam, x): weight(beam) * law(beam)[x] for beam in sorted(set(beams)) for x in range(VOCAB)})


def draw(choices: ScriptedChoices, law: Joint) -> Beam:
    return list(law)[choices.choose(list(law.values()))]


def completed(choices: ScriptedChoices, p: Model, layers: Layers, begun: tuple[Beam, ...], width: int) -> Layers:
    """So many layers in all, the one that was begun first; each is `width` draws given the one before."""
    while len(layers) < LAYERS:
        law = joint(p, layers[-1] if layers else [()])
        layers = [*layers, (*begun, *(draw(choices, law) for _ in range(width - len(begun))))]
        begun = ()
    return layers


def round_of(
    choices: ScriptedChoices, p: Model, q: Model, width: int, draws: int, carry: Carry
) -> tuple[int, tuple[tuple[Beam, ...], ...]]:
    """Accepted layers of one round, and all layers with what plain beam sampling adds."""
    drafted: list[list[Beam]] = []
    for _ in range(LAYERS):
        law = joint(q, drafted[-1] if drafted else [()])
        drafted.append([draw(choices, law) for _ in range(draws)])

    def visit(
        layers: Layers, got: tuple[Beam, ...], start: int, reach: float
    ) -> tuple[Layers, tuple[Beam, ...]] | None:
        if len(got) == width:
            return visit([*layers, got], (), 0, reach)
        if len(layers) == LAYERS:
            return (layers, ()) if choices.coin(reach) else None
        parents = layers[-1] if layers else ((),)
        rest, law = joint(p, parents), joint(q, parents)
        alive = [beam for beam in drafted[len(layers)] if beam[:-1] in parents]
        for place, beam in enumerate(alive[start:], start):
            chance = min(1.0, reach * rest[beam] / law[beam])
            spare = len(alive) - place > width - len(got)
            carried = carry == "everywhere" or (carry == "tail" and not spare)
            if carried and chance:
                if (found := visit(layers, (*got, beam), place + 1, chance)) is not None:
                    return found
            elif chance and choices.coin(chance):
                return visit(layers, (*got, beam), place + 1, 1.0)
            left = {x: max(0.0, reach * p_x - law[x]) for x, p_x in rest.items()}
            mass = sum(left.values())
            rest = scaled(left) if mass else rest
            reach = mass / (mass + (1 - reach)) if reach < 1 else 1.0
            if not reach or (carried and carry == "tail"):  # the draws after it were looked at
                break
        return (layers, (*got, draw(choices, rest))) if choices.coin(reach) else None

    found = visit([], (), 0, 1.0)
    assert found is not None
    return len(found[0]), tuple(completed(choices, p, *found, width))


def most_layers(seed: int, width: int, draws: int) -> float:
    """Mean number of layers that any rule could accept: optimal transport between all drafts and all outcomes.

    An outcome's layer is accepted if all before it are and its beams are among the draws, each of which is used once.
    Such a rule would have to know the target's laws after beams that nobody drafted.
    """
    p, q = model(seed), model(100 + seed)

    def some(choices: ScriptedChoices, law: Model, count: int) -> Layers:
        layers: Layers = []
        for _ in range(LAYERS):
            following = joint(law, layers[-1] if layers else [()])
            layers.append(tuple(sorted(draw(choices, following) for _ in range(count))))
        return layers

    graph = networkx.DiGraph()
    unit = 10**9
    for side, law, count in ((-1, q, draws), (1, p, width)):
        found = law_of(lambda choices, law=law, count=count: tuple(some(choices, law, count)))  # type: ignore[misc]
        masses = {layers: round(chance * unit) for layers, chance in found.items()}
        masses[max(masses, key=masses.__getitem__)] += unit - sum(masses.values())
        for layers, mass in masses.items():
            graph.add_node((side, layers), demand=side * mass)
    drafts, outcomes = ([node for node in graph if node[0] == side] for side in (-1, 1))
    for one, other in itertools.product(drafts, outcomes):
        accepted = [Counter(wanted) <= Counter(there) for there, wanted in zip(one[1], other[1], strict=True)]
        graph.add_edge(one, other, weight=-[*accepted, False].index(False))
    return -float(networkx.network_simplex(graph)[0]) / unit


def judged(seed: int, width: int, draws: int, carry: Carry) -> tuple[float, float]:
    """(total variation from beam sampling, mean number of accepted layers)."""
    p, q = model(seed), model(100 + seed)
    wanted = law_of(lambda choices: tuple(completed(choices, p, [], (), width)))
    law = law_of(lambda choices: round_of(choices, p, q, width, draws, carry))
    found: dict[tuple[tuple[Beam, ...], ...], float] = {}
    for (_, layers), chance in law.items():
        found[layers] = found.get(layers, 0.0) + chance
    distance = 0.5 * sum(abs(found.get(x, 0.0) - wanted.get(x, 0.0)) for x in found.keys() | wanted.keys())
    return distance, sum(count * chance for (count, _), chance in law.items())


@pytest.mark.parametrize(("width", "draws"), [(1, 1), (1, 2), (2, 2)])
def test_acceptance_that_is_carried_where_no_draw_is_spare_is_exact(width: int, draws: int) -> None:
    for seed in range(2):
        plain, carried = judged(seed, width, draws, "nowhere"), judged(seed, width, draws, "tail")
        assert plain[0] < 1e-12 and carried[0] < 1e-12
        assert plain[1] - 1e-12 < carried[1] < most_layers(seed, width, draws) + 1e-9
        if draws == width:
            assert carried[1] > plain[1] + 0.001


def test_going_back_to_draws_that_were_looked_at_is_biased() -> None:
    """Beams that share later draws: a second set of parents meets draws that the first one failed with."""
    assert max(judged(seed, 2, 3, "everywhere")[0] for seed in range(1)) > 0.001
