"""`draftwood explain`: recorded p and q against the rule's own, and a page that holds every draft and needs nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from draftwood import Engine, TabularModel
from draftwood.explain.data import document, noted, script
from draftwood.explain.judging import Judgement, Recorder, record
from draftwood.explain.text import groves_of
from draftwood.results import GenerationResult
from draftwood.train.recording import Recording

METHODS: list[dict[str, Any]] = [
    {"name": "autoregressive"},
    {"name": "speculative", "gamma": 5},
    {"name": "specinfer"},
    {"name": "mcsd"},
    {"name": "mcsd", "replacement": True, "verify": "coupled"},
    {"name": "lookup"},
    {"name": "dsbd", "threshold": 0.3},
    {"name": "beam-search"},
]


def decoded(
    method: dict[str, Any], seed: int, temperature: float = 1.0
) -> tuple[Engine, GenerationResult, list[Judgement]]:
    plain = Engine(
        TabularModel.random(6, seed=seed), [TabularModel.random(6, seed=seed + 50)], end_tokens=frozenset({0})
    )
    recorders: list[Recorder] = []
    engine = Recording(plain, lambda request, number: recorders.append(record(request)))
    options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": 12, "seed": seed}
    result = engine.generate([1, 2, 1], method, **options)
    assert result.tokens == plain.generate([1, 2, 1], method, **options).tokens  # being watched changes nothing
    return plain, result, recorders[0].judgements


@pytest.mark.parametrize("method", METHODS, ids=lambda method: " ".join(map(str, method.values())))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_was_recorded_is_what_happened(method: dict[str, Any], temperature: float) -> None:
    """Fates that follow from the recorded draws are those that the rounds tell; numbers are probabilities."""
    for seed in range(4):
        _, result, judgements = decoded(method, seed, temperature)
        groves = groves_of(result.rounds, result.prompt_tokens)
        assert len(groves) == len(judgements)
        for grove, judgement in zip(groves, judgements, strict=True):
            before = {outcome: {draw.fate for draw in twig.draws} for outcome, twig in grove.below.items()}
            noted(grove, judgement)
            for outcome, twig in grove.below.items():
                fates = {draw.fate for draw in twig.draws}
                assert fates <= before[outcome] | {"discarded"} and bool(fates & before[outcome]) == bool(fates)
            if judgement.greedy and judgement.chosen is not None:  # the largest: no draft that failed beats it
                (outcome, p), parent = judgement.chosen, judgement.chosen[0][0]
                assert all(draw.chances[0] in (p, None) for draw in grove.twig(outcome).draws)
                failed = [one.p for one in judgement.drafts if one.fate == "rejected" and one.outcome[0] == parent]
                assert method.get("verify") == "coupled" or p >= max(failed, default=0.0)
            for one in judgement.drafts:
                assert 0 <= one.p <= 1 + 1e-6 and 0 <= one.q <= 1 + 1e-6
                if one.fate == "accepted" and temperature and "verify" not in method:
                    assert one.chance == pytest.approx(min(1.0, one.p / one.q)) and one.chance > 0
        if "threshold" in method or method["name"] == "beam-search":
            assert not any(judgement.drafts for judgement in judgements)  # their layers say it
        elif method["name"] not in ("autoregressive", "lookup"):
            assert any(judgement.drafts for judgement in judgements)


def test_p_and_q_are_the_models_own() -> None:
    """The first draft of a chain meets the target's distribution itself; after a rejection p is the residual's."""
    rejected = 0
    for seed in range(6):
        engine, result, judgements = decoded({"name": "speculative", "gamma": 3}, seed)
        before = list(result.prompt_tokens)
        for round_, judgement in zip(result.rounds, judgements, strict=True):
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
    _, result, judgements = decoded({"name": name}, 3)
    groves = groves_of(result.rounds, result.prompt_tokens)
    for grove, judgement in zip(groves, judgements, strict=True):
        noted(grove, judgement)
    hostile = "</script><!--\u2028&"
    data = document(result, groves, judgements, lambda tokens: hostile * len(tokens), frozenset({0}), {})
    text = script(data)
    assert not re.search("[<>&\u2028]", text) and json.loads(text) == data
    assert [token for entry in data["rounds"] for token in entry["tokens"]] == [[hostile, k] for k in result.kinds]
    assert data["sums"]["drafted"] >= data["sums"]["wasted"] > 0

    def count(nodes: list[dict[str, Any]]) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in nodes:
            for fate in node["fates"]:
                found[fate["fate"]] += fate["times"]
            found += count(node["below"])
        return found

    for entry, round_ in zip(data["rounds"], result.rounds, strict=True):
        fates = count(entry["roots"])
        drafts = sum(
            fates[fate] for fate in ("accepted", "rejected", "discarded", "unreached", "not reached", "cut off")
        )
        assert drafts >= entry["drafted"] and (not round_.layers or entry["layers"])
        if name != "dsbd":
            assert drafts == round_.draws and entry["drafted"] == round_.drafted


def test_the_command(command: Command, pair: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    flags = ("Once upon a time", *pair, "--max-new-tokens", 8, "--method", "mcsd", "--set", "tree=3,2")
    done = command("explain", *flags, "--html", out)
    assert done.code == 0 and done.out == f"{out}\n"
    text = out.read_text("utf-8")
    assert "{{" not in text and not re.findall(r"""(?:src|href)=|@import|url\(""", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["sums"]["tokens"] == 8 and data["rounds"] and data["method"] == "mcsd tree=3,2"
    drawn = command("explain", *flags)
    assert drawn.code == 0 and "Round 1" in drawn.out and "accept" in drawn.out
    assert command("explain", "x", *pair, "--method", "mcds").code == 2
