"""Beams drafted with all that has a distribution after a node: laws, plain beam search's bits, an EAGLE head's rows."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from eagle_heads import config, says, write
from every_method import BLOCK, EAGLE, EXIT, HEADS, TARGET, engine, shortage
from greedy_reference import prompt_of
from native_library import needs_native
from small_decoder import decoder
from tabular import follows, random_heads
from test_beams_end_to_end import END, PROMPT, law_of
from test_beams_exact import ENDLESS, EXACT, Enumerated, distance
from torch import Tensor

from draftwood import ConfigurationError, Engine, GenerationResult, Method, TabularModel
from draftwood.core.forest import TRUNK, Forest
from draftwood.draft import HeadSource, NgramSource
from draftwood.models.heads import eagle
from draftwood.runtime.session import Answer, Run

DRAFTERS = ("exit", "eagle", "dflash", "medusa", "skip", "lookup")
SEARCH: dict[str, Any] = {"width": 3, "n_best": 3, "length_penalty": 0.5}


# -- laws of dsbd ------------------------------------------------------------------------------------------------------

CELLS: list[tuple[dict[str, Any], dict[str, Any], int, int, frozenset[int]]] = [
    ({"width": 1, "draft_width": 2, "gamma": 2}, {"top_p": 0.8}, 3, 3, END),
    ({"width": 2, "draft_width": 2, "gamma": 1}, {}, 2, 3, END),
    ({"width": 2, "draft_width": 2, "gamma": 2, "replacement": False}, {"presence_penalty": 0.5}, 2, 2, ENDLESS),
    ({"width": 1, "draft_width": 1, "gamma": 3}, {"temperature": 1.4, "min_p": 0.3}, 3, 4, END),
]


@pytest.mark.some(4)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("options", "sampling", "vocab", "tokens", "end"), CELLS[:3], ids=str)
def test_final_beams_follow_beam_sampling(
    drafter: str,
    options: dict[str, Any],
    sampling: dict[str, Any],
    vocab: int,
    tokens: int,
    end: frozenset[int],
    tables: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every draw and coin of all rounds is enumerated."""
    target = TabularModel.random(vocab, seed=31, n_layers=3)
    enumerated = Enumerated(monkeypatch, vocab, end=end, target=target)
    assert distance(enumerated, {**options, "drafter": drafter}, sampling, tokens) < EXACT


@pytest.mark.some(1)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("count", [200, pytest.param(4000, marks=pytest.mark.slow)])
def test_beams_of_whole_generations_follow_beam_sampling(drafter: str, count: int, tables: None) -> None:
    """By samples: rounds of several layers, beams that are kept, requests that run together."""
    options: dict[str, Any] = {"drafter": drafter, "width": 2, "draft_width": 4, "gamma": 3}
    ours = Engine(TabularModel.random(3, seed=11, order=4, n_layers=3), end_tokens=END)
    results = ours.batch(
        [{"prompt": PROMPT, "seed": seed} for seed in range(count)],
        4,
        method={"name": "dsbd", "n_best": 2, **options},
        max_new_tokens=5,
    )
    samples: Any = [tuple(sorted(tuple(beam.tokens) for beam in result.beams)) for result in results]
    law: Any = law_of(options, "plain")
    assert follows(samples, law)
    assert sum(round_.depth_accepted for result in results for round_ in result.rounds) > count / 10


# -- beam search: bits -------------------------------------------------------------------------------------------------


def hypotheses(result: GenerationResult) -> list[tuple[list[int], float, list[float]]]:
    return [(beam.tokens, beam.score, list(beam.logprobs)) for beam in result.beams]


def drafting_engine(method: dict[str, Any]) -> Engine:
    ours = engine()
    models = {"exit": EXIT, "eagle": EAGLE, "dflash": BLOCK, "medusa": HEADS}
    if method["drafter"] in models:
        ours.set_draft_models(method, [models[method["drafter"]]])
    return ours


@pytest.mark.some(3)
@needs_native  # with PyTorch's kernels trees and beams are near plain decoding, see docs/exactness.md
@pytest.mark.parametrize("way", ["alone", "batch", "short"])
@pytest.mark.parametrize("drafter", ("model", *DRAFTERS))
def test_drafted_search_has_the_bits_of_plain_search(drafter: str, way: str) -> None:
    """Hypotheses, scores and log-probabilities, in batches and when requests are put back for want of memory too."""
    method = {"name": "speculative-beam-search", "drafter": drafter, "draft_width": 6, "gamma": 3, **SEARCH}
    ours = drafting_engine(method)
    requests = [{"prompt": prompt_of(1 + 6 * i), "stop_token_ids": [5]} for i in range(4)]
    plain = [ours.generate(**one, method={"name": "beam-search", **SEARCH}, max_new_tokens=18) for one in requests]
    if way == "alone":
        found = [ours.generate(**one, method=method, max_new_tokens=18) for one in requests]
    elif way == "batch":
        found = ours.batch(requests, 3, method=method, max_new_tokens=18)
    else:
        with shortage(0.1, random.Random(2), ours):
            found = ours.batch(requests, 4, method=method, max_new_tokens=18)
        assert ours.scheduler.preempted
    assert [hypotheses(result) for result in found] == [hypotheses(result) for result in plain]
    assert sum(round_.depth_accepted for result in found for round_ in result.rounds) > 2


@pytest.mark.some(3)
@needs_native  # with PyTorch's kernels trees and beams are near plain decoding, see docs/exactness.md
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_beams_do_not_depend_on_the_batch(drafter: str) -> None:
    method = {"name": "dsbd", "drafter": drafter, "draft_width": 4, "gamma": 3, "width": 3, "n_best": 3}
    ours = drafting_engine(method)
    requests = [{"prompt": prompt_of(1 + 9 * i), "seed": i} for i in range(4)]
    options: dict[str, Any] = {"method": method, "max_new_tokens": 14, "stop_token_ids": [5]}
    alone = [hypotheses(ours.generate(**request, **options)) for request in requests]
    assert [hypotheses(result) for result in ours.batch(requests, 3, **options)] == alone
    with shortage(0.1, random.Random(1), ours):
        assert [hypotheses(result) for result in ours.batch(requests, 4, **options)] == alone


# -- what an EAGLE head reads ------------------------------------------------------------------------------------------


@contextmanager
def listening(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[int], list[int], Tensor]]]:
    """(tokens with verified ones before them, drafts behind, logits [V]) of all that a head was asked for."""
    said: list[tuple[list[int], list[int], Tensor]] = []
    answer = HeadSource.answer

    def heard(
        source: HeadSource, forest: Forest, nodes: Sequence[int], hidden: bool = False
    ) -> Generator[Run, Answer, Answer]:
        answered = yield from answer(source, forest, nodes, hidden)
        for node, logits in zip(nodes, answered.logits, strict=True):
            if node < TRUNK:
                said.append((list(forest.trunk), [], logits))
                continue
            drafts: list[int] = []
            while node >= forest.fresh and forest.parent[node] >= forest.fresh:
                drafts.insert(0, forest.token[node])
                node = forest.parent[node]
            said.append((forest.sequence(node), drafts, logits))
        return answered

    patch.setattr(HeadSource, "answer", heard)
    yield said


@pytest.mark.parametrize("way", ["alone", "short"])
def test_a_head_reads_the_targets_states_of_all_verified_tokens(
    way: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the trunk and those that single beams have of their own; behind them the head's."""
    target = decoder(3, torch.float64)
    tensors = write(tmp_path, config())
    ours = Engine(target, [eagle.load(tmp_path, target)])
    method = {"name": "dsbd", "draft_width": 3, "gamma": 2, "width": 2}
    with listening(monkeypatch) as said:
        requests = [{"prompt": prompt_of(2 + 5 * i), "seed": i} for i in range(3)]
        if way == "short":
            with shortage(0.1, random.Random(3), ours):
                ours.batch(requests, 3, method=method, max_new_tokens=10)
        else:
            ours.batch(requests, 1, method=method, max_new_tokens=10)
    assert len(said) > 60 and {len(drafts) for _, drafts, _ in said} >= {0, 1}
    for tokens, drafts, logits in said:
        torch.testing.assert_close(logits, says(config(), tensors, target, tokens, drafts), atol=1e-6, rtol=0)


def test_medusa_heads_are_asked_as_method_medusa_asks_them() -> None:
    """Chains of both methods draft the same tokens, in rounds behind accepted and behind rejected ones."""
    ours = engine()
    heads = random_heads(TARGET.config.hidden_size, TARGET.vocab_size, 3, scale=0.1).float()
    rounds = []
    for method in ({"name": "medusa"}, {"name": "mcsd", "drafter": "medusa"}):
        method = {**method, "tree": [1, 1, 1], "depth": "fixed"}
        ours.set_draft_models(method, [heads])
        result = ours.generate(prompt_of(9), method, {"temperature": 0}, max_new_tokens=20)
        rounds.append([(each.drafted, each.accepted) for each in result.rounds])
    assert rounds[0] == rounds[1] and sum(drafted for drafted, _ in rounds[0]) > 20


# -- n-gram counts -----------------------------------------------------------------------------------------------------


def after(source: NgramSource, forest: Forest, node: int) -> Tensor:
    """Probabilities [V] of the next token."""
    answer = source.answer(forest, [node])
    with pytest.raises(StopIteration) as end:
        next(answer)
    return end.value.value.logits[0].exp()


def test_counts_of_the_longest_match_come_first() -> None:
    """Worked out by hand: 1 2 was followed by 3 and by 4; what was new where it came counts for shorter matches too."""
    forest = Forest.from_prompt([1, 2, 3, 1, 2, 4, 1, 2])  # the root is not read yet, but on the way
    (child,) = forest.propose(forest.roots[0], [4], None)
    source = NgramSource(TabularModel.random(8, seed=1))
    single = (torch.tensor([0, 3, 1, 1, 1, 0, 0, 0], dtype=torch.float64) + 2 / 8) / 8
    torch.testing.assert_close(
        after(source, forest, forest.roots[0]), (torch.tensor([0, 0, 0, 1, 1, 0, 0, 0]) + single) / 3
    )
    below = after(source, forest, child)  # 1 2 4 was followed by 1 alone
    assert int(below.argmax()) == 1 and float(below[1]) > 0.5
    torch.testing.assert_close(below.sum(), torch.tensor(1.0, dtype=torch.float64))


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_head_that_was_loaded_as_a_draft_drafts_beams(tmp_path: Any) -> None:
    """Without a word about it."""
    target = decoder(3, torch.float64)
    write(tmp_path, config())
    ours = Engine(target, [eagle.load(tmp_path, target)])
    for options in ({}, {"drafter": "eagle"}):
        method = {"name": "speculative-beam-search", "depth": "fixed", **SEARCH, **options}
        found = ours.generate(prompt_of(9), method, max_new_tokens=8)
        plain = ours.generate(prompt_of(9), {"name": "beam-search", **SEARCH}, max_new_tokens=8)
        assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in plain.beams]
        assert found.metrics.drafted > 0


@pytest.mark.parametrize("first", [False, True])
def test_methods_for_draft_models_leave_heads_beside_these_alone(first: bool, tmp_path: Any) -> None:
    """They count and take the draft model only, and the head's own method the head, in whichever order both come."""
    target = decoder(3, torch.float64)
    write(tmp_path, config())
    model, head = decoder(4, torch.float64), eagle.load(tmp_path, target)
    ours = Engine(target, [head, model] if first else [model, head])
    for name in ("speculative", "mcsd", "mcsd-fork", "specinfer", "dsbd", "speculative-beam-search"):
        assert list(ours.builder.models_of(ours.method(name))) == [model]
    assert list(ours.builder.models_of(ours.method("eagle"))) == [head]
    method = {"name": "specinfer", "expansion": [1, 1]}
    assert ours.generate(prompt_of(9), method, max_new_tokens=4, ignore_eos=True).metrics.drafted > 0


def test_bad_options_are_refused() -> None:
    for option, drafter in (("exit", "exit"), ("head", "eagle"), ("skip", "skip")):
        with pytest.raises(ConfigurationError, match=f"but drafter is lookup; say drafter={drafter}"):
            Method.parse({"name": "dsbd", "drafter": "lookup", option: "somewhere"})
    with pytest.raises(ConfigurationError, match=r"needs a draft.*=exit, eagle, mtp, dflash, medusa, skip or lookup"):
        Engine(decoder(3)).generate([1, 2], {"name": "speculative-beam-search"}, max_new_tokens=2)
