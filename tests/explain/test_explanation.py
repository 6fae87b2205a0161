"""`draftwood explain`: recorded p and q against the rule's own, and a page that holds every draft and needs nothing."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from draftwood import Engine, TabularModel
from draftwood.errors import RequestError
from draftwood.explain.explanation import Explanation
from draftwood.explain.page import last_words
from draftwood.explain.tree import trees_of

METHODS: list[dict[str, Any]] = [
    {"name": "autoregressive"},
    {"name": "speculative", "gamma": 5},
    {"name": "speculative", "gamma": 5, "verify": "rejection"},
    {"name": "specinfer", "expansion": [1, 2, 2, 1]},
    {"name": "mcsd", "tree": [4, 2, 2, 1]},
    {"name": "mcsd", "tree": [4, 2, 2, 1], "verify": "rejection"},
    {"name": "mcsd", "tree": [4, 2, 2, 1], "replacement": True, "verify": "coupled"},
    {"name": "lookup"},
    {"name": "dsbd", "threshold": 0.3},
    {"name": "beam-search"},
]


def explained(method: dict[str, Any], seed: int, temperature: float = 1.0) -> tuple[Engine, Explanation]:
    engine = Engine(
        TabularModel.random(6, seed=seed), [TabularModel.random(6, seed=seed + 50)], end_tokens=frozenset({0})
    )
    options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": 12, "seed": seed}
    found = engine.explain([1, 2, 1], method=method, **options)
    assert found.result.tokens == engine.generate([1, 2, 1], method, **options).tokens  # recording changes nothing
    return engine, found


@pytest.mark.some(11)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: " ".join(map(str, method.values())))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_was_recorded_is_what_happened(method: dict[str, Any], temperature: float) -> None:
    """Fates that follow from the recorded draws are those that the rounds tell; numbers are probabilities."""
    for seed in range(4):
        _, found = explained(method, seed, temperature)
        judgements, rounds = found.judgements, found.result.rounds
        assert len(found.trees) == len(judgements)
        for bare, tree, judgement in zip(trees_of(rounds, [1, 2, 1]), found.trees, judgements, strict=True):
            before = {outcome: {draw.fate for draw in node.draws} for outcome, node in bare.outcomes.items()}
            for outcome, node in tree.outcomes.items():
                fates = {draw.fate for draw in node.draws}
                if before[outcome] == {"unreached"} and "verify" not in method:  # paths that traversal visited
                    fates = {"unreached" if fate == "rejected" else fate for fate in fates}
                assert fates <= before[outcome] | {"discarded"} and bool(fates & before[outcome]) == bool(fates)
            if judgement.greedy and judgement.chosen is not None:  # the largest: no draft that failed beats it
                (outcome, p), parent = judgement.chosen, judgement.chosen[0][0]
                assert all(draw.chances[0] in (p, None) for draw in tree.outcome(outcome).draws)
                failed = [one.p for one in judgement.drafts if one.fate == "rejected" and one.outcome[0] == parent]
                assert method.get("verify") == "coupled" or p >= max(failed, default=0.0)
            for one in judgement.drafts:
                assert 0 <= one.p <= 1 + 1e-6 and 0 <= one.q <= 1 + 1e-6
                if one.fate == "accepted" and temperature and method.get("verify") != "coupled":
                    alone = min(1.0, one.p / one.q)
                    assert 0 < one.chance <= alone + 1e-6
                    assert "verify" not in method or one.chance == pytest.approx(alone)
        if "threshold" in method or method["name"] == "beam-search":
            assert not any(judgement.drafts for judgement in judgements)  # their layers say it
        elif method["name"] not in ("autoregressive", "lookup"):
            assert any(judgement.drafts for judgement in judgements)


def test_p_and_q_are_the_models_own() -> None:
    """The first draft of a chain meets the target's distribution itself; after a rejection p is the residual's."""
    rejected = 0
    for seed in range(6):
        engine, found = explained({"name": "speculative", "gamma": 3}, seed)
        before = list(found.result.prompt_tokens)
        for round_, judgement in zip(found.result.rounds, found.judgements, strict=True):
            one = judgement.drafts[0] if judgement.drafts else None
            if one is not None:
                p, q = (distribution(model, before) for model in (engine.target, engine.drafts[0]))
                token = one.outcome[1]
                assert (one.p, one.q) == (pytest.approx(float(p[token])), pytest.approx(float(q[token])))
                if one.fate == "rejected":
                    rejected += 1
                    rest = (p - q).clamp(min=0)
                    assert judgement.chosen is not None
                    assert judgement.chosen[1] == pytest.approx(float(rest[round_.tokens[-1]] / rest.sum()))
            before += round_.tokens
    assert rejected > 3


def distribution(model: Any, tokens: list[int]) -> torch.Tensor:
    single = Engine(model)
    found = single.generate(tokens, "autoregressive", max_new_tokens=1, top_logprobs=6).top_logprobs[0]
    p = torch.zeros(6)
    for token, value in found:
        p[token] = value
    return torch.where(p < 0, p.exp(), 0.0)


@pytest.mark.parametrize("name", ["speculative", "mcsd", "dsbd"])
def test_the_page_holds_every_draft(name: str) -> None:
    hostile = "</script><!--\u2028&"
    _, found = explained({"name": name}, 3)
    found, result = replace(found, words=lambda tokens: hostile * len(tokens)), found.result
    data, text = found.document, found.html
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert held is not None and not re.search("[<>&\u2028]", held[1]) and json.loads(held[1]) == data
    frame = found._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"') and frame.count("<") == 2  # all else is escaped
    assert [token for entry in data["rounds"] for token in entry["tokens"]] == [[hostile, k] for k in result.kinds]
    assert "".join(piece for entry in data["rounds"] for piece, _ in entry["pieces"]) == "".join(
        f"<{token}>"
        for token in result.tokens  # without a tokenizer: ids
    )
    assert all(entry["drafted"] >= entry["wasted"] for entry in data["rounds"])
    assert sum(entry["wasted"] for entry in data["rounds"]) > 0

    def count(nodes: list[dict[str, Any]]) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in nodes:
            for fate in node["fates"]:
                found[fate["fate"]] += fate["times"]
            found += count(node["children"])
        return found

    for entry, round_ in zip(data["rounds"], result.rounds, strict=True):
        fates = count(entry["roots"])
        drafts = sum(
            fates[fate] for fate in ("accepted", "rejected", "discarded", "unreached", "not reached", "cut off")
        )
        assert drafts >= entry["drafted"] and (not round_.layers or entry["layers"])
        if name != "dsbd":
            drafts -= round_.depth_accepted >= len(round_.tokens)  # the token of the target is cut off, too
            assert drafts == round_.draws and entry["drafted"] == round_.drafted


def test_the_command(command: Command, pair: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    flags = ("Once upon a time", *pair, "--max-new-tokens", 8, "--method", "mcsd", "--set", "tree=3,2")
    done = command("explain", *flags, "--html", out)
    answer = command("generate", *flags).out
    assert done.code == 0 and done.out.rstrip("\n") == answer.rstrip("\n") and done.err == f"{out}\n"
    text = out.read_text("utf-8")
    assert "{{" not in text and not re.findall(r"""(?:src|href)=|@import|url\(""", text)
    assert "://" not in text and "color-scheme: light dark" in text and "max-width: 700px" in text
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert script is not None and not re.search(r"^(import|export) ", script[1], re.MULTILINE)
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}'" in text  # no other script may run
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["metrics"]["emitted"] == 8 and data["rounds"] and data["method"] == "mcsd tree=3,2"
    assert "".join(piece for entry in data["rounds"] for piece, _ in entry["pieces"]) == answer.rstrip("\n")
    drawn = command("explain", *flags)
    assert drawn.code == 0 and "Round 1" in drawn.out and "accept" in drawn.out
    assert command("explain", "x", *pair, "--method", "mcds").code == 2


def test_a_page_that_cannot_be_written_loses_no_answer(
    command: Command, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("Once", *pair, "--max-new-tokens", 3)
    (tmp_path / "file").touch()
    for bad in (tmp_path, tmp_path / "file" / "x.html"):  # told before a model is loaded
        refused = command("explain", "Once", "--target", tmp_path / "none", "--html", bad)
        assert refused.code == 2 and str(bad) in refused.err and refused.err.count("\n") == 1
    out = tmp_path / "new" / "x.html"
    answer = command("generate", *flags).out

    def full(path: Path, *given: Any, **more: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = command("explain", *flags, "--html", out)
    assert done.code == 2 and done.out.rstrip("\n") == answer.rstrip("\n") and not list(out.parent.iterdir())
    assert done.err == f"error: --html {out} was not written: No space left on device; make room or name another\n"


def test_an_explanation_is_short_to_look_at_and_whole_as_text() -> None:
    engine, found = explained({"name": "mcsd", "tree": [4, 2, 2, 1]}, 3)
    assert repr(found) == f"Explanation({found.result.text[:40]!r}, {len(found.trees)} rounds)"
    assert str(found) == found.text == "\n".join(found.lines(80)) and "Round 1" in found.text
    assert "'<1>'" in found.text  # without a tokenizer tokens are shown by their ids
    with pytest.raises(RequestError, match="max_new_tokens"):
        engine.explain([1], max_new_tokens=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_column_of_numbers_has_a_heading(temperature: float) -> None:
    """Greedy rounds have p and q, but nothing was tossed for."""
    _, found = explained({"name": "speculative", "gamma": 4, "verify": "rejection"}, 1, temperature)
    heads = next(line for line in found.lines() if line.startswith("  after")).split("'")[-1].split()
    drawn = [re.search(r"rejected +(.*)", line) for line in found.lines() if "  - " in line]
    assert heads == ["p", "q", "accept"][: 2 + bool(temperature)]
    assert {len(numbers[1].split()) for numbers in drawn if numbers and "a draft" not in numbers[0]} == {len(heads)}


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "a"), ("there lived a sailor called", "…a sailor called"), ("x" * 30, "…" + "x" * 20)],
)
def test_a_round_begins_behind_whole_words(text: str, shown: str) -> None:
    assert last_words(text) == shown


def test_the_page_follows_the_beams() -> None:
    """After each round, what a hypothesis has beyond the shared text, most likely first; at the end the answer."""
    _, found = explained({"name": "dsbd", "width": 3, "n_best": 2, "depth": "fixed"}, 2)
    data = found.document
    assert [beam["score"] for beam in data["best"]] == [beam.log_likelihood for beam in found.result.beams]
    for entry, round_ in zip(data["rounds"], found.result.rounds, strict=True):
        scores = [beam["score"] for beam in entry["beams"]]
        assert scores == sorted(scores, reverse=True)
        assert sum(beam["times"] for beam in entry["beams"]) == len(round_.roots)
    assert any(len(entry["beams"]) > 1 for entry in data["rounds"])
    assert not any(entry["beams"] for entry in explained({"name": "mcsd"}, 2)[1].document["rounds"])
