"""The scheduler's policy on a simulated clock: who waits for whom, and how prompts are cut."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from every_method import submitted

from draftwood import Engine, TabularModel
from draftwood.engine.engine import prepare
from draftwood.runtime.policy import SHORT_RUN, Policy, Wanted


@dataclass
class Request:
    """A request that drafts `gamma` tokens, each in a pass of its own, before each target pass."""

    gamma: int
    left: int = 0
    drafted: bool = False
    rounds: int = 0


def simulate(
    gammas: list[int], draft: float, seconds: float, row: float = 0.0, target: float = 1.0
) -> tuple[list[float], int]:
    """Rounds per second of each request, and target passes, when passes take so long; each row more of the target's."""
    policy, clock, passes = Policy(), 0.0, 0
    requests = [Request(gamma, gamma) for gamma in gammas]

    def cost(rows: int) -> float:
        return target + row * (rows - 1)

    def requested() -> tuple[list[Request], list[Request], bool]:
        ready = [r for r in requests if not r.left]
        return [r for r in requests if r.left], ready, any(not r.drafted for r in ready)

    while clock < seconds:
        drafting, ready, plain_waits = requested()
        if drafting and policy.may_draft(plain_waits):
            policy.draft_pass(draft, plain_waits)
            clock += draft
            for r in drafting:
                r.left, r.drafted = r.left - 1, True
            drafting, ready, plain_waits = requested()
        if ready and policy.due(plain_waits, bool(drafting), cost(sum(r.gamma + 1 for r in ready))):
            if not policy.may_draft(plain_waits):
                ready = [r for r in ready if not r.drafted]
            taken = cost(sum(r.gamma + 1 for r in ready))
            policy.target_pass(*((cost(len(requests)), taken) if plain_waits else ()))
            clock, passes = clock + taken, passes + 1
            for r in ready:
                r.left, r.drafted, r.rounds = r.gamma, False, r.rounds + 1
    return [r.rounds / clock for r in requests], passes


@pytest.mark.parametrize("row", [0.0, 0.02, 0.12, 1.0])
@pytest.mark.parametrize("draft", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("gammas", [[1], [4], [8], [8, 8, 4]])
def test_a_plain_request_keeps_its_speed_beside_those_that_draft(gammas: list[int], draft: float, row: float) -> None:
    (plain, *drafting), _ = simulate([0, *gammas], draft, 2000, row)
    assert plain >= 0.82 / (1 + row * len(gammas))  # of passes over one row of each
    assert min(drafting) > 0.01 / (1 + row)  # and nobody starves


def test_drafts_beside_a_plain_request_use_what_they_may() -> None:
    (plain, drafting), _ = simulate([0, 4], 0.05, 2000, 0.02)
    assert plain < 0.9
    assert drafting > 0.4
    assert simulate([0, 4], 0.01, 2000)[0] == pytest.approx([0.96, 0.96], abs=0.02)  # as fast as both together


@pytest.mark.parametrize("gammas", [[4] * 8, [4, 4, 3, 5], [1, 8, 4]])
def test_requests_that_draft_share_their_target_passes(gammas: list[int]) -> None:
    rates, passes = simulate(gammas, 0.1, 400)
    rounds = max(rates) * 400
    assert passes <= 1.35 * rounds


def test_nobody_waits_where_nobody_drafts() -> None:
    assert simulate([0, 0, 0], 0.1, 100)[0] == pytest.approx([1, 1, 1], rel=0.02)


def test_what_was_drafted_while_nobody_waited_is_no_debt() -> None:
    policy = Policy()
    for _ in range(100):
        policy.draft_pass(1.0, False)
        policy.target_pass()
    policy.target_pass(1.0, 1.0)
    assert policy.may_draft(True)


def test_prompts_share_a_chunk_and_short_runs_are_whole() -> None:
    policy = Policy(chunk=300)
    assert policy.limits([Wanted(n, min(n, SHORT_RUN)) for n in (1, 45, SHORT_RUN, 200, 1000, 500, 5)]) == [
        1,
        45,
        SHORT_RUN,
        200,
        100,
        0,
        5,
    ]
    assert policy.limits([Wanted(1000)]) == [300]


def test_what_was_drafted_waits_while_it_would_take_too_much_of_a_plain_request() -> None:
    models = TabularModel.random(4, seed=1), [TabularModel.random(4, seed=2)]
    engine, options = Engine(*models), {"sampling": {"temperature": 0.0}, "max_new_tokens": 12, "ignore_eos": True}
    chain, scheduler = {"name": "speculative", "gamma": 3}, engine.scheduler
    alone = [Engine(*models).generate([1, 2], method, **options).tokens for method in (chain, "autoregressive")]
    drafting, plain = (
        submitted(engine, prepare(engine, [1, 2], method=method, **options)) for method in (chain, "autoregressive")
    )
    while not drafting.drafted:
        scheduler.policy.credit = 1.0
        scheduler.step()
    scheduler.policy.credit = -1e9
    while not plain.done:
        scheduler.step()
    assert not drafting.events
    while not drafting.done:
        scheduler.step()
    assert [[token for round_ in task.events for token in round_.tokens] for task in (drafting, plain)] == alone
