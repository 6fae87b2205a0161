"""A layer of beams is exact: its law equals the reference's to 1e-12, by enumeration; wrong variants do not."""

import math

import pytest
from beam_enumeration import Beams, Scripted, excess, layer_law, of_weights, random_joint, reference
from enumeration import Law, ScriptedChoices, law_of

from draftwood.core.records import BeamLayer, Outcome
from draftwood.errors import ConfigurationError
from draftwood.sampling.distributions import Streams
from draftwood.sampling.params import SamplingParams
from draftwood.verify import beam
from draftwood.verify.beam import bonus_width, least_perplexity, sample_layer, verify_layer
from draftwood.verify.joint import Joint, Seeded
from draftwood.verify.width import ResidualChain, WidthRule

EXACT = 1e-12
RULES = [WidthRule(fixed=1), WidthRule(fixed=2), WidthRule(threshold=0.4), WidthRule(threshold=0.7, minimum=2)]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_one_layer(rule: WidthRule, replacement: bool, seed: int) -> None:
    """Two beams, all parents accepted; W_S = 2."""
    p, q = random_joint(2, 2, seed), random_joint(2, 2, 100 + seed)
    assert excess(layer_law(p, q, 2, rule, [0, 1], replacement), p, replacement) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_pruned_parents(rule: WidthRule, replacement: bool, seed: int) -> None:
    """q over three beams, of which one or two were accepted: its draws are restricted and renormalised."""
    q = random_joint(3, 2, 200 + seed, SamplingParams(top_k=5))
    for parents in ([0, 2], [1]):
        p = random_joint(len(parents), 2, 300 + seed, labels=parents)
        assert excess(layer_law(p, q, 2, rule, parents, replacement), p, replacement) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("width", [2, 3])
def test_more_draws(width: int, replacement: bool) -> None:
    """W_S = 4 over few outcomes with zeros on either side, many duplicates and zero residuals."""
    p = of_weights({(0, 0): 0.2, (0, 1): 0.5, (1, 2): 0.3}, 3)
    for q in (
        of_weights({(0, 0): 0.6, (1, 2): 0.1, (1, 0): 0.3}, 3),
        of_weights({(0, 0): 0.2, (0, 1): 0.5, (1, 2): 0.3}, 3),
        of_weights({(0, 2): 0.3, (1, 1): 0.7}, 3),
        of_weights({(0, 1): 1.0}, 3),
    ):
        rule = WidthRule(fixed=width)
        assert excess(layer_law(p, q, 4, rule, [0, 1], replacement), p, replacement) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
def test_three_beams_of_three(replacement: bool) -> None:
    """Three input beams, V = 3, W_S = 3, dynamic width, one parent pruned."""
    params = SamplingParams(top_k=6)
    q, p = random_joint(3, 3, 11, params), random_joint(2, 3, 12, params, labels=[1, 2])
    rule = WidthRule(threshold=0.3)
    assert excess(layer_law(p, q, 3, rule, [1, 2], replacement), p, replacement) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("mode", ["joint", "token"])
def test_finished_beams(mode: str, replacement: bool) -> None:
    """A finished beam has the one outcome 'stay', under both warpings, drafted and accepted like any other."""
    finished = [False, True]
    params = SamplingParams(temperature=0.8, top_p=0.9)
    p = random_joint(2, 3, 7, params, finished, mode)
    q = random_joint(2, 3, 8, params, finished, mode)
    assert (1, -1) in p.table()
    for rule in RULES[1:3]:
        assert excess(layer_law(p, q, 3, rule, [0, 1], replacement), p, replacement) < EXACT


def two_layers(replacement: bool, rule: WidthRule, drafted: int, seed: int) -> tuple[Law[Beams], Law[Beams]]:
    """(law of layer 2's beams by drafting two layers and verifying both, by beam sampling); labels are paths."""
    vocab = 2
    root_p, root_q = random_joint(1, vocab, seed), random_joint(1, vocab, 50 + seed)

    def target(alive: list[int]) -> Joint:
        return random_joint(vocab, vocab, 20 + seed).restrict(alive)

    def finish(layer: BeamLayer, scripted: Scripted) -> Beams:
        alive = sorted(token for _, token in layer.distinct)
        return tuple(sample_layer(target(alive), rule.fixed or 1, scripted, replacement).beams)

    def speculative(choices: ScriptedChoices) -> Beams:
        scripted = Scripted(choices)
        first = root_q.draws(drafted, scripted, replacement)
        nodes = sorted({token for _, token in first})
        q = random_joint(vocab, vocab, 70 + seed).restrict(nodes)
        second = q.draws(drafted, scripted, replacement)
        layer = verify_layer(first, root_q, root_p, [0], rule, scripted, replacement)
        if not layer.stands:
            return finish(layer, scripted)
        alive = sorted(token for _, token in layer.distinct)
        return tuple(verify_layer(second, q, target(alive), alive, rule, scripted, replacement).beams)

    def plain(choices: ScriptedChoices) -> Beams:
        scripted = Scripted(choices)
        return finish(sample_layer(root_p, rule.fixed or 1, scripted, replacement), scripted)

    return law_of(speculative), law_of(plain)


def variation(a: dict[Beams, float], b: dict[Beams, float]) -> float:
    return math.fsum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b}) / 2


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("width", [1, 2])
def test_two_layers(width: int, replacement: bool) -> None:
    """Layer 2 given layer 1 (spec §9.2): the first layer's rejections prune the second's draws."""
    assert variation(*two_layers(replacement, WidthRule(fixed=width), 2, 1)) < EXACT


def test_unrestricted_q_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.2: comparing the survivors with q before it was restricted."""
    q = of_weights({(0, 0): 0.1, (0, 1): 0.3, (1, 0): 0.6}, 2)  # most draws lose their parent
    p = of_weights({(0, 0): 0.75, (0, 1): 0.25}, 2)
    assert excess(layer_law(p, q, 2, WidthRule(fixed=1), [0]), p, True) < EXACT
    monkeypatch.setattr(Joint, "restrict", lambda joint, beams: joint)
    assert excess(layer_law(p, q, 2, WidthRule(fixed=1), [0]), p, True) > 0.05


def test_q_over_p_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.1: the ratio as printed in §3.1 and Algorithm 1."""
    monkeypatch.setattr(beam, "acceptance", lambda p, q: min(1.0, q / p) if p > 0 else 1.0)
    p, q = random_joint(2, 2, 1), random_joint(2, 2, 101)
    assert excess(layer_law(p, q, 2, WidthRule(fixed=1), [0, 1]), p, True) > 0.05


def test_algorithm_as_indented_is_biased() -> None:
    """Spec §9.3: lines 21-30 inside the loop: p' shrinks after acceptances too, completion follows the first draw."""

    def literal(
        draws: list[Outcome], q: Joint, p: Joint, parents: list[int], rule: WidthRule, scripted: Scripted, _: bool
    ) -> BeamLayer:
        table = p.table()
        drawn = q.table()
        beams = [draws[0]] if scripted.coin(min(1.0, table[draws[0]] / drawn[draws[0]])) else []
        rest = ResidualChain(p.prob, q.prob).residual(1)
        if len(beams) < 2:
            beams.append(p.support.name(scripted.pick(rest)))
        while len(beams) < 2:
            beams.append(p.support.name(scripted.pick(p.prob)))
        return BeamLayer(2, beams, 0, [], False)

    p, q = random_joint(2, 2, 1), random_joint(2, 2, 101)
    assert excess(layer_law(p, q, 2, WidthRule(fixed=2), [0, 1], verify=literal), p, True) > 0.05


class Counting(WidthRule):
    """The width refused without replacement: one that grows with the number of surviving draws."""

    def width(self, chain: ResidualChain, surviving: int, drafted: int, replacement: bool) -> tuple[int, float, float]:
        return max(1, surviving), 0.0, 0.0


def test_width_from_survivors_is_biased_only_without_replacement() -> None:
    """How many draws survive tells, without replacement, which they were (spec §3)."""
    q = of_weights({(0, 0): 0.6, (0, 1): 0.1, (1, 0): 0.2, (1, 1): 0.1}, 2)
    p = of_weights({(0, 0): 0.5, (0, 1): 0.5}, 2)
    assert excess(layer_law(p, q, 2, Counting(), [0], True), p, True) < EXACT
    assert excess(layer_law(p, q, 2, Counting(), [0], False), p, False) > 0.005


def test_combinations_without_exact_rule_are_refused() -> None:
    p = q = random_joint(2, 2, 1)
    choices = Scripted(ScriptedChoices([]))
    with pytest.raises(ConfigurationError, match="survive"):
        verify_layer([(0, 0)], q, p, [0, 1], WidthRule(draws="surviving"), choices, False)
    with pytest.raises(ConfigurationError, match="distinct"):
        verify_layer([(0, 0), (0, 0)], q, p, [0, 1], WidthRule(fixed=1), choices, False)


def test_record_explains_every_draw() -> None:
    """Fates in order: accepted until W, then discarded; draws of pruned parents are orphans; chance = min(1, p'/q)."""
    q = random_joint(3, 3, 5)
    for seed in range(40):
        randomness = Seeded(Streams(seed), "accept")
        draws = q.draws(6, Seeded(Streams(seed), "draft"))
        p = random_joint(2, 3, 6, labels=[0, 1])
        layer = verify_layer(draws, q, p, [0, 1], WidthRule(fixed=2), randomness)
        assert [judged.outcome for judged in layer.judged] == draws
        assert [j.outcome for j in layer.judged if j.fate == "accepted"] == layer.beams[: layer.accepted]
        assert all((j.fate == "unreached") == (j.outcome[0] == 2) for j in layer.judged)
        assert layer.stands == (layer.accepted == 2) and len(layer.beams) == 2
        fates = [j.fate for j in layer.judged]
        assert "discarded" not in fates or layer.stands
        for j in layer.judged:
            if j.fate in ("accepted", "rejected"):
                assert j.chance == min(1.0, j.p / j.q)


def test_references_follow_p() -> None:
    p = random_joint(2, 2, 4)
    for replacement in (True, False):
        law = law_of(lambda c, r=replacement: tuple(sample_layer(p, 2, Scripted(c), r).beams))  # type: ignore[misc]
        assert variation(law, reference(p, 2, replacement)) < EXACT


def test_seeded_draws_without_replacement_follow_the_race() -> None:
    """Gumbel-top-k: frequencies of ordered pairs against successive draws."""
    p, count = of_weights({(0, 0): 0.6, (0, 1): 0.3, (1, 0): 0.1}, 2), 4000
    found: dict[Beams, float] = {}
    for seed in range(count):
        pair = tuple(p.draws(2, Seeded(Streams(seed), "draft"), False))
        found[pair] = found.get(pair, 0.0) + 1 / count
    assert variation(found, reference(p, 2, False)) < 0.03
    assert len(p.draws(9, Seeded(Streams(0), "draft"), False)) == 3


def test_bonus_width_and_one_cache() -> None:
    assert bonus_width(3, WidthRule()) == 3
    assert bonus_width(1, WidthRule(minimum=2)) == 2
    assert bonus_width(1, WidthRule(fixed=4)) == 4
    assert least_perplexity([-4.0, -3.0, -3.0], [4, 2, 4]) == 2
    assert least_perplexity([-4.0, -4.0], [2, 2]) == 0
