"""A certificate that is stopped keeps what was done, alone and with processes side by side, and leaves none behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep

import pytest

from draftwood import Method
from draftwood.certify import Budget, Watch, certify_each, exactness

SMALL = Budget(runs=4, replays=24, identities=8, seeds=1000)


def impatient(steps: int) -> Watch:
    """Stops after so many steps."""
    left = iter(range(steps))
    return lambda what, done, of: not done or next(left, None) is not None


@pytest.mark.slow
def test_what_was_finished_is_kept() -> None:
    methods = [Method.parse("autoregressive"), Method.parse("speculative")]
    whole = certify_each(methods[:1], budget=SMALL)
    steps = whole.certificates[0].checks[0].figures["replays"] + len(exactness.SAMPLED_CELLS) * SMALL.runs
    steps += whole.certificates[0].checks[2].figures["texts"] + 2  # and of random numbers
    report = certify_each(methods, budget=SMALL, watch=impatient(steps + 5))
    assert whole.complete and not report.complete and report.verdict == "PASS"
    first, second = report.certificates
    assert first == whole.certificates[0] and first.complete
    assert not second.complete and not second.checks and report.as_dict()["complete"] is False


@pytest.mark.slow
def test_processes_side_by_side_find_the_same_and_keep_what_was_finished() -> None:
    methods = [Method.parse("autoregressive"), Method.parse({"name": "speculative", "gamma": 2})]
    whole = certify_each(methods, budget=SMALL, processes=1)
    assert whole.complete and whole.certificates == certify_each(methods, budget=SMALL).certificates
    many = SMALL.model_copy(update={"runs": 10**9})
    report = certify_each(methods, budget=many, watch=lambda *_: False, processes=1)
    assert not report.complete and not any(one.complete for one in report.certificates)


ENDLESS = """
from draftwood import Method
from draftwood.certify import Budget, certify_each

if __name__ == "__main__":
    certify_each([Method.parse("autoregressive")], budget=Budget(runs=10**6), processes=1)
"""


@pytest.mark.slow
def test_no_process_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    main = subprocess.Popen([sys.executable, program])
    children: list[str] = []
    while len(children) < 2:  # Python's resource tracker and the process that works
        assert main.poll() is None
        sleep(0.1)
        children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
    sleep(1)
    main.kill()
    main.wait()
    until = perf_counter() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert perf_counter() < until
        sleep(0.1)


def killed(*asked: object) -> None:
    os._exit(9)


@pytest.mark.slow
def test_what_a_killed_process_did_not_do_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [Method.parse("autoregressive")]
    expected = certify_each(methods, budget=SMALL).certificates
    monkeypatch.setattr("draftwood.certify.report._shared", killed)
    assert certify_each(methods, budget=SMALL, processes=1).certificates == expected
