"""Servers side by side: every load and server has a row, from tokens that the servers count."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from spoken_server import Table, speaking

from benchmarks import http_peers
from draftwood.errors import ConfigurationError


def test_servers_are_measured_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peers.json"
    with speaking(Table()) as one, speaking(Table()) as other:
        http_peers.main(out, [f"one={one}", f"other={other}/v1"], repeats=2, requests=2, each=1, tokens=3)
    rows = json.loads(out.read_text("utf-8"))["tables"]["peers"]
    assert [(row["clients"], row["server"]) for row in rows] == [
        (n, name) for n in (1, 4, 16) for name in ("one", "other")
    ]
    assert all(row["tokens_per_second"]["value"] > 0 and row["first_p99_ms"]["value"] > 0 for row in rows)
    assert capsys.readouterr().out.count("tokens/s") == 6


def test_quantiles_and_bad_names(tmp_path: Path) -> None:
    assert http_peers.quantile([3.0, 1.0, 2.0], 0.5) == 2.0 and http_peers.quantile([1.0], 0.99) == 1.0
    with pytest.raises(ConfigurationError, match="name each server once"):
        http_peers.main(tmp_path / "x.json", ["http://localhost:1"])
    for group in ("ours=x", "other=1"):
        with pytest.raises(ConfigurationError, match="--group ours=1234"):
            http_peers.main(tmp_path / "x.json", ["ours=http://localhost:1"], group=[group])
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    for number in (ended.pid, os.getpgrp()):
        with pytest.raises(ConfigurationError, match="start it by setsid"):
            http_peers.main(tmp_path / "x.json", ["ours=http://localhost:1"], group=[f"ours={number}"])


def test_servers_that_are_not_asked_are_stopped() -> None:
    sleepers = {name: subprocess.Popen(["sleep", "60"], start_new_session=True) for name in ("one", "two", "three")}

    def state(name: str) -> str:
        os.waitid(os.P_PID, sleepers[name].pid, os.WSTOPPED | os.WCONTINUED | os.WEXITED)
        return Path(f"/proc/{sleepers[name].pid}/stat").read_text("utf-8").rsplit(") ", 1)[1][0]

    try:
        groups = {name: one.pid for name, one in sleepers.items() if name != "three"}
        with http_peers.alone("one", groups):
            assert state("two") == "T"
            assert sleepers["one"].poll() is None and sleepers["three"].poll() is None
        assert state("two") != "T"
    finally:
        for one in sleepers.values():
            one.kill()
            one.wait()
