"""The certificate passes exact methods and fails wrong ones; the command says so."""

from __future__ import annotations

import itertools
import json
import math
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import METHODS, Engine, Method, SamplingParams, TabularModel
from draftwood.certify import Budget, Certificate, certify, exactness
from draftwood.certify.distances import Sample, chi_square_tail, fit
from draftwood.certify.enumeration import Reused, ScriptedChoices, enumerated, law_of
from draftwood.certify.exactness import rule_check, sampled_check
from draftwood.certify.pair import ModelPair, divergence, greedy_check, logits_after, openings, position_check
from draftwood.certify.small import Case
from draftwood.cli.main import run
from draftwood.eval.provenance import session
from draftwood.sampling.distributions import Streams
from draftwood.verify import tree

SMALL = Budget(runs=4, replays=24, identities=8, seeds=1000)
ENOUGH = Budget(runs=4, replays=400, identities=120, seeds=1000)  # where something seldom happens
FULL = Budget(runs=1000, replays=1000, identities=400)

METHOD_OPTIONS: list[dict[str, Any]] = [  # one of each kind of reference and of drafts
    {"name": "autoregressive"},
    {"name": "speculative", "verify": "coupled"},
    {"name": "speculative", "depth": "beta-ts"},
    {"name": "specinfer", "expansion": [2]},
    {"name": "mcsd", "tree": [2, 1], "replacement": True},
    {"name": "lookup"},
    {"name": "speculative", "gamma": 3, "lookup": True},
    {"name": "mcsd", "tree": [2, 1], "lookup": True},
    {"name": "eesd", "gamma": 2, "lookup": True},
    {"name": "beam-sampling", "width": 2},
    {"name": "dsbd", "width": 1, "draft_width": 2},
    {"name": "beam-search", "width": 3, "early_stopping": True, "length_penalty": 0.5},
    {"name": "speculative-beam-search", "width": 2, "depth": "fixed"},
    {"name": "mcsd-fork", "width": 1, "verify": "longest-root"},
    {"name": "medusa", "tree": [3]},
    {"name": "self-spec"},
    {"name": "eagle", "gamma": 2},
    {"name": "eagle", "width": 2, "gamma": 2},
    {"name": "mtp", "gamma": 2},
    {"name": "dflash", "gamma": 2},
    {"name": "dflash", "width": 2, "gamma": 2},
]
MORE_OPTIONS: list[dict[str, Any]] = [
    {"name": "dsbd", "draft_width": 3, "gamma": 2},
    *(
        {"name": "dsbd", "drafter": each, "draft_width": 3, "gamma": 2}
        for each in ("exit", "eagle", "mtp", "dflash", "skip", "lookup")
    ),
    *(
        {"name": "speculative-beam-search", "drafter": each, "depth": "fixed"}
        for each in ("exit", "eagle", "mtp", "dflash", "skip", "lookup")
    ),
    {"name": "lookup", "drafts": "drawn", "gamma": 2},
    {"name": "speculative", "gamma": 3},
    {"name": "specinfer", "expansion": [2, 1]},
    {"name": "mcsd", "tree": [2, 2]},
    {"name": "mcsd-fork", "width": 2, "gamma": 2},
    {"name": "medusa", "tree": [3, 2]},
    {"name": "eesd", "tree": [2, 2]},
]


def certificate(options: dict[str, Any], budget: Budget) -> Certificate:
    return certify(Method.parse(options), budget=budget)


def nothing() -> None:
    """Nobody watches."""


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "options", [*METHOD_OPTIONS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE_OPTIONS)], ids=str
)
def test_lossless_methods_pass(options: dict[str, Any]) -> None:
    seldom = options.get("verify") == "coupled" or (options["name"] == "dsbd" and "gamma" in options)
    seldom |= options.get("drafter") in ("skip", "eagle", "mtp", "dflash")  # heads rest in the first round
    budget = ENOUGH if seldom else SMALL
    if options.get("drafter") == "dflash":  # marginals: many outcomes
        budget = budget.model_copy(update={"replays": 1000})
    found = certificate(options, budget)
    assert found.verdict == found.checks[0].verdict == "PASS", found.as_dict()
    assert all(check.reason for check in found.checks)


@pytest.mark.slow
def test_rules_that_were_not_exercised_fail_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """However exact the cases were; the reason names the rule, and the figures have counts of the others."""
    options = {"name": "lookup"}
    whole = certificate(options, SMALL)
    rules = whole.checks[0].figures["rules"]
    assert rules["copy accepted"] > 50 and rules["copy rejected"] > 50
    monkeypatch.setattr("draftwood.draft.suffix.FAINT", 2.0)  # lookup proposes nothing
    blind = certificate(options, SMALL)
    assert blind.verdict == "FAIL" and blind.checks[0].figures["worst_total_variation"] < 1e-12
    assert "copy accepted" in blind.checks[0].reason
    assert {"copy accepted", "copy rejected"} <= set(blind.checks[0].figures["rules_not_exercised"])


@pytest.mark.slow
def test_cases_without_enough_outcomes_certify_nothing() -> None:
    found = certificate({"name": "speculative"}, SMALL.model_copy(update={"replays": 1}))
    assert found.verdict == "FAIL"


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_certified(name: str) -> None:
    """With default options and as many cases as the command has."""
    found = certificate({"name": name}, FULL)
    assert found.verdict == "PASS", found.as_dict()


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"name": "mcsd", "tree": [1], "initial": 2}, 0.01),
        ({"name": "dsbd", "one_cache": True, "draft_width": 2, "gamma": 2}, 0.01),
    ],
    ids=str,
)
def test_lossy_methods_are_measured(options: dict[str, Any], least: float) -> None:
    method = Method.parse(options)
    found = rule_check(method, 1, 40, 4, nothing)
    assert found.verdict == "LOSSY"
    assert found.figures["worst_total_variation"] > least
    assert Certificate(method.as_dict(), method.lossless, [found]).verdict == "LOSSY"


# -- wrong methods: see test_mutations.py too ------------------------------------------------------------------------


def wrong_way(p: float, q: float) -> float:
    """min(1, q/p'), as DSBD prints it."""
    return min(1.0, q / p) if p > 0 else 1.0


def test_the_ratio_of_the_paper_fails_in_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "acceptance", wrong_way)
    monkeypatch.setattr("draftwood.verify.beam.acceptance", wrong_way)
    assert (
        sampled_check(Method.parse({"name": "speculative", "gamma": 2, "verify": "rejection"}), 1, 200, nothing).verdict
        == "FAIL"
    )
    beams = {"name": "dsbd", "width": 1, "draft_width": 2, "gamma": 2}
    assert sampled_check(Method.parse(beams), 1, 100, nothing).verdict == "FAIL"


def test_a_method_that_raises_an_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "acceptance", lambda p, q: [][0])
    found = certificate({"name": "speculative", "verify": "rejection"}, SMALL)
    assert found.verdict == "FAIL" and "IndexError" in found.checks[0].reason


def test_a_random_number_that_decides_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Method.parse({"name": "speculative", "gamma": 3}), 3, 4)
    with enumerated(), monkeypatch.context() as patch:
        fresh, held = Streams.uniform, {}

        def stale(streams: Streams, purpose: str) -> Any:
            return fresh(streams, purpose) if purpose != "accept" else held.setdefault("u", fresh(streams, purpose))

        patch.setattr(Streams, "uniform", stale)
        with pytest.raises(Reused):
            case.run()


@pytest.mark.parametrize("shift", [0, 1])
def test_outcomes_that_differ_in_the_last_token_alone_need_no_replay(shift: int) -> None:
    """Unless what was drawn last is not what came last."""
    weights = [[0.0, 2.0, 1.0], [1.0, 1.0, 3.0]]
    replayed: list[int] = []

    def law(closed: bool) -> dict[tuple[int, ...], float]:
        def experiment(choices: ScriptedChoices) -> tuple[int, ...]:
            first = choices.choose(weights[0])
            choices.closed = closed
            return first, (choices.token(weights[1]) + shift) % 3

        steps: list[None] = []
        found = law_of(experiment, advance=lambda: steps.append(None))
        replayed.append(len(steps))
        return found

    assert law(True) == pytest.approx(law(False)) and replayed == [6 if shift else 2, 6]


# -- the pair --------------------------------------------------------------------------------------------------------

VOCAB = 6
TARGET = TabularModel.random(VOCAB, seed=3, order=2, sharpness=2)
PAIR = Engine(TARGET, [TabularModel.random(VOCAB, seed=4, order=2)])
CHAIN = Method.parse({"name": "speculative", "gamma": 3, "verify": "rejection"})


def test_greedy_text_of_a_pair_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[1, 2], [3], [5, 5, 1]]
    pair = ModelPair(PAIR, prompts, budget=Budget(max_new_tokens=12))
    found = greedy_check(pair, CHAIN, nothing)
    assert found.verdict == "PASS" and found.figures["tokens"] == 36 and found.figures["divergences"] == []
    follow = tree.follow
    monkeypatch.setattr(
        tree,
        "follow",
        lambda forest, choice, log_prob: follow(
            forest, lambda node: (choice(node) + (len(forest) - forest.fresh > 2)) % VOCAB, log_prob
        ),
    )
    wrong = greedy_check(pair, CHAIN, nothing)
    assert wrong.verdict == "FAIL" and wrong.figures["bugs"] == 3
    assert all(one["kind"] == "bug" and one["margin"] > one["bound"] for one in wrong.figures["divergences"])


def test_a_tie_is_no_bug() -> None:
    """Two tokens whose logits differ by less than rounding may do, and two that do not."""
    near = TabularModel(lambda prefix: [1.0, 1.0 + 1e-8, 0.4], 3)
    engine = Engine(near, names={"dtype": "float32"})
    tie = divergence(engine, 0, [2], [0, 1, 1], [0, 0, 1])
    assert tie is not None and tie.tie and tie.place == 1 and tie.tokens == (1, 0) and 0 < tie.margin < tie.bound
    bug = divergence(engine, 0, [2], [0, 2], [0, 1])
    assert bug is not None and not bug.tie
    short = divergence(engine, 0, [2], [0], [0, 1])
    assert short is not None and not short.tie and short.place == 1
    assert divergence(engine, 0, [2], [0, 1], [0, 1]) is None


def test_logits_are_the_targets() -> None:
    p = torch.tensor(TARGET.law((1, 2, 3)), dtype=torch.float64)
    assert torch.allclose(logits_after(PAIR, [1, 2, 3]).softmax(-1), p / p.sum())


@pytest.mark.parametrize(
    "options", [{"name": "speculative", "gamma": 3, "verify": "rejection"}, {"name": "dsbd", "draft_width": 4}], ids=str
)
def test_sampled_tokens_of_a_pair(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token up to the place given those before; a draft whose tokens are taken for the target's is found."""
    method, params = Method.parse(options), SamplingParams(temperature=0.8)
    pair = ModelPair(PAIR, [[1, 2]], params, Budget(position=2, pair_runs=240))
    found = position_check(pair, method, nothing)
    assert found.verdict == "PASS"
    assert [one["position"] for one in found.figures["positions"]] == ([0] if options["name"] == "dsbd" else [0, 1, 2])
    monkeypatch.setattr(tree, "acceptance", lambda p, q: 1.0)
    monkeypatch.setattr("draftwood.verify.beam.acceptance", lambda p, q: 1.0)
    assert position_check(pair, method, nothing).verdict == "FAIL"


@pytest.mark.parametrize("options", ["autoregressive", CHAIN, {"name": "dsbd", "draft_width": 4}], ids=str)
def test_generations_of_a_pair_are_those_of_their_seeds(options: Any) -> None:
    method, params = Method.parse(options), SamplingParams(temperature=0.8)
    found = sorted([round_.tokens for round_ in rounds] for rounds in openings(PAIR, [1, 2], method, params, 12, 3))
    alone = (PAIR.generate([1, 2], method, params, 5, seed=seed) for seed in range(12))
    assert found == sorted([round_.tokens for round_ in result.rounds] for result in alone)
    assert not PAIR.scheduler.busy


def test_a_law_without_choice_shows_nothing() -> None:
    """Where every token is sure a sample cannot fail, and so it cannot pass; the text is of the least sure token."""
    method = Method.parse({"name": "speculative", "gamma": 3})
    few = Budget(position=2, pair_runs=60)
    sure = position_check(ModelPair(PAIR, [[1, 2]], SamplingParams(top_k=1), few), method, nothing)
    assert sure.verdict == "N/A" and "--prompts" in sure.reason
    found = position_check(ModelPair(PAIR, [[1, 2]], SamplingParams(temperature=0.8), few), method, nothing)
    most = max(one["degrees_of_freedom"] for one in found.figures["positions"])
    assert most > 0 and f" on {most}, " in found.reason


def test_statistics() -> None:
    assert chi_square_tail(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert chi_square_tail(18.307038, 10) == pytest.approx(0.05, abs=1e-6)
    sample: Sample[str] = Sample({"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0})
    sample.counts.update({"a": 60, "b": 20, "c": 20})
    found = fit([sample], 1e-6)
    assert found.distance == pytest.approx(0.1)
    nats = 60 * math.log(1.2) + 20 * math.log(2 / 3)
    assert (found.divergence, found.freedom) == (pytest.approx(nats), 2)
    assert found.p_value == pytest.approx((math.e * nats / 2) ** 2 * math.exp(-nats))
    assert found.holds and found.distance < found.bound < 0.36 and found.ceiling > found.distance
    sample.counts["d"] += 1  # impossible
    assert fit([sample], 1e-6).p_value == 0 and not fit([sample], 1e-6).holds
    with pytest.raises(ValueError, match="no samples"):
        fit([Sample({"a": 1.0})], 0.01)


def test_an_exact_sample_fails_no_more_often_than_the_risk_says() -> None:
    """Every count of 40 draws from a law with a rare outcome, and with a likely one: both tests together."""
    risks = (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    for law in ({"a": 0.85, "b": 0.15}, {"a": 0.6, "b": 0.25, "c": 0.15}, {"a": 0.5, "b": 0.3, "c": 0.16, "d": 0.04}):
        failed = dict.fromkeys(risks, 0.0)
        for counts in itertools.product(range(41), repeat=len(law) - 1):
            if (last := 40 - sum(counts)) < 0:
                continue
            sample = Sample(law, Counter(dict(zip(law, (*counts, last), strict=True))))
            chance = float(math.factorial(40))
            for p, n in zip(law.values(), (*counts, last), strict=True):
                chance *= p**n / math.factorial(n)
            for risk in risks:
                failed[risk] += chance * (not fit([sample], risk).holds)
        assert all(share <= risk for risk, share in failed.items()), failed
        assert failed[0.1] > 1e-4  # and they do see something


def certified(out: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, Any]:
    """Exit code, what was printed and the file of the command, on tabular models alone."""
    with pytest.raises(SystemExit) as left:
        run(["certify", "--no-pair", "--runs", "8", "--replays", "16", "--seeds", "1000", "--out", str(out), *flags])
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().out, json.loads(out.read_text("utf-8"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    out, flags = Path("certificate.json"), ("--method", "speculative", "--set", "gamma=2", "--set", "verify=rejection")
    code, shown, document = certified(out, capsys, *flags)
    assert code == 0 and document["verdict"] == "PASS" and next(iter(document)) == "environment"
    now, then = session(torch.device("cpu")), document["environment"]
    assert then.keys() == now.keys() and all(then[key] == now[key] for key in ("draftwood", "git_commit", "processor"))
    assert max(map(len, shown.splitlines())) <= 80 and "verdict: PASS" in shown
    assert document["certificates"][0]["method"]["gamma"] == 2
    assert document["certificates"][0]["label"] == "speculative gamma=2 verify=rejection"
    counts = document["certificates"][0]["checks"][0]["figures"]["rules"]
    assert counts["drawn draft rejected"] > 5 and f"{counts['drawn draft rejected']:,}" in shown
    assert "drawn draft rejected" in shown
    monkeypatch.setattr(tree, "acceptance", wrong_way)
    code, shown, document = certified(out, capsys, *flags)
    assert code == 1 and document["verdict"] == "FAIL" and "verdict: FAIL" in shown


def test_an_interrupted_command_keeps_what_was_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = exactness.sampled_check

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return sampled(*given)

    monkeypatch.setattr("draftwood.certify.report.sampled_check", interrupted)
    code, shown, document = certified(tmp_path / "a" / "partial.json", capsys, "--method", "autoregressive")
    assert code == 130 and "interrupted" in shown and document["complete"] is False
    assert [check["verdict"] for check in document["certificates"][0]["checks"]] == ["PASS"]


def test_the_path_is_checked_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwood.certify.certify_each", None)  # it is not called
    with pytest.raises(SystemExit) as left:
        run(["certify", "--all", "--out", str(tmp_path)])
    assert left.value.code == 2 and "is a directory" in capsys.readouterr().err
