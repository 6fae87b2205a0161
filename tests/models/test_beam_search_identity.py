"""Beam search is what Hugging Face's is; the drafted form repeats the plain one, token for token and score for score.

test_random_beam_requests.py compares both with a naive search on random tabular models. Where definitions differ from
`generate(num_beams=...)`: it sums in float32 and breaks ties by its own top-k; stop strings are not hypotheses' ends
there but a criterion for the batch; a width of 1 is greedy decoding there, without a pool of finished hypotheses.
"""

import itertools
import re
from collections import Counter
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import VOCAB, write
from covering import covering

import draftwood
from draftwood import Engine
from draftwood.corpus import DOMAINS, documents
from draftwood.models.checkpoints import checkpoint

EXACTNESS = Path(__file__).parents[2] / "docs" / "exactness.md"
PROMPTS = [[3, 94, 17, 17, 60, 5], [41, 8], [77, 2, 29, 29, 11]]
ENDS = {"often": list(range(0, VOCAB, 3)), "seldom": [5, 17, 29, 40, 41, 60, 66, 72, 80, 94]}


def engine_and_reference(directory: Path) -> tuple[Engine, Any]:
    """The same random weights here and there, and a draft model of other weights."""
    model = write(directory / "target", seed=3).double()
    write(directory / "draft", seed=4)
    target, draft = (checkpoint.load(directory / name, "float64") for name in ("target", "draft"))
    return Engine(target, [draft]), model


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Any]:
    return engine_and_reference(tmp_path_factory.mktemp("beams"))


def hugging_faces(
    model: Any, prompt: list[int], end: list[int], width: int, limit: int, **options: Any
) -> list[tuple[list[int], float]]:
    """(tokens, score) of its `width` hypotheses, best first."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=VOCAB - 1,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    answers = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        tokens = row[len(prompt) :]
        length = next((i + 1 for i, token in enumerate(tokens) if token in end), len(tokens))
        answers.append((tokens[:length], score))
    return answers


OPTIONS = ([1.0, 0.0, 2.0, -0.5], [False, True, "never"], list(ENDS))


@pytest.mark.some(7)
@pytest.mark.parametrize(("length_penalty", "early_stopping", "ends"), covering(*OPTIONS))
def test_beam_search_is_hugging_faces(
    pair: tuple[Engine, Any], length_penalty: float, early_stopping: bool | str, ends: str
) -> None:
    """Hypotheses that end and that are cut by the limit, in one list."""
    sizes = zip(PROMPTS, ((4, 12), (2, 9), (4, 5)), strict=True)
    same_as_hugging_faces(pair, list(sizes), ENDS[ends], length_penalty, early_stopping)


@pytest.mark.slow
@pytest.mark.parametrize(("length_penalty", "early_stopping", "ends"), list(itertools.product(*OPTIONS)))
def test_beam_search_is_hugging_faces_for_every_prompt_and_size(
    pair: tuple[Engine, Any], length_penalty: float, early_stopping: bool | str, ends: str
) -> None:
    sizes = list(itertools.product(PROMPTS, ((2, 9), (4, 5), (4, 12))))
    ended, cut = same_as_hugging_faces(pair, sizes, ENDS[ends], length_penalty, early_stopping)
    assert ended > 0 and (cut > 0 or length_penalty <= 0 or early_stopping is True)


def same_as_hugging_faces(
    pair: tuple[Engine, Any],
    sizes: list[tuple[list[int], tuple[int, int]]],
    end: list[int],
    length_penalty: float,
    early_stopping: bool | str,
) -> tuple[int, int]:
    """Compare for prompts with (width, limit); how many hypotheses had ended, and how many were cut."""
    loaded, model = pair
    engine = Engine(loaded.target, loaded.drafts, end_tokens=frozenset(end))
    options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    reasons: Counter[str] = Counter()
    for prompt, (width, limit) in sizes:
        method = {"width": width, "n_best": width, **options}
        wanted = hugging_faces(model, prompt, end, width, limit, **options)
        plain = engine.generate(prompt, {"name": "beam-search", **method}, max_new_tokens=limit)
        drafted = {"name": "speculative-beam-search", "gamma": 3, "draft_width": 6, **method}
        for result in (plain, engine.generate(prompt, drafted, max_new_tokens=limit)):
            assert [beam.tokens for beam in result.beams] == [tokens for tokens, _ in wanted]
            assert [beam.score for beam in result.beams] == pytest.approx([s for _, s in wanted], abs=1e-4)
        reasons.update(beam.finish_reason for beam in plain.beams)
    return reasons["eos"], reasons["length"]


# -- the shipped pair on held-out prompts -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact_engine() -> Engine:
    """float64: no two different sums of the same numbers come near a tie."""
    return draftwood.load(dtype="float64")


def held_out(count: int) -> list[str]:
    """Prompts of all domains in turn."""
    each = -(-count // len(DOMAINS))
    rows = zip_longest(*([d.prompt for d in islice(documents(name, "held-out", seed=8), each)] for name in DOMAINS))
    return [prompt for row in rows for prompt in row if prompt is not None][:count]


def compare(engine: Engine, prompt: str, width: int, gamma: int, draft_width: int, limit: int) -> tuple[int, int]:
    """Both forms give the same hypotheses; their rounds."""
    options = {"width": width, "n_best": width}
    plain = engine.generate(prompt, {"name": "beam-search", **options}, max_new_tokens=limit)
    method = {"name": "speculative-beam-search", "gamma": gamma, "draft_width": draft_width, **options}
    drafted = engine.generate(prompt, method, max_new_tokens=limit)
    assert [beam.tokens for beam in drafted.beams] == [beam.tokens for beam in plain.beams]
    assert [beam.score for beam in drafted.beams] == pytest.approx([beam.score for beam in plain.beams], abs=1e-9)
    assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
    return len(drafted.rounds), len(plain.rounds)


def test_edits_are_made_before_the_softmax(pair: tuple[Engine, Any]) -> None:
    """Hugging Face makes them behind it; on a model whose own logits are so edited it finds what is found here."""
    engine, model = pair
    bias = {7: 2.0, 30: -1.5, 41: 1.0}
    for prompt in PROMPTS:
        result = engine.generate(
            prompt, {"name": "beam-search", "width": 4, "n_best": 4}, {"logit_bias": bias}, 8, stop_token_ids=[5, 17]
        )
        found = [(beam.tokens, pytest.approx(beam.score, abs=1e-5)) for beam in result.beams]
        behind = hugging_faces(model, prompt, [5, 17], 4, 8, sequence_bias={(i,): value for i, value in bias.items()})
        assert found != behind
        added = torch.zeros(VOCAB, dtype=torch.float64)
        added[list(bias)] = torch.tensor(list(bias.values()), dtype=torch.float64)
        hook = model.lm_head.register_forward_hook(lambda head, given, logits, added=added: logits + added)
        try:
            before = hugging_faces(model, prompt, [5, 17], 4, 8)
        finally:
            hook.remove()
        assert found == before


@pytest.mark.slow
def test_drafted_search_repeats_plain_search_on_held_out_prompts(exact_engine: Engine) -> None:
    """Two prompts for each width; and drafting saves target forwards."""
    rounds = [
        compare(exact_engine, prompt, (2, 4, 8)[i % 3], 3, (2, 6, 12)[i % 3], 20)
        for i, prompt in enumerate(held_out(6))
    ]
    assert sum(drafted for drafted, _ in rounds) < sum(plain for _, plain in rounds)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4, 8])
def test_drafted_search_repeats_plain_search_on_many_held_out_prompts(exact_engine: Engine, width: int) -> None:
    """docs/exactness.md says of how many, and in which type."""
    said = re.search(r"In (\w+) it does for (\d+) held-out prompts", EXACTNESS.read_text("utf-8").replace("\n", " "))
    assert said and said[1] == "float64" and exact_engine.target.dtype == torch.float64
    rounds = [compare(exact_engine, prompt, width, 3, width + 2, 32) for prompt in held_out(int(said[2]))]
    assert sum(drafted for drafted, _ in rounds) < sum(plain for _, plain in rounds)
