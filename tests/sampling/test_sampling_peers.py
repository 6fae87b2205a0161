"""The warper against Hugging Face's processors: users who switch get the distribution that they had."""

import itertools

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwood import SamplingParams
from draftwood.core.forest import Forest
from draftwood.sampling.distributions import warp
from draftwood.sampling.penalties import Penalties

SETTINGS = list(itertools.product((0.6, 1.0, 1.7), (0, 1, 7), (0.3, 0.9, 1.0), (0.0, 0.05, 0.4)))


@pytest.mark.parametrize("vocab", [11, 600])
def test_truncations_equal_hugging_faces(vocab: int) -> None:
    ids = torch.zeros(5, 1, dtype=torch.int64)
    for seed, (temperature, top_k, top_p, min_p) in enumerate(SETTINGS):
        logits = 2 * torch.randn(5, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        theirs = TemperatureLogitsWarper(temperature)(ids, logits)
        if top_k:
            theirs = TopKLogitsWarper(top_k)(ids, theirs)
        if top_p < 1:
            theirs = TopPLogitsWarper(top_p)(ids, theirs)
        if min_p:
            theirs = MinPLogitsWarper(min_p)(ids, theirs)
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        torch.testing.assert_close(warp(logits, params), theirs.softmax(-1), atol=1e-12, rtol=1e-9)


def test_repetition_penalty_equals_hugging_faces() -> None:
    prompt = [3, 1, 4, 1, 5]
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(1))
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt]), logits.clone())
    penalties = Penalties(SamplingParams(repetition_penalty=1.3), 9, len(prompt), torch.device("cpu"))
    torch.testing.assert_close(penalties(logits, Forest.from_prompt(prompt), [0]), theirs)
