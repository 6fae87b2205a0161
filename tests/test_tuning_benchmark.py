"""benchmarks/tuning.py: guided search against the grid, in a file that survives a kill."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TINY = ["--rows", "3", "--depth", "1", "--documents", "1", "--tokens", "3", "--repeats", "2", "--runs", "3"]


@pytest.mark.slow
def test_it_concludes_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import record

    from draftwood.tune.measuring import Bench

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record.write, "__defaults__", (tmp_path,))
    monkeypatch.setattr(sys, "argv", ["tuning.py", *TINY, "--name", "tiny"])
    run, left = Bench.run, [4]

    def cut(self: Bench, *arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return run(self, *arguments)

    monkeypatch.setattr(Bench, "run", cut)
    main = runpy.run_path(str(BENCHMARKS / "tuning.py"))["main"]
    with pytest.raises(KeyboardInterrupt):
        main()
    kept = (tmp_path / "tiny.items.jsonl").read_text("utf-8").splitlines()
    assert len(kept) == 1 + 1 + 4  # settings, costs, runs
    left[0] = 10_000
    main()
    assert (tmp_path / "tiny.items.jsonl").read_text("utf-8").splitlines()[:6] == kept
    assert 10_000 - left[0] <= 3 + 2 + 2 * 2 - 4  # none of those again
    result = json.loads((tmp_path / "tiny.json").read_text("utf-8"))
    assert set(result["grid"]) == {"1", "2"} and result["settings"]["grid"] == 2
    assert max(answer["ratio"] for answer in result["guided"].values()) <= 1.0 + 1e-9
    assert result["reached"] == (result["guided"]["3"]["ratio"] >= 0.97)
    assert "of the grid's best" in capsys.readouterr().out
