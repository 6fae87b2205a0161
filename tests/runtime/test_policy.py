"""The scheduler's policy on a simulated clock: who waits for whom, and how prompts are cut."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from draftwood.runtime.policy import SHORT, Policy


@dataclass
class Request:
    """A request that drafts `gamma` tokens, each in a pass of its own, before each target pass."""

    gamma: int
    left: int = 0
    drafted: bool = False
    rounds: int = 0


def simulate(gammas: list[int], draft: float, seconds: float, target: float = 1.0) -> tuple[list[float], int]:
    """Rounds per second of each request, and target passes, when passes take so long."""
    policy, clock, passes = Policy(), 0.0, 0
    requests = [Request(gamma, gamma) for gamma in gammas]
    while clock < seconds:
        drafting = [r for r in requests if r.left]
        ready = [r for r in requests if not r.left]
        if drafting and policy.may_draft([r.drafted for r in ready]):
            policy.draft_pass(draft)
            clock += draft
            for r in drafting:
                r.left, r.drafted = r.left - 1, True
            drafting = [r for r in requests if r.left]
            ready = [r for r in requests if not r.left]
        if ready and policy.due([r.drafted for r in ready], len(drafting)):
            policy.target_pass(target)
            clock, passes = clock + target, passes + 1
            for r in ready:
                r.left, r.drafted, r.rounds = r.gamma, False, r.rounds + 1
    return [r.rounds / clock for r in requests], passes


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_a_plain_request_keeps_its_speed_beside_one_that_drafts(gamma: int, draft: float) -> None:
    (plain, drafting), _ = simulate([0, gamma], draft, 400)
    assert plain >= 0.85  # of one target pass per second
    assert drafting > 0.01  # and nobody starves


@pytest.mark.parametrize("gammas", [[4] * 8, [4, 4, 3, 5], [1, 8, 4]])
def test_requests_that_draft_share_their_target_passes(gammas: list[int]) -> None:
    rates, passes = simulate(gammas, 0.1, 400)
    rounds = max(rates) * 400
    assert passes <= 1.35 * rounds


def test_nobody_waits_where_nobody_drafts() -> None:
    assert simulate([0, 0, 0], 0.1, 100)[0] == pytest.approx([1, 1, 1], rel=0.02)


def test_prompts_share_a_chunk_and_short_runs_are_whole() -> None:
    policy = Policy(chunk=300)
    assert policy.limits([1, 45, SHORT, 200, 1000, 500, 5]) == [1, 45, SHORT, 200, 100, 0, 5]
    assert policy.limits([1000]) == [300]
