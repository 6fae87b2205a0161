"""With a grammar every method has the law of plain decoding of the target whose forbidden tokens are impossible."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from grammar_words import LETTERS, Language, masked
from tabular import ParallelHead, SequentialBlock, TabularAssistant

from draftwood import Engine, GenerationResult, Method
from draftwood.certify.enumeration import TooLarge, enumerated
from draftwood.certify.references import slow_beam_search
from draftwood.certify.small import END, Case
from draftwood.certify.tables import PROMPT
from draftwood.draft import Proposer
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.grammar import Grammars

REGEX = "c?ab(a|bc|cc?a)*"  # forced tokens at the beginning and in between
LANGUAGE = Language(REGEX)
GRAMMARS = Grammars(LETTERS, END, 4, torch.device("cpu"))  # compiled once
MOST = 60  # replays of a case
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"name": "autoregressive"},
    "chain": {"name": "speculative", "gamma": 2},
    "two drafts": {"name": "specinfer", "expansion": [1, 1]},
    "tree": {"name": "mcsd", "tree": [2, 1], "depth": "fixed"},
    "tree of iid draws": {"name": "mcsd", "tree": [2, 1], "replacement": True},
    "one root of the target": {"name": "mcsd", "tree": [2], "initial": 1, "drafter": "exit"},
    "fork": {"name": "mcsd-fork", "width": 2, "gamma": 2},
    "exit": {"name": "eesd", "gamma": 2},
    "skipped sublayers": {"name": "self-spec", "gamma": 2, "depth": "fixed"},
    "heads": {"name": "medusa", "tree": [2, 1]},
    "lookup": {"name": "lookup", "gamma": 2, "min_ngram": 1},
    "auto": {"name": "speculative", "gamma": 2, "depth": "auto"},
    "chain, token by token": {"name": "speculative", "gamma": 2, "verify": "rejection"},
    "tree, token by token": {"name": "mcsd", "tree": [2, 1], "verify": "rejection"},
    "independent draws, one ratio": {"name": "mcsd", "tree": [2, 1], "replacement": True, "verify": "kseq"},
    "greedy siblings": {"name": "mcsd", "tree": [2, 1], "draws": "greedy", "verify": "rejection"},
    "tree and lookup": {"name": "mcsd", "tree": [2], "lookup": True},
    "drawn n-grams": {"name": "lookup", "drafts": "drawn", "gamma": 2},
    "EAGLE head": {"name": "eagle", "gamma": 2},
    "tree of an EAGLE head": {"name": "eagle", "width": 2, "gamma": 2, "least": 0.0},
    "multi-token prediction": {"name": "mtp", "gamma": 2},
    "block": {"name": "dflash", "gamma": 2},
    "tree of a block": {"name": "dflash", "width": 2, "gamma": 2, "least": 0.0},
    "other tokens": {"name": "speculative", "gamma": 2, "vocabulary": "shared"},
    "text": {"name": "speculative", "gamma": 2, "vocabulary": "text"},
}
BEAM = {"gamma": 1, "draft_width": 2, "width": 1}
BEAMS: dict[str, dict[str, Any]] = {
    "beam sampling": {"name": "beam-sampling", "width": 2, "n_best": 2},
    "beams": {"name": "dsbd", "gamma": 2, "draft_width": 2, "width": 1},
    "two beams": {"name": "dsbd", "gamma": 1, "draft_width": 2, "width": 2, "n_best": 2},
    "distinct beams": {"name": "dsbd", "gamma": 1, "draft_width": 2, "width": 2, "replacement": False, "n_best": 2},
    "dynamic width": {"name": "dsbd", "gamma": 2, "draft_width": 2, "threshold": 0.3, "n_best": 2},
    **{
        f"beams by {drafter}": {"name": "dsbd", "drafter": drafter, **BEAM}
        for drafter in ("exit", "eagle", "mtp", "dflash", "medusa", "skip", "lookup")
    },
    "beams by tokens": {"name": "dsbd", "gamma": 1, "draft_width": 2, "width": 2, "warp": "token", "n_best": 2},
}


@dataclass(slots=True)
class GrammarCase(Case):
    """A case whose texts must be of the language."""

    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        engine = self._engine()
        engine.builder.tokenizer, engine.requests.grammars = LETTERS, GRAMMARS
        method = method or self.method
        return engine.generate(PROMPT, method, self.params, self.tokens, seed, structured={"regex": REGEX})


def case_of(options: dict[str, Any], tokens: int, warp: str = "plain", seed: int = 3) -> tuple[GrammarCase, Any]:
    """A case and what it is judged by: the same of the masked target, without a grammar."""
    method = Method.parse(options)
    case = GrammarCase(method, 4, tokens, warp, seed, 2 if options["name"] == "specinfer" else None)
    twin = Case(method, 4, tokens, warp, seed)
    twin.target = masked(case.target, LANGUAGE, len(PROMPT))
    return case, twin.reference


def distance(options: dict[str, Any], warp: str = "plain") -> float:
    """Total variation between the enumerated law and the reference's, of the longest texts that have few replays."""
    for tokens in (5, 4, 3, 2):
        case, reference = case_of(options, tokens, warp)
        with enumerated() as randomness, suppress(TooLarge):

            def run() -> Any:
                return reference.outcome(case.run())  # noqa: B023

            if randomness.fits(run, MOST):
                return float(reference.distance(randomness.law_of(run, 2 * MOST)))
    raise AssertionError("too many replays")


@pytest.mark.some(6)
@pytest.mark.parametrize("warp", ["plain", pytest.param("penalties", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METHODS)
def test_sequences(name: str, warp: str) -> None:
    assert distance(METHODS[name], warp) < 1e-9


@pytest.mark.some(4)
@pytest.mark.parametrize("warp", ["plain", pytest.param("top-k", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BEAMS)
def test_beams(name: str, warp: str) -> None:
    assert distance(BEAMS[name], warp) < 1e-9


@pytest.mark.parametrize(
    "options",
    [
        {"name": "mtp", "gamma": 2},
        {"name": "mtp", "width": 2, "gamma": 2, "least": 0.0},
        {"name": "dsbd", "drafter": "mtp", "gamma": 1, "draft_width": 2, "width": 1},
    ],
    ids=str,
)
def test_assistants(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "_stand_in", lambda case: TabularAssistant(case.target))
    assert distance(options) < 1e-9


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["dflash", "eagle"])
@pytest.mark.parametrize("options", [{"gamma": 2}, {"width": 2, "gamma": 2, "least": 0.0}, BEAM], ids=str)
def test_other_blocks(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """DSpark's and P-EAGLE's."""
    kind = SequentialBlock if name == "dflash" else ParallelHead
    monkeypatch.setattr(Case, "_stand_in", lambda case: kind(case._random(9)))
    beams = "draft_width" in options
    assert distance({"name": "dsbd", "drafter": name, **options} if beams else {"name": name, **options}) < 1e-9


@pytest.mark.parametrize("name", METHODS)
def test_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    for seed in range(4):
        case, _ = case_of(METHODS[name], 8, "greedy", seed)
        assert case.run().tokens == case.run(Method.parse("autoregressive")).tokens


@pytest.mark.parametrize("name", ["chain", "two drafts", "tree", "fork", "exit", "heads", "lookup"])
def test_coupled_text_is_that_of_plain_decoding(name: str) -> None:
    coupled = {**METHODS[name], "verify": "coupled"}
    for seed in range(4):
        case, _ = case_of(coupled, 8)
        plain = Method.parse({"name": "autoregressive", "verify": "coupled"})
        assert case.run(seed=seed).tokens == case.run(plain, seed=seed).tokens


@pytest.mark.parametrize(
    "options",
    [
        {"name": "beam-search"},
        {"name": "speculative-beam-search", "gamma": 2},
        *(
            {"name": "speculative-beam-search", "drafter": each, "depth": "fixed"}
            for each in ("exit", "eagle", "mtp", "dflash", "medusa", "skip", "lookup")
        ),
    ],
    ids=str,
)
def test_beam_search_is_that_of_the_masked_target(options: dict[str, Any]) -> None:
    for seed in range(4):
        case, _ = case_of({**options, "width": 3, "n_best": 3}, 6, seed=seed)
        target = masked(case.target, LANGUAGE, len(PROMPT))
        wanted, _ = slow_beam_search(target, PROMPT, 3, 6, lambda output: output[-1] in END, 1.0, False, case.params)
        assert [tuple(beam.tokens) for beam in case.run().beams] == [output for output, _, _ in wanted]


@pytest.mark.parametrize("name", ["chain", "tree", "heads", "beams"])
def test_drafts_alone_with_a_grammar_bias_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar in the draft only: texts are not of the language."""
    edited = Distributions.edited

    def unmasked(self: Distributions, nodes: Any) -> Any:
        self._edit = None
        return edited(self, nodes)

    monkeypatch.setattr(Distributions, "edited", unmasked)
    assert distance({**METHODS, **BEAMS}[name]) > 0.1


@pytest.mark.parametrize("name", ["chain", "tree", "heads", "beams"])
def test_a_grammar_in_the_target_alone_keeps_the_law_and_wastes_drafts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**METHODS, **BEAMS}[name]
    case, _ = case_of(options, 8)
    ours = [case.run(seed=seed).metrics for seed in range(12)]
    monkeypatch.setattr(Proposer, "edited", lambda self, forest, nodes, logits: logits)
    monkeypatch.setattr(Proposer, "only", lambda self, forest, node: None)
    assert distance(options) < 1e-9
    theirs = [case.run(seed=seed).metrics for seed in range(12)]
    assert sum(one.rounds for one in ours) < sum(one.rounds for one in theirs)


def test_forced_tokens_need_no_draft_and_no_round() -> None:
    case, _ = case_of(METHODS["chain"], 4)
    engine = Engine(case.target, case.models, LETTERS, END)
    spec = {"choice": ["abcabcabcabc"]}
    for method in ("speculative", "mcsd", "lookup", "autoregressive", "dsbd"):
        result = engine.generate(PROMPT, method, max_new_tokens=40, structured=spec)
        assert result.text == "abc" * 4 and result.finish_reason == "eos", method
        assert result.metrics.rounds == 1 and result.metrics.draft_forwards == 0
        assert set(result.kinds) == {"forced"} and len(result.kinds) == 13
        assert result.metrics.drafted == result.metrics.accepted == result.metrics.attempted == 0
        assert result.metrics.forced == 13
