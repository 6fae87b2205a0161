"""The certificate fails every wrong rule of mutations.yaml, and no right one."""

from __future__ import annotations

import pytest
from mutations import Mutation, table

TABLE = table()


def name(one: Mutation) -> str:
    return f"{one.where}-{one.rule}"


@pytest.mark.some(14)
@pytest.mark.parametrize("one", [one for one in TABLE if one.fast], ids=name)
def test_a_wrong_rule_is_found(one: Mutation) -> None:
    assert one.caught() == one.check


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in TABLE if not one.fast], ids=name)
def test_every_wrong_rule_is_found(one: Mutation) -> None:
    assert one.caught() == one.check


def test_every_row_can_be_applied() -> None:
    """The text that a row replaces is there once, so that no row passes because it changes nothing."""
    for one in (*TABLE, *table("server_mutations.yaml")):
        assert one.code() != one.function.__code__, name(one)
