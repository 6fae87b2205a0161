"""Certificates of servers: right ones pass, wrong ones fail in the check that is meant, others say what is missing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spoken_server import Table, speaking

from draftwood.certify.checks import Check
from draftwood.certify.server import Limits, Server, ServerBudget, ServerCertificate, certify_server, page
from draftwood.certify.server import client as clients
from draftwood.certify.server.claims import REST, LawOptions, claimed
from draftwood.certify.server.client import ServerAnswer
from draftwood.certify.server.evidence import (
    FLATTER,
    MAX_MISSED,
    POWER,
    REPLICAS,
    SHARPER,
    ClaimedLaw,
    Evidence,
    TwoSamples,
)
from draftwood.certify.server.features import choices_check
from draftwood.certify.server.greedy import first_difference
from draftwood.certify.server.run import jobs
from draftwood.certify.server.subject import Subject, prepare
from draftwood.errors import ConfigurationError
from draftwood.util.jsonl import Journal

PROMPTS = ("the cat sat on the cat sat on", "a red hat and a red", "us to us to", "now ran.")
FEW = ServerBudget(samples=24, greedy_tokens=24, precision="float32")

TINY = FEW.model_copy(update={"samples": 8, "greedy_tokens": 12})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PAUSE", 0.0)


def rows(table: Table, *names: str, against: Table | None = None, samples: int = 80) -> dict[str, Check]:
    """Some checks of a table's server."""
    budget = FEW.model_copy(update={"samples": samples})
    with speaking(table) as url, speaking(against or Table()) as other:
        subject = prepare(Server(url), budget, PROMPTS)
        if against is not None:
            subject.rival = Server(other, limits=Limits())
            prepare(subject.rival, budget, PROMPTS)
        found = [check for name, job in jobs(subject) if name in names for check in job(lambda count=1: None)]
        for server in (subject.server, subject.rival):
            if isinstance(server, Server):
                server.close()
    return {check.name: check for check in found}


def test_a_right_server_passes(tmp_path: Path) -> None:
    with speaking(Table()) as url:
        found = certify_server(Server(url), prompts=PROMPTS, budget=FEW)
    assert found.verdict == "PASS" and found.complete and len(found.checks) == 17
    assert {check.verdict for check in found.checks} == {"PASS"}, [c for c in found.checks if c.verdict != "PASS"]
    assert found.server["logprobs_are"] == "before temperature" and found.server["seeds"]
    assert "hold several tokens" in found.drafted
    document = json.loads(json.dumps(found.as_dict()))
    text = page(document)
    assert "sampled tokens" in text and text.count('class="PASS"') == 18 and "<script" not in text


WRONG = {
    "drafts accepted": ("sampled tokens", "sampled tokens"),
    "temperature twice": ("temperature 0.6", "temperature 0.6"),
    "truncation after acceptance": ("top-p", "top-p"),
    "penalties see drafts": ("presence penalty", "presence penalty"),
    "scores of the row before": ("greedy text", "greedy choice by its own log-probabilities"),
    "second best": ("greedy text", "greedy choice by its own log-probabilities"),
    "not deterministic": ("greedy text", "greedy text, repeated and in batches"),
    "stop after the round": ("stop strings", "stop strings"),
    "one too many": ("max_tokens", "max_tokens"),
    "seeds do not repeat": ("seeds", "seeds"),
    "seeds without effect": ("seeds", "seeds"),
    "equal choices": ("n", "n"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_server_fails(wrong: str) -> None:
    job, name = WRONG[wrong]
    found = rows(Table(frozenset({wrong})), "greedy text", job)
    assert found[name].verdict == "FAIL", found


def test_other_bits_of_weights_are_told_apart_from_ties() -> None:
    """The same weights with rounding: ties; other bits of them: another model, whatever the texts."""
    names = "greedy text", "against the other"
    same = rows(Table(), *names, against=Table(shift=1e-4))
    assert same["greedy text, against the other"].verdict == same["weights, against the other"].verdict == "PASS"
    other = rows(Table(), *names, against=Table(shift=0.05))
    assert other["weights, against the other"].verdict == "FAIL"
    assert "other bits" in other["weights, against the other"].reason
    foreign = rows(Table(), *names, against=Table(other_tokens=3))
    assert {check.verdict for name, check in foreign.items() if "other" in name} == {"N/A"}


def test_another_servers_continuations() -> None:
    name = "continuations, against the other"
    few = rows(Table(), name, against=Table(), samples=24)[name]
    assert few.verdict == "N/A" and "--samples" in few.reason
    same = rows(Table(), name, against=Table(), samples=160)[name]
    assert same.verdict == "PASS" and same.figures["total_variation_seen"] < 0.5
    found = rows(Table(), name, against=Table(shift=2.0), samples=160)[name]
    assert found.verdict == "FAIL" and found.figures["seen_after_pairs"] < 160


def test_log_probabilities_after_temperature_are_understood() -> None:
    found = rows(Table(processed=True), "temperature 0.6", "presence penalty")
    assert {check.verdict for check in found.values()} == {"PASS"}
    wrong = rows(Table(frozenset({"temperature twice"}), processed=True), "temperature 0.6")
    assert wrong["temperature 0.6"].verdict in ("FAIL", "N/A")


def test_a_server_without_seeds_is_asked_anew_for_each_of_several_texts() -> None:
    """Kept answers would count as evidence once more each: a right server failed."""
    law, random = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.random.default_rng(0)
    names = [" a", " b", " c", " d", " e"]
    top = dict(zip(names, np.log(law).tolist(), strict=True))
    asked: list[int] = []

    def answer(fields: dict[str, Any]) -> list[ServerAnswer]:
        asked.append(fields["n"])
        drawn = [[names[i] for i in random.choice(5, fields["max_tokens"], p=law)] for _ in range(fields["n"])]
        return [ServerAnswer("".join(t), t, [top[x] for x in t], [dict(top)] * len(t), "length") for t in drawn]

    server = Server("http://localhost:1")
    server._completion = answer  # type: ignore[method-assign,assignment]
    subject = Subject(server, ServerBudget(), list(PROMPTS), count=5, raw=True, seeds=False)
    check = choices_check(subject, 21, lambda count=1: None)
    assert check.verdict == "PASS" and len(asked) == 50


def test_what_is_not_offered_is_named() -> None:
    bare = Table(offered=frozenset())
    with speaking(bare) as url:
        found = certify_server(Server(url), prompts=PROMPTS, budget=FEW)
    verdicts = {check.name: check for check in found.checks}
    assert verdicts["sampled tokens"].verdict == "N/A" and "no log-probabilities" in verdicts["sampled tokens"].reason
    assert verdicts["seeds"].verdict == "N/A" and verdicts["max_tokens"].verdict == "PASS"
    assert not any("seed" in body or "top_k" in body for body in bare.bodies)
    with speaking(Table(offered=frozenset({"logprobs", "seed"}))) as url:
        some = {c.name: c for c in certify_server(Server(url), prompts=PROMPTS, budget=FEW).checks}
    assert some["sampled tokens"].verdict == some["top-p"].verdict == "PASS"
    assert "unknown field top_k" in some["top-k"].reason and "not offered" in some["logit_bias"].reason


def test_a_server_that_dies_keeps_what_was_found() -> None:
    with speaking(Table(dies_after=80)) as url:
        found = certify_server(Server(url), prompts=PROMPTS, budget=TINY)
    assert not found.complete and found.verdict == "PASS" and "does not answer" in found.checks[-1].reason
    assert found.checks[0].verdict == "PASS" and len(found.checks) < 10


def test_bounds_and_the_journal(tmp_path: Path) -> None:
    """A run that a bound stopped goes on where it was; a whole one asks nothing again."""

    def run(table: Table, limits: Limits) -> ServerCertificate:
        with Journal(tmp_path / "answers.jsonl") as journal:
            return certify_server(Server(url, limits=limits, journal=journal), prompts=PROMPTS, budget=TINY)

    table = Table(busy=2)
    with speaking(table) as url:
        first = run(table, Limits(requests=60))
        assert not first.complete and first.requests < 60 and "--max-requests" in first.checks[-1].reason
        whole = run(table, Limits())
        asked = table.asked
        again = run(table, Limits())
    assert whole.complete and again.checks == whole.checks
    assert table.asked - asked <= 4  # what it lists and its counters


def test_time_is_bounded() -> None:
    with speaking(Table()) as url:
        server = Server(url, limits=Limits(rate=1000.0))

        def late(check: str, requests: int) -> bool:
            server.limits.seconds = 0 if check == "sampled tokens" else 1000
            return True

        found = certify_server(server, prompts=PROMPTS, budget=TINY, progress=late)
    assert not found.complete and any("--max-seconds" in check.reason for check in found.checks)


def test_the_command(command: Any, tmp_path: Path) -> None:
    out, html = tmp_path / "certificate.json", tmp_path / "certificate.html"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    few = ("--prompts", prompts, "--samples", 8, "--greedy-tokens", 12, "--precision", "float32")
    with speaking(Table()) as url:
        done = command("certify", "--url", url, *few, "--out", out, "--page", html)
        assert done.code == 0 and re.search(r"verdict: PASS after \d+ requests", done.out), done
        assert max(map(len, done.out.splitlines())) <= 80
        assert json.loads(out.read_text())["verdict"] == "PASS" and "PASS" in html.read_text()
        assert "is no check 'top-q' (did you mean 'top-p'?)" in command("certify", "--url", url, "--skip", "top-q").err
        assert command("certify", "--url", url, "--model", "other").err.startswith("error: " + url + " has no model")
    with speaking(Table(frozenset({"one too many"}))) as url:
        assert command("certify", "--url", url, *few, "--json").code == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--against", "http://localhost:1"), "--against is for a server; give its --url, too"),
        (("--url", "localhost:8000"), "give one such as http://localhost:8000"),
        (("--url", "http://127.0.0.1:9", "--method", "speculative"), "leave --method, --set and --all out"),
        (("--url", "http://127.0.0.1:9"), "does not answer"),
    ],
)
def test_bad_input(command: Any, flags: tuple[str, ...], sentence: str) -> None:
    done = command("certify", *flags)
    assert done.code == 2 and sentence in done.err and len(done.err.splitlines()) == 1


def test_a_server_of_conversations_alone() -> None:
    """Its laws are tested; what continues a text token by token is not."""
    left = ("streams", "stop strings", "n", "seeds", "top-k", "min-p", "frequency penalty")
    with speaking(Table(chats=True)) as url:
        found = certify_server(Server(url), prompts=PROMPTS, budget=FEW, skip=left)
    verdicts = {check.name: check for check in found.checks}
    assert found.server["endpoint"] == "chat/completions" and found.complete
    assert verdicts["sampled tokens"].verdict == verdicts["temperature 0.6"].verdict == "PASS"
    assert "a conversation" in verdicts["log-probabilities with drafts and without"].reason


def test_checks_that_are_left_out_pass_nothing() -> None:
    with speaking(Table()) as url:
        left = [name for name, _ in jobs(Subject(Server(url), TINY, PROMPTS)) if name != "seeds"]
        found = certify_server(Server(url), prompts=PROMPTS, budget=TINY, skip=left)
        bare = certify_server(Server(url), prompts=PROMPTS, budget=TINY, skip=[n for n in left if n != "streams"])
    assert [check.name for check in found.checks if check.verdict != "N/A"] == ["seeds"]
    assert "no greedy texts" in next(check for check in bare.checks if check.name == "streams").reason


def test_what_completes_nothing_is_no_server() -> None:
    with speaking(Table()) as url, pytest.raises(ConfigurationError, match="completes no text"):
        certify_server(Server(f"{url}/elsewhere"), prompts=PROMPTS, budget=TINY)


# -- laws and evidence -----------------------------------------------------------------------------------------------

TOP = {"a": np.log(0.4), "b": np.log(0.3), "c": np.log(0.1), "d": np.log(0.05)}


def law_of(asked: LawOptions, prompt: str = "", before: tuple[str, ...] = ()) -> dict[str, float]:
    found = claimed(TOP, 4, asked, prompt, before)
    assert found is not None
    return dict(zip(found[0].names, found[0].p.tolist(), strict=True))


def test_claims() -> None:
    assert law_of(LawOptions()) == pytest.approx({"a": 0.4, "b": 0.3, REST: 0.15, "c": 0.1, "d": 0.05})
    assert law_of(LawOptions(top_k=2)) == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    assert law_of(LawOptions(top_p=0.6)) == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    assert law_of(LawOptions(min_p=0.2)) == pytest.approx({"a": 0.5, "b": 0.375, "c": 0.125})
    assert law_of(LawOptions(temperature=0.5)) == pytest.approx(
        {k: v / 0.2625 for k, v in {"a": 0.16, "b": 0.09, "c": 0.01, "d": 0.0025}.items()}
    )
    penalised = law_of(LawOptions(presence_penalty=1.0, frequency_penalty=0.5), "xd", ("a", "a"))
    assert penalised == pytest.approx({"b": 0.3 / 0.45413, "c": 0.1 / 0.45413, "a": 0.05413 / 0.45413}, rel=1e-3)
    assert law_of(LawOptions(bias={"c": np.log(4)}))["c"] == pytest.approx(0.4 / 1.15)
    assert claimed(TOP, 4, LawOptions(top_p=0.7001), "", ()) is None  # rounding may decide
    ends = claimed({**TOP, "</s>": np.log(0.05), "": np.log(0.05)}, 6, LawOptions(), "", ())
    assert ends is not None and ends[0].p[0] == pytest.approx(0.4 / 0.9) and "" not in ends[0].names
    assert claimed({"a": 0.0}, 1, LawOptions(temperature=2), "", ()) is None  # no choice


def test_evidence_seldom_errs_and_says_what_it_sees() -> None:
    """Of servers that follow their laws few are accused, at any time; one as wrong as it says it sees nearly always."""
    random = np.random.default_rng(1)
    laws = [
        ClaimedLaw("abcd", np.array(p)) for p in ([0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.5, 0.45, 0.04, 0.01])
    ]

    def accused(power: float, tokens: int) -> Evidence:
        evidence = Evidence(risk=0.05)
        for i in range(tokens):
            law = laws[i % 3]
            true = law.p**power / (law.p**power).sum()
            evidence.add(law, "abcd"[random.choice(4, p=true)], i % 3)
        return evidence

    assert sum(accused(1.0, 100).against for _ in range(40)) <= 5
    assert sum(accused(2.0, 150).against for _ in range(10)) >= 9
    by_chance = sum(math.comb(REPLICAS, k) * (1 - POWER) ** k * POWER ** (REPLICAS - k) for k in range(MAX_MISSED + 1))
    assert by_chance * len(SHARPER + FLATTER) < 0.05  # that a distance is named which is seen less often
    seen = accused(1.0, 300).power()
    assert seen is not None and 0.02 < seen < 0.3
    none = Evidence()
    none.add(laws[0], "z", 0)
    assert none.against and none.impossible == "z" and none.figures()["e_value_log10"] is None


def test_two_samples_of_one_law_are_not_told_apart() -> None:
    random = np.random.default_rng(2)

    def pairs(other: list[float], count: int) -> TwoSamples:
        test = TwoSamples(1, risk=0.05)
        for _ in range(count):
            test.add(0, [random.choice(3, p=[0.5, 0.3, 0.2])], [random.choice(3, p=other)])
        return test

    assert sum(pairs([0.5, 0.3, 0.2], 100).seen_after is not None for _ in range(60)) <= 6
    assert sum(pairs([0.2, 0.3, 0.5], 200).seen_after is not None for _ in range(10)) >= 9


def test_where_texts_part() -> None:
    def answer(words: str, *gaps: float) -> ServerAnswer:
        top = [{word: -0.5, "other": -0.5 - gap, "x": -0.6} for word, gap in zip(words.split(), gaps, strict=True)]
        return ServerAnswer(words, words.split(), [-0.5] * len(top), top, "length")

    one, other = answer("a b", 1, 1), answer("a x", 1, 1)
    found = first_difference("", one, other)
    assert found is not None and found.position == 1 and found.gaps[0] == pytest.approx(0.1)
    assert found.moved == pytest.approx(1.1 + 0.0) or found.moved >= 0.1
    assert first_difference("", one, one) is None


def test_a_subject_keeps_to_one_host() -> None:
    """No other host is asked, and a redirect is an answer that is no completion."""
    server = Server("http://127.0.0.1:9/v1/")
    assert isinstance(Subject(server, FEW, PROMPTS), Subject) and server.name == "http://127.0.0.1:9"
    for address in ("ftp://x", "http://user@x", "x:1"):
        with pytest.raises(ConfigurationError):
            Server(address)


def test_streams_that_break_off_are_asked_for_whole() -> None:
    found = rows(Table(frozenset({"streams break"})), "greedy text", "sampled tokens", "streams")
    assert found["sampled tokens"].verdict == "PASS" and "break off" in found["streams"].reason
