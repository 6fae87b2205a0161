"""The search for skip sets: its formula by enumeration, its judgement by runs, and whether it finds what is useless."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from covering import covering
from small_decoder import VOCAB, decoder

from draftwood import ConfigurationError, Engine, SamplingParams
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import per_layer
from draftwood.models.heads.skip import Skipped, SkippedDecoder, every_other
from draftwood.tune import skip_sets as skipping
from draftwood.tune.shapes import Cost
from draftwood.tune.skip_sets import SkipPrediction, SublayerCosts, WrittenTexts, predict, search, tokens_per_round

COSTS = SublayerCosts(Cost({1: 1.0, 4: 1.1}), attention=0.11, mlp=0.12, rest=0.08)
PROMPTS = [[int(t) for t in torch.randint(VOCAB, (6,), generator=torch.Generator().manual_seed(i))] for i in range(6)]


def partly_idle() -> Decoder:
    """A target of which the attention of layers 0 and 3 and the MLP of layers 1 and 3 add nothing."""
    model = decoder(2, torch.float64)
    with torch.no_grad():
        for layer in (0, 3):
            model.layers[layer].mixer.o.weight.zero_()  # type: ignore[union-attr, operator]
        for layer in (1, 3):
            model.layers[layer].feed.down.weight.zero_()  # type: ignore[union-attr, operator]
    return model


def windowed() -> Decoder:
    """A target of which every other layer sees three positions only."""
    plain = partly_idle()
    model = Decoder(replace(plain.config, layers=per_layer(window=(0, 3, 0, 3)))).double().eval()
    model.load_state_dict(plain.state_dict())
    return model


def evidence(model: Decoder, temperature: float = 1.0, new: int = 16) -> WrittenTexts:
    return WrittenTexts.written(Engine(model), PROMPTS, SamplingParams(temperature=temperature), new, seed=1)


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_expected_rounds_by_enumeration(gamma: int) -> None:
    """Every pattern of accepted and rejected drafts, with its probability and the rounds that it takes."""
    chances = [[0.3, 1.0, 0.5, 0.9], [0.8, 0.0]]
    expected = 0.0
    for text in chances:
        for coins in itertools.product((True, False), repeat=len(text)):
            weight = 1.0
            for coin, chance in zip(coins, text, strict=True):
                weight *= chance if coin else 1 - chance
            place = rounds = 0
            while place < len(text):
                accepted = 0
                while accepted < gamma and place + accepted < len(text) and coins[place + accepted]:
                    accepted += 1
                place += accepted + 1
                rounds += 1
            expected += weight * rounds
    got = tokens_per_round([[torch.tensor(text, dtype=torch.float64) for text in chances]] * gamma)
    assert got == pytest.approx(6 / expected, abs=1e-12)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("skipped", "gamma", "target"),
    covering([Skipped((1,), (2,)), Skipped((0, 3), (1, 3)), Skipped((), (0,))], [1, 3], [partly_idle, windowed]),
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_greedy_rounds_are_predicted_exactly(
    skipped: Skipped, gamma: int, target: Callable[[], Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In greedy decoding nothing is left to chance: which drafts self-spec accepts, and so its tokens per round."""
    monkeypatch.setattr(skipping, "GROUP_SIZE", 4)
    model = target()
    found = evidence(model, 0)
    chances = list(itertools.islice(found.chances(skipped), gamma))
    parts = {"attention": list(skipped.attention), "mlp": list(skipped.mlp)}
    method = {"name": "self-spec", **parts, "gamma": gamma, "depth": "fixed"}
    results = [Engine(model).generate(p, method, {"temperature": 0}, max_new_tokens=16) for p in PROMPTS]
    for text, (result, (tokens, prompt)) in enumerate(zip(results, found.texts, strict=True)):
        assert [*result.prompt_tokens, *result.tokens] == tokens
        for made in result.rounds[1:]:
            row = made.position - prompt
            met = [chances[depth][text][row + depth] for depth in range(min(made.drafted, made.accepted + 1))]
            assert met == [1.0] * made.accepted + [0.0] * (len(met) - made.accepted)
    assert tokens_per_round(chances) == pytest.approx(
        sum(len(r.tokens) - 1 for r in results) / sum(r.metrics.rounds - 1 for r in results)
    )


def test_a_model_that_reads_its_own_past_is_accepted_elsewhere() -> None:
    """Judged by the part's own keys and values of all tokens, as a draft model has them, a set looks different."""
    skipped = Skipped((1,), (2,))
    found = evidence(partly_idle())
    part = SkippedDecoder(found.target, skipped)
    for p, judged, (tokens, prompt) in zip(found.groups[0].p, next(found.chances(skipped)), found.texts, strict=True):
        with torch.inference_mode():
            q = part.train_forward(torch.tensor([tokens[:-1]]))[0, prompt:].float().softmax(-1)
        assert float((torch.minimum(p, q).sum(-1) - judged).abs().max()) > 0.05


def test_what_adds_nothing_is_always_accepted() -> None:
    model = partly_idle()
    found = predict(model, Skipped((0, 3), (1, 3)), evidence(model, new=17), COSTS, 6)
    assert found.acceptance == pytest.approx(1)
    assert (found.gamma, found.tau) == (3, pytest.approx(4))  # 16 later tokens in rounds of 4: nothing is left over
    assert found.cost == pytest.approx(0.08 + 2 * 0.11 + 2 * 0.12)


def test_the_search_finds_what_adds_nothing() -> None:
    model = partly_idle()
    costs = SublayerCosts(COSTS.target, attention=0.08, mlp=0.08, rest=0.36)  # hardly any other set pays
    heard: list[SkipPrediction] = []
    ranked = search(model, evidence(model), costs, 60, 6, 0, heard.append)
    usual = predict(model, every_other(4), evidence(model), costs, 6)
    best = ranked[0]
    assert best.skipped == Skipped((0, 3), (1, 3))
    assert best.speed_up > 1.3 * usual.speed_up
    assert usual.skipped in {one.skipped for one in ranked}  # it begins there
    assert [one.speed_up for one in ranked] == sorted((one.speed_up for one in ranked), reverse=True)
    assert heard[-1] == best and len(heard) <= 60
    again = search(model, evidence(model), costs, 60, 6, 0, heard.append)
    assert again == ranked


def test_measured_costs_make_sense() -> None:
    model = decoder()
    costs = SublayerCosts.measured(model, 3, context=16)
    assert costs.target.rows == [1, 2, 4]
    assert min(costs.attention, costs.mlp, costs.rest) >= 0
    assert costs.draft(4, Skipped((1, 2), (1, 2))) <= costs.draft(4, Skipped((1,), ())) <= costs.draft(4, Skipped())


def test_an_interrupted_search_keeps_what_it_has() -> None:
    model = partly_idle()

    def told(best: SkipPrediction) -> None:
        raise KeyboardInterrupt

    assert len(search(model, evidence(model), COSTS, 50, 2, 0, told)) == 1


def test_nothing_written() -> None:
    with pytest.raises(ConfigurationError, match="the target wrote nothing"):
        WrittenTexts(decoder(), [([1, 2, 3], 2)], SamplingParams())
