"""`draftwood bench`: one table of tokens per second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Command

from draftwood import load
from draftwood.eval.speed import speed_tests
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams


def test_the_table(command: Command, pair: list[str], tmp_path: Path) -> None:
    given: Any = ["bench", *pair, "--prompt-tokens", 30, "--max-new-tokens", 12, "--repeat", 2]
    shown = command(*given)
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    assert [line[0] for line in lines if line and line[0][:2] in ("pp", "tg")] == ["pp30", "tg12", "tg12"]
    assert "native" in shown.out and "speculative" in shown.out and "1.00×" in shown.out
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "Story: a fox"}))
    document = command(*given, "--json", "--methods", "lookup:gamma=2,mcsd:tree=2,1", "--prompts", file).document
    names = [one["method"]["name"] for one in document["tests"]]
    assert names == ["autoregressive", "autoregressive", "lookup", "mcsd"] and document["prompts"] == 1
    for one in document["tests"]:
        assert len(one["runs"]) == 2 and one["tokens_per_second"] > 0 and one["tau"] >= 1
    assert document["weight_bytes"] == load(pair[1], pair[3]).weight_bytes > 0


def test_counts(target: Path, draft: Path) -> None:
    """Tokens behind the first round, over its seconds apart; the tests take turns."""
    engine, turns = load(target, draft), list[str]()
    methods = [Method.parse("autoregressive"), Method.parse({"name": "speculative", "gamma": 2})]
    prompt = engine.tokens("Story: a fox")
    params = SamplingParams(temperature=0)
    reading, plain, drafted = speed_tests(engine, [prompt, prompt[:5]], methods, params, 20, 8, 2, 0, turns.append)
    assert turns == ["prompt", "autoregressive", "speculative"] * 3
    assert reading.tokens == [20, 20] and (plain.rounds, plain.emitted) == (2 * 2 * 8, 2 * 2 * 8)
    results = [engine.generate(one, methods[1], params, 8) for one in (prompt, prompt[:5])]
    assert drafted.tokens == [sum(len(one.tokens) - len(one.rounds[0].tokens) for one in results)] * 2
    assert plain.tokens == [14, 14] and plain.deviation >= 0 and not plain.drafted


def test_refusals(command: Command, pair: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "none"
    for flags, told in (
        (["--methods", "lookpu"], "did you mean 'lookup'?"),
        (["--prompts", missing], "cannot be read"),
        (["--max-new-tokens", 500], "lower --max-new-tokens"),
    ):
        outcome = command("bench", *pair, *flags)
        assert outcome.code == 2 and told in outcome.err
