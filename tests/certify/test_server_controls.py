"""Certificates of draftwood's own server: it passes, with each of the wrong rules it fails, and bits are told apart."""

from __future__ import annotations

from typing import Any

import pytest
from mutations import Mutation, table
from servers import running

from draftwood import Engine, load
from draftwood.certify.checks import Check
from draftwood.certify.server import LocalModel, Server, ServerBudget, certify_server
from draftwood.certify.server.client import Side
from draftwood.certify.server.prompts import PROMPTS
from draftwood.certify.server.run import jobs
from draftwood.certify.server.subject import prepare

pytestmark = pytest.mark.slow
CONTROLS = table("server_mutations.yaml")
BUDGET = ServerBudget(precision="float32", greedy_tokens=32)
LONG = BUDGET.model_copy(update={"samples": 800})  # at most: a wrong rule is seen before
CHAIN = {"name": "speculative", "gamma": 4, "verify": "rejection"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load()


def checked(url: str, *names: str, rival: Side | None = None, budget: ServerBudget = BUDGET) -> tuple[list[Check], int]:
    """Some checks of a server, and the requests that they took."""
    subject = prepare(Server(url), budget, PROMPTS)
    subject.rival = rival
    try:
        return [
            c for name, job in jobs(subject) if name in names for c in job(lambda count=1: None)
        ], subject.server.requests_made
    finally:
        subject.server.close()


def control(engine: Engine, one: Mutation) -> tuple[Check, int]:
    """The check that is meant to fail, of a server with the wrong rule."""
    sampled = one.check in ("logit_bias", "log-probabilities with drafts and without")
    first = ("sampled tokens",) if sampled else ("greedy text",)
    with one.applied(), running(engine, method=one.method) as served:
        found, requests = checked(served.url, *first, one.check, budget=LONG)
    return next(check for check in found if check.name == one.check), requests


@pytest.mark.parametrize("one", CONTROLS, ids=lambda one: one.rule)
def test_a_server_with_a_wrong_rule_fails(engine: Engine, one: Mutation) -> None:
    assert control(engine, one)[0].verdict == "FAIL"


@pytest.mark.parametrize("method", [CHAIN, None], ids=["chain", "default"])
def test_the_server_passes(engine: Engine, method: Any) -> None:
    with running(engine, method=method) as served:
        found = certify_server(Server(served.url), LocalModel(engine), budget=BUDGET)
    assert found.complete and found.drafts["draft_tokens"] > 1000
    assert {check.verdict for check in found.checks} == {"PASS"}, [c for c in found.checks if c.verdict != "PASS"]


def test_four_bits_are_told_apart_from_ties() -> None:
    """A server of 4 bits has other weights than its original of 16; the original in another arithmetic has the same."""
    budget = BUDGET.model_copy(update={"precision": "bfloat16", "greedy_tokens": 64})
    names = "greedy text", "against the other"
    original = load(dtype="bfloat16")
    with running(load(quantize="int4")) as served:
        four = {c.name: c for c in checked(served.url, *names, rival=LocalModel(original), budget=budget)[0]}
    with running(original) as served:
        same = {c.name: c for c in checked(served.url, *names, rival=LocalModel(load()), budget=budget)[0]}
    assert four["weights, against the other"].verdict == four["greedy text, against the other"].verdict == "FAIL"
    assert same["weights, against the other"].verdict == same["greedy text, against the other"].verdict == "PASS"
