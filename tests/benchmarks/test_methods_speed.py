"""Speed without the prompt's forward pass: what first rounds count as, and ratios of the same items."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kinds.methods import decode_seconds, speed, with_usual_rounds


def record(
    place: int, tokens: int, seconds: float, first: float = 0.0, rounds: int = 2, beside: float = 0.0
) -> dict[str, Any]:
    sums = dict.fromkeys(("drafted", "accepted", "target_rows", "draft_forwards", "layers", "widths"), 0)
    parts = ("draft_seconds", "verify_seconds", "sampling_seconds", "other_seconds")
    zero = dict.fromkeys(parts, (seconds - beside) / 4)
    names = {"depth_accepted": 0, "attempted": 0, "draft_rows": 0, "widths_accepted": 0, "emitted": tokens}
    names |= {"drafting_rounds": 0, "accepted_shares": 0.0, "bounded": 0, "bounded_accepted": 0, "bounds": 0.0}
    counts = {**sums, **zero, **names, "rounds": rounds, "first_round_seconds": first, "peak_slots": 4}
    lists = {"attempted_at": [], "accepted_at": [], "width_counts": [], "depth_counts": []}
    return {
        "task": "qa", "method": 0, "place": place, "seed": 0, "status": "ok", "scores": {"em": 1.0}, "tokens": tokens,
        "prompt_tokens": 3, "seconds": seconds, "nats": 1.0, "token_hash": "a", "rounds": {**counts, **lists},
    }  # fmt: skip


def test_the_prompt_counts_as_one_more_round() -> None:
    assert decode_seconds(record(0, 9, 10.0, first=6.0, rounds=3)) == pytest.approx(6.0)  # 4 in 2 later rounds, and 2
    assert decode_seconds(record(0, 1, 6.0, first=6.0, rounds=1)) == 6.0  # nothing to tell it from
    found = decode_seconds(record(0, 9, 11.0, first=6.0, rounds=3, beside=1.0))
    assert found == pytest.approx(7.0)  # what comes before and after the rounds comes once


def test_the_prompt_of_a_text_of_one_round_counts_as_the_others_rounds() -> None:
    """Else a method that drafts all of an answer at once pays for the prompt, which others do not."""
    several = [record(0, 9, 10.0, first=6.0, rounds=3), record(1, 9, 9.0, first=6.0, rounds=2)]
    only = record(2, 9, 8.0, first=7.0, rounds=1, beside=1.0)
    failed = {"status": "failed"}
    *_, told, untold = with_usual_rounds([*several, only, failed])
    assert decode_seconds(told) == pytest.approx(1 + (4 + 3) / (2 + 1)) and untold["status"] == "failed"
    assert decode_seconds(only) == decode_seconds(*with_usual_rounds([only])) == 8.0


def test_speed_is_of_the_same_items() -> None:
    plain = [record(place, 10, 2.0) for place in range(3)]
    fast = [record(place, 10, 1.0) for place in range(3)]
    assert speed(fast, plain[:2])["speed_up"] == {"value": 2.0, "low": 2.0, "high": 2.0, "n": 2}
    assert speed(fast, []) == {}
