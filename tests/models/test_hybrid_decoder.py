"""Decoders with attention and recurrent layers: walks of requests against whole texts, alone and beside others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from walks import Walk

from draftwood.core.forest import Forest
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models import partition
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.compiled import Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.heads.skip import SkippedDecoder, every_other
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

KINDS = [
    RecurrentConfig(DELTA, 4, key_heads=2, key_dim=8, value_heads=4, value_dim=8),
    None,
    RecurrentConfig(SSM, 4, key_heads=1, key_dim=8, value_heads=4, value_dim=8, conv_bias=True),
    RecurrentConfig(CONV, 3),
]
LAYERS = per_layer(recurrent=KINDS, attends=[False, True, True, False], window=[0, 6, 0, 0])
CONFIG = DecoderConfig(60, 32, 48, 4, 4, 2, 8, 512, layers=LAYERS)  # the third layer has two mixers side by side


def hybrid(seed: int, dtype: torch.dtype = torch.float32, **knobs: object) -> Decoder:
    model = Decoder(replace(CONFIG, **knobs))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + 0.2 * noise if "norm" in name else 0.3 * noise)
    return model.to(dtype).eval().requires_grad_(False)


def test_forwards_over_a_cache_are_those_of_whole_texts() -> None:
    model = hybrid(0, torch.float64)
    cache = model.new_cache()
    walks = [Walk(model, cache, length, kind, seed) for seed, (length, kind) in enumerate(((9, "tree"), (30, "chain")))]
    for _ in range(6):
        runs = [walk.run() for walk in walks]
        for run, answer in zip(runs, execute(runs), strict=True):
            for node, logits in zip(run.nodes, answer.logits, strict=True):
                whole = model.train_forward(torch.tensor([run.forest.sequence(node)]))[0, -1]
                torch.testing.assert_close(logits, whole, atol=1e-9, rtol=0)
        for walk in walks:
            walk.commit()


@pytest.mark.parametrize("upto", [None, 1, 2, 3])
def test_chains_have_the_bits_of_plain_decoding(upto: int | None) -> None:
    model, rng = hybrid(1), random.Random(3)
    pack(model, holder(torch.float32, torch.device("cpu"), None, "pytorch"))  # else bits go by the number of rows
    text = [rng.randrange(60) for _ in range(60)]
    cache = model.new_cache()
    plain, drafted, other = (Session(model, cache) for _ in range(3))
    expected = []
    for count in range(20, 60):
        forest = Forest.from_prompt(text[:20])
        node = forest.roots[0]
        nodes = [node]
        for token in text[20:count]:
            nodes.append(node := forest.add(node, token))
        expected.append(execute([Run(plain, forest, nodes[-1:])])[0].logits[0])
    beside = Forest.from_prompt(text[::-1][:33])
    nodes = list(range(40))
    for first in range(0, 40, 8):
        runs = [Run(drafted, forest, nodes[first : first + 8]), Run(other, beside, [0])]
        if upto is not None:
            execute([Run(drafted, forest, nodes[first : first + 8], upto=upto)])
        answer = execute(runs)[0]
        assert torch.equal(answer.logits, torch.stack(expected[first : first + 8]))


def test_what_cannot_be_combined_is_refused() -> None:
    model = hybrid(2)
    with pytest.raises(ConfigurationError, match="leave compile out"):
        Compiled(model)
    with pytest.raises(ConfigurationError, match="recurrent layers cannot draft for itself by skipping"):
        SkippedDecoder(model, every_other(4))
    with pytest.raises(ModelError, match="leave out tensor_parallel"):
        partition.check(CONFIG, 2, "it")
