"""A request that is cancelled keeps what was decided by then, and says that it was cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftwood import Method
from draftwood.certify.small import Case
from draftwood.methods.beams import BeamMethod

OPTIONS: list[dict[str, Any]] = [
    {"name": "autoregressive"},
    {"name": "speculative", "gamma": 3},
    {"name": "speculative", "gamma": 3, "verify": "coupled"},
    {"name": "specinfer", "expansion": [2, 1]},
    {"name": "mcsd", "tree": [2, 1]},
    {"name": "mcsd", "tree": [2, 1], "initial": 2},
    {"name": "mcsd", "tree": [2, 1], "initial": 2, "verify": "longest"},
    {"name": "mcsd-fork", "width": 2, "gamma": 2, "verify": "longest"},
    {"name": "eesd", "gamma": 2},
    {"name": "medusa", "tree": [2, 1]},
    {"name": "eagle", "width": 2, "gamma": 2},
    {"name": "lookup"},
    {"name": "beam-sampling", "width": 3},
    {"name": "dsbd", "draft_width": 3, "gamma": 2},
    {"name": "dsbd", "draft_width": 3, "gamma": 2, "one_cache": True},
    {"name": "beam-search", "width": 3},
    {"name": "speculative-beam-search", "width": 3, "depth": "fixed"},
]
SEEDS = 4


def after(rounds: int) -> Callable[[], bool]:
    """A `cancelled` that is true when so many rounds are done; asked once per round."""
    left = iter(range(1, rounds))
    return lambda: next(left, None) is None


@pytest.mark.some(9)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_cancelled_text_is_what_was_decided(options: dict[str, Any]) -> None:
    method = Method.parse(options)
    case = Case(method, 8, 12, order=3)
    cancelled = 0
    for seed in range(SEEDS):
        whole = case.run(seed=seed)
        for rounds in range(1, len(whole.rounds) + 1):
            found = case.engine.generate(case.prompt, method, case.params, case.tokens, seed, cancelled=after(rounds))
            assert len(found.rounds) == rounds
            if rounds == len(whole.rounds):
                assert (found.tokens, found.finish_reason) == (whole.tokens, whole.finish_reason)
                continue
            cancelled += 1
            if isinstance(method, BeamMethod):  # the best hypothesis so far, which may have ended
                assert found.finish_reason == found.beams[0].finish_reason
            else:
                assert found.finish_reason == "cancelled"
                assert found.tokens == whole.tokens[: len(found.tokens)]
                assert found.tokens == [token for round_ in whole.rounds[:rounds] for token in round_.tokens]
    assert cancelled >= SEEDS
