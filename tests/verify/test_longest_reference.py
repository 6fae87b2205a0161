"""MCSD's released rule on the embedded pair accepts, and loses, what an independent implementation of it does."""

from __future__ import annotations

import math

import pytest

import draftwood
from draftwood.eval.running import EvalPlan, Runner
from draftwood.eval.tasks import parse
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams

REFERENCE = {"qa": (0.58, 0.28), "sql": (0.91, 0.66), "library": (0.83, None)}  # alpha, and the score
ITEMS = 40


@pytest.mark.slow
@pytest.mark.parametrize("task", REFERENCE)
def test_acceptance_and_scores_are_those_of_the_reference(task: str) -> None:
    """T = 0.7, the tree 2,4,3,1,1; ours that loses less accepts far less (spec: .47, .85 and .54)."""
    asked = parse(task)
    tree = {"name": "mcsd", "tree": [4, 3, 1, 1], "initial": 2}
    methods = [Method.parse({**tree, "verify": verify}) for verify in ("longest", "longest-root")]
    plan = EvalPlan(methods, [(asked, asked.instances(ITEMS))], SamplingParams(temperature=0.7), range(1))
    runner = Runner(draftwood.load(), plan)
    records = [runner.record(job) for job in plan.jobs()]
    sums = [[each for each in records if each["method"] == number] for number in (0, 1)]
    alphas = [
        sum(each["rounds"]["accepted_shares"] for each in group)
        / sum(each["rounds"]["drafting_rounds"] for each in group)
        for group in sums
    ]
    alpha, score = REFERENCE[task]
    assert alphas[0] == pytest.approx(alpha, abs=0.06) and alphas[0] > alphas[1]
    if score is not None:
        found = sum(each["scores"][asked.headline] for each in sums[0]) / ITEMS
        assert abs(found - score) < 2.6 * math.sqrt(score * (1 - score) / ITEMS)
