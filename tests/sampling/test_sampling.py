"""Warping and penalties against slow references, and the traps around them."""

import math
import random

import pytest
import torch
from beam_enumeration import joint_by
from enumeration import slow_penalties, slow_warp
from pydantic import ValidationError
from torch import Tensor

from draftwood import Engine, SamplingParams, TabularModel
from draftwood.core.forest import Forest
from draftwood.sampling.distributions import warp
from draftwood.sampling.penalties import Penalties
from draftwood.verify.joint import Joint

CPU = torch.device("cpu")
OPTIONS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 500},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.8},
    {"temperature": 1.7, "top_k": 5, "top_p": 0.6, "min_p": 0.3},
    {"temperature": 1.7, "top_p": 0.9, "min_p": 0.05},
]


def reference(logits: Tensor, params: SamplingParams) -> Tensor:
    return torch.tensor([slow_warp(row, params) for row in logits.tolist()], dtype=torch.float64)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("vocab", [3, 8, 400])
def test_warp_equals_the_slow_reference(vocab: int, options: dict[str, float]) -> None:
    """Temperature, top-k, top-p on the renormalised rest, min-p, renormalise; flat and peaked rows in one call."""
    params = SamplingParams(**options)
    torch.manual_seed(vocab)
    spread = torch.tensor([0.0, 0.1, 1.0, 4.0, 30.0], dtype=torch.float64)[:, None]
    logits = torch.randn(5, vocab, dtype=torch.float64) * spread
    logits[1:, 0] = -math.inf
    if params.greedy or params.top_p < 1:  # exact ties decide by rounding of sums: tested below
        logits = logits[1:]
    torch.testing.assert_close(warp(logits, params), reference(logits, params), atol=1e-12, rtol=1e-9)


def test_the_nucleus_may_be_larger_than_128() -> None:
    """Flat rows beside peaked ones: the short cut over the 128 best tokens must not cut the nucleus."""
    params = SamplingParams(top_p=0.9)
    torch.manual_seed(0)
    flat, peaked = torch.randn(1, 500, dtype=torch.float64) * 0.05, torch.randn(1, 500, dtype=torch.float64) * 8
    probs = warp(torch.cat((flat, peaked)), params)
    assert int((probs[0] > 0).sum()) > 400 and int((probs[1] > 0).sum()) < 128
    torch.testing.assert_close(probs, reference(torch.cat((flat, peaked)), params), atol=1e-12, rtol=1e-9)


def test_truncation_keeps_ties() -> None:
    """Everything as probable as the last kept token stays, so that the result does not depend on token order."""
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64).log()
    for options in ({"top_k": 2}, {"top_p": 0.55}, {"min_p": 0.5}):
        assert warp(logits, SamplingParams(**options)).tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert warp(logits, SamplingParams(top_p=0.4 - 1e-9)).tolist() == [1, 0, 0, 0]
    assert warp(torch.zeros(5), SamplingParams(top_k=1)).tolist() == pytest.approx([0.2] * 5)


def test_top_p_works_on_what_top_k_left() -> None:
    """0.5 of the two best, renormalised, is the first alone; 0.7 needs both (0.7 of everything would need three)."""
    logits = torch.tensor([0.3, 0.25, 0.24, 0.21], dtype=torch.float64).log()
    assert warp(logits, SamplingParams(top_k=2, top_p=0.5)).tolist() == [1, 0, 0, 0]
    both = warp(logits, SamplingParams(top_k=2, top_p=0.7))
    assert both.tolist() == pytest.approx([0.3 / 0.55, 0.25 / 0.55, 0, 0])


def test_greedy_is_the_first_of_the_best() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 1.0]])
    assert warp(logits, SamplingParams(temperature=0)).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_extreme_temperatures_stay_finite() -> None:
    logits = torch.tensor([80.0, -300.0, 79.0, -math.inf])
    for temperature in (1e-30, 1e-4, 1e30):
        probs = warp(logits, SamplingParams(temperature=temperature))
        assert float(probs.sum()) == pytest.approx(1) and probs[3] == 0
    assert warp(logits, SamplingParams(temperature=1e-30)).tolist() == [1, 0, 0, 0]


def dense(joint: Joint) -> torch.Tensor:
    """[3, 7] probabilities of beam and token."""
    table = torch.zeros(3, 7, dtype=torch.float64)
    for (beam, token), prob in joint.table().items():
        table[beam, token] = prob
    return table


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_joint_of_beams_is_warped_as_one(options: dict[str, float]) -> None:
    """DSBD's T∘p_beam: the flattened joint is one distribution. Warping each beam's own is another one."""
    params = SamplingParams(**options)
    torch.manual_seed(3)
    logits = torch.randn(3, 7, dtype=torch.float64)
    scores = torch.tensor([-1.0, -0.2, -3.0], dtype=torch.float64)
    log_p = logits - torch.logsumexp(logits, -1, keepdim=True)
    joint = (scores[:, None] + log_p).flatten()
    expected = torch.tensor(slow_warp(joint.tolist(), params), dtype=torch.float64).view(3, 7)
    torch.testing.assert_close(
        dense(joint_by(scores, logits.log_softmax(-1), params, "joint")), expected, atol=1e-12, rtol=1e-9
    )
    normal = logits.log_softmax(-1)
    by_token = torch.softmax(scores, -1)[:, None] * reference(logits, params)
    torch.testing.assert_close(dense(joint_by(scores, normal, params, "token")), by_token, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.inf},
        {"frequency_penalty": math.nan},
        {"top_q": 1},
    ],
    ids=str,
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SamplingParams(**wrong)


# -- penalties -------------------------------------------------------------------------------------------------------

PENALTIES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.3},
    {"presence_penalty": -0.5, "frequency_penalty": -0.2},
    {"logit_bias": {0: 2.0, 4: -1.0}},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": {2: 0.7}},
]


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_penalties_equal_counting_each_path_from_scratch(options: dict[str, object]) -> None:
    """Random trees over several rounds; each node's row sees its own path only, drafts of other branches never."""
    vocab, rng = 6, random.Random(5)
    params = SamplingParams(**options)  # type: ignore[arg-type]
    assert params.edits_logits
    prompt = [rng.randrange(vocab) for _ in range(5)]
    penalties = Penalties(params, vocab, len(prompt), CPU)
    forest = Forest.from_prompt(prompt)
    torch.manual_seed(1)
    for _ in range(5):
        nodes = [*forest.roots]
        for _ in range(7):
            nodes += forest.propose(rng.choice(nodes), [rng.randrange(vocab)], None)
        rows = sorted(set(nodes))
        rng.shuffle(rows)  # any order, as a drafter may ask
        logits = torch.randn(len(rows), vocab, dtype=torch.float64)
        untouched = logits.clone()
        edited = penalties(logits, forest, rows)
        assert torch.equal(logits, untouched)
        for row, node in enumerate(rows):
            output = forest.sequence(node)[len(prompt) :]
            expected = slow_penalties(logits[row].tolist(), prompt, output, params)
            assert edited[row].tolist() == pytest.approx(expected, abs=1e-6)
        deepest = max(rows, key=lambda node: forest.depth[node])
        grown = Forest(trunk=forest.sequence(deepest))
        grown.roots = [grown.add(-1, rng.randrange(vocab))]
        forest = grown


def test_a_branch_does_not_see_its_siblings() -> None:
    """The trap itself: a token drafted in one branch is not penalised in another."""
    forest = Forest.from_prompt([0, 1])
    a, b = forest.propose(0, [2, 3], None)
    penalties = Penalties(SamplingParams(presence_penalty=1.0), 5, 2, CPU)
    edited = penalties(torch.zeros(3, 5), forest, [0, a, b])
    assert edited.tolist() == [[0] * 5, [0, 0, -1, 0, 0], [0, 0, 0, -1, 0]]


def test_presence_and_frequency_count_the_output_only() -> None:
    forest = Forest.from_prompt([2, 2, 3])
    node = 0
    for token in (3, 3, 4):
        (node,) = forest.propose(node, [token], None)
    logits = torch.zeros(1, 5)
    presence = Penalties(SamplingParams(presence_penalty=1.0), 5, 3, CPU)(logits, forest, [node])
    frequency = Penalties(SamplingParams(frequency_penalty=0.5), 5, 3, CPU)(logits, forest, [node])
    repetition = Penalties(SamplingParams(repetition_penalty=2.0), 5, 3, CPU)(logits - 1, forest, [node])
    assert presence.tolist() == [[0, 0, 0, -1, -1]]
    assert frequency.tolist() == [[0, 0, 0, -1, -0.5]]
    assert repetition.tolist() == [[-1, -1, -2, -2, -2]]


def test_penalties_come_before_the_temperature() -> None:
    """A bias of log 3 makes a token three times as likely at temperature 1, nine times at 1/2."""
    engine = Engine(TabularModel(lambda prefix: [1.0, 1.0], 2))
    for temperature, odds in ((1.0, 3.0), (0.5, 9.0)):
        result = engine.generate(
            [0], sampling={"temperature": temperature, "logit_bias": {1: math.log(3)}}, max_new_tokens=20
        )
        for token, value in zip(result.tokens, result.warped_logprobs, strict=True):
            assert math.exp(value) == pytest.approx((odds if token else 1) / (1 + odds))
