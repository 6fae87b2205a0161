"""benchmarks/controllers.py: the recorded simulation agrees with the table of spec §7, and printed updates fail."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import controllers

        yield controllers
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads((BENCHMARKS / "results" / "controllers.json").read_text("utf-8"))


def test_recorded_speeds_are_those_of_the_table(recorded: Any) -> None:
    assert recorded["simulation"] is True
    compared = 0
    for row in recorded["scenarios"].values():
        for name, speed in row["spec"].items():
            assert row["controllers"][name]["speed"] == pytest.approx(speed, rel=0.02)
            compared += 1
    assert compared == 16


def test_printed_updates_fail_by_design(recorded: Any, bench: Any) -> None:
    """Eq. 3-4 give up drafting after one token; Eq. 8 drafts on as if everything were accepted."""
    for row in recorded["scenarios"].values():
        entries = row["controllers"]
        assert entries["beta-ts as printed"]["drafts_per_round"] < 1.2
        assert entries["cali-ts as printed"]["drafts_per_round"] > 20
        assert entries["cali-ts as printed"]["speed"] < 0.95 * entries["cali-ts"]["speed"]
        assert min(entries[name]["speed"] for name in bench.FAILING) < 0.9 * entries["best fixed"]["speed"]


def test_a_short_simulation_gives_what_was_recorded(recorded: Any, bench: Any) -> None:
    for scenario, names in (
        ("fixed 0.6, c 0.15", ("beta-ts", "cali-ts", "speedup-ts")),
        ("per token, c 0.1", ("confidence", "optimal-stopping")),
    ):
        c, text = bench.SCENARIOS[scenario]
        for name in names:
            found = bench.speeds(bench.CONTROLLERS[name], text, c, 600)["speed"]
            assert found == pytest.approx(recorded["scenarios"][scenario]["controllers"][name]["speed"], rel=0.15)


def test_decisions_are_timed(bench: Any) -> None:
    times = bench.decisions(64, 8, 3)
    assert set(times) >= {"beta-ts", "cali-ts", "speedup-ts", "optimal-stopping"}
    assert all(entry["five_layers_us"] > 0 for entry in times.values())
