"""Figures of a summary against hand-made records, and intervals against what they mean."""

import math
import random
from statistics import fmean
from typing import Any

import pytest

from draftwood.engine.metrics import ADDED, LATER
from draftwood.eval.intervals import quotient, ratio
from draftwood.eval.summary import exponential, summarise

TASK = {"name": "t", "metric": "passed", "items": 2}
METHODS = [{"name": "autoregressive"}, {"name": "speculative"}]


def configuration(seeds: int) -> dict[str, Any]:
    return {
        "models": {},
        "methods": METHODS,
        "lossless": [True, True],
        "tasks": [TASK],
        "sampling": {},
        "seeds": list(range(seeds)),
    }


def record(place: int, method: int, seed: int, passed: float, tokens: int = 10, seconds: float = 1.0) -> dict[str, Any]:
    rounds = dict.fromkeys(ADDED, 0) | {"attempted_at": [4, 2], "accepted_at": [2, 1], "peak_slots": 1}
    rounds |= {"rounds": 5, "emitted": tokens, "drafted": 8, "accepted": 4, "draft_forwards": 10}
    rounds |= {"later_draft_seconds": 0.1, "later_draft_forwards": 8, "later_verify_seconds": 0.2, "later_rounds": 4}
    rounds |= {"draft_seconds": 0.2, "verify_seconds": 0.5, "sampling_seconds": 0.1, "other_seconds": 0.2}
    return {
        "task": "t",
        "place": place,
        "method": method,
        "seed": seed,
        "status": "ok",
        "scores": {"passed": passed},
        "tokens": tokens,
        "prompt_tokens": 3,
        "token_hash": f"{place}",
        "nats": 2.0 * tokens,
        "seconds": seconds,
        "rounds": rounds,
        "joules": {"gpu": 5.0},
    }


def summary(records: list[dict[str, Any]], seeds: int, idle: dict[str, float] | None = None) -> dict[str, Any]:
    shuffled = random.Random(0).sample(records, len(records))
    return summarise(configuration(seeds), [], {str(i): each for i, each in enumerate(shuffled)}, idle)


def test_items_of_one_cluster_are_drawn_together() -> None:
    """Intervals are those of the clusters' sums, beside the number of items; of one cluster there is none."""
    random_ = random.Random(1)
    times = [random_.choice((1.0, 3.0)) for _ in range(12)]
    records = [
        {**record(place, method, seed, 0.5, seconds=times[place // 3] * (1 + method)), "cluster": f"{place // 3}"}
        for place in range(36)
        for method in (0, 1)
        for seed in (0, 1)
    ]
    tokens_per_second = summary(records, 2)["rows"][0]["timing"]["tokens_per_second"]
    of_clusters = ratio([60.0] * 12, [6 * each for each in times])
    assert tokens_per_second == {**of_clusters, "n": 36}
    alone = summary([{**each, "cluster": ""} for each in records], 2)["rows"][0]["timing"]["tokens_per_second"]
    assert alone["value"] == tokens_per_second["value"] and alone["n"] == 36
    assert alone["high"] - alone["low"] < 0.8 * (tokens_per_second["high"] - tokens_per_second["low"])
    one = summary([{**each, "cluster": "a"} for each in records], 2)["rows"][1]
    assert one["timing"]["tokens_per_second"]["low"] is None is one["paired"]["speed_up"]["high"]
    assert one["quality"]["passed"] == {"value": 0.5, "low": None, "high": None, "n": 36}


def test_means_ratios_and_pass_at_k() -> None:
    passed = {0: [1, 0, 0, 0, 0], 1: [1, 1, 1, 0, 0]}
    records = [
        record(place, method, seed, value, seconds=(1.0 if method == 0 else 0.25 * (1 + place)))
        for place, values in passed.items()
        for seed, value in enumerate(values)
        for method in range(2)
    ]
    document = summary(records, 5)
    plain, fast = document["rows"]
    assert document["complete"]
    assert fast["quality"]["passed"]["value"] == pytest.approx(0.4)
    assert fast["quality"]["pass@1"]["value"] == pytest.approx(0.4)
    assert fast["quality"]["pass@5"]["value"] == 1 and "pass@10" not in fast["quality"]
    assert fast["quality"]["perplexity"]["value"] == pytest.approx(math.exp(2))
    assert fast["decoding"]["tau"]["value"] == 2 and fast["decoding"]["acceptance_rate"]["value"] == 0.5
    assert fast["decoding"]["acceptance_by_position"] == [0.5, 0.5]
    assert fast["timing"]["time_shares"] == pytest.approx({"draft": 0.2, "verify": 0.5, "sampling": 0.1, "other": 0.2})
    assert fast["timing"]["draft_cost_ratio"] == pytest.approx((0.1 / 8) / (0.2 / 4))
    assert plain["timing"]["tokens_per_second"]["value"] == pytest.approx(10)
    # 100 tokens in 5 * 0.25 + 5 * 0.5 seconds, against 10 seconds
    assert fast["paired"]["speed_up"]["value"] == pytest.approx(10 / 3.75)
    low, high = fast["paired"]["speed_up"]["low"], fast["paired"]["speed_up"]["high"]
    assert (low, high) == (pytest.approx(2), pytest.approx(4))  # that of either item alone
    assert fast["energy"] == document["energy"] == "not available on this machine"


def test_records_of_earlier_versions_are_read_without_a_cost_of_drafts() -> None:
    """The prompt's forwards cannot be told from the others there."""
    old, new = record(0, 1, 0, 1.0), record(0, 1, 1, 1.0)
    old["rounds"] = {name: value for name, value in old["rounds"].items() if name not in LATER}
    assert summary([old], 1)["rows"][1]["timing"]["draft_cost_ratio"] is None
    assert summary([old, new], 2)["rows"][1]["timing"]["draft_cost_ratio"] == pytest.approx((0.1 / 8) / (0.2 / 4))


def test_pairs_are_of_one_item_and_seed_and_failures_have_none() -> None:
    records = [record(place, method, 0, 1.0) for place in range(2) for method in range(2)]
    failed = {"task": "t", "place": 0, "method": 0, "seed": 0, "status": "failed", "stage": "decode", "error": "E: e"}
    records = [each for each in records if (each["place"], each["method"]) != (0, 0)] + [failed]
    plain, fast = summary(records, 1)["rows"]
    assert plain["runs"] == {"made": 2, "failed_to_decode": 1, "failed_to_score": 0} and plain["errors"] == {"E: e": 1}
    assert plain["quality"]["passed"]["value"] == 0.5 and fast["quality"]["passed"]["value"] == 1
    assert fast["paired"]["speed_up"]["n"] == 1 and fast["paired"]["speed_up"]["low"] is None


def test_a_task_that_failed_throughout_has_score_zero() -> None:
    failed = {"task": "t", "seed": 0, "status": "failed", "stage": "decode", "error": "E: e"}
    rows = summary([{**failed, "place": place, "method": 0} for place in range(2)], 1)["rows"]
    assert rows[0]["quality"]["passed"] == {"value": 0, "low": 0, "high": 0, "n": 2}
    assert rows[0]["quality"]["perplexity"]["value"] is None


def test_energy_without_what_the_idle_machine_takes() -> None:
    records = [record(place, method, 0, 1.0) for place in range(2) for method in range(2)]
    row = summary(records, 1, {"gpu": 2.0})["rows"][1]
    assert row["energy"]["gpu"]["joules"] == 10 and row["energy"]["gpu"]["joules_without_idle"] == 6
    assert row["energy"]["gpu"]["split_by_time"]["verify"] == pytest.approx(5)


def test_nothing_yet() -> None:
    document = summary([], 1)
    assert not document["complete"] and document["rows"][1]["paired"]["speed_up"]["value"] is None
    assert document["rows"][0]["timing"]["tokens_per_second"] == {"value": None, "low": None, "high": None, "n": 0}


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(100):
        values = [rng.gauss(3.0, 1.0) for _ in range(40)]
        found = ratio(values, [1.0] * 40)
        assert found["value"] == pytest.approx(fmean(values)) and found["n"] == 40
        assert found["low"] is not None and found["high"] is not None
        held += found["low"] <= 3.0 <= found["high"]
    assert 88 <= held <= 99  # of 100, 95% but for the bootstrap's known narrowness at n = 40


def test_paired_ratios_do_not_see_what_hits_both() -> None:
    drift = [1.0, 5.0, 0.2, 3.0, 9.0]
    found = quotient([10.0] * 5, drift, [10.0] * 5, [2 * each for each in drift])
    assert (found["value"], found["low"], found["high"]) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))
    assert quotient([10.0] * 5, drift, [10.0] * 5, [2 * each for each in drift]) == found
    assert ratio([1.0], [0.0])["value"] is None


def test_exponentials_of_large_numbers_are_none() -> None:
    assert exponential({"value": 0.0, "low": None, "high": 800.0, "n": 2}) == {
        **{"value": 1.0, "low": None, "high": None, "n": 2}
    }
