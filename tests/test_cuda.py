"""The same results on CUDA: run with `pytest -m gpu` on a machine that has a device."""

import pytest
import torch

import draftwood
from draftwood import Engine
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
METHODS = ["speculative", "specinfer", "mcsd", "lookup", {"name": "mcsd", "replacement": True}]


def decoder(seed: int, layers: int, dtype: torch.dtype) -> Decoder:
    torch.manual_seed(seed)
    config = DecoderConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    return Decoder(config).to(dtype).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    """The same pair on the CPU and on the device, in float64."""
    here, there = (
        draftwood.load(decoder(1, 4, torch.float64).to(device), decoder(2, 1, torch.float64).to(device))
        for device in ("cpu", DEVICE)
    )
    return here, there


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_greedy_text_equals_the_cpus(engines: tuple[Engine, Engine], method: object) -> None:
    here, there = engines
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 60}
    plain = here.generate([3, 1, 4, 1, 5], "autoregressive", **options).tokens
    assert there.generate([3, 1, 4, 1, 5], method, **options).tokens == plain


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_coupled_text_is_that_of_plain_decoding(engines: tuple[Engine, Engine], method: object) -> None:
    _, there = engines
    own = {"name": method} if isinstance(method, str) else dict(method)
    options = {"sampling": {"top_p": 0.9, "repetition_penalty": 1.2}, "max_new_tokens": 40, "seed": 5}
    plain = there.generate([3, 1, 4], {"name": "autoregressive", "verify": "coupled"}, **options).tokens
    assert there.generate([3, 1, 4], {**own, "verify": "coupled"}, **options).tokens == plain


def test_a_batch_gives_what_each_request_gets_alone(engines: tuple[Engine, Engine]) -> None:
    _, there = engines
    requests = [
        {"prompt": list(range(1, 4 + i)), "method": method, "seed": i, "max_new_tokens": 20}
        for i, method in enumerate(METHODS)
    ]
    for request, result in zip(requests, there.batch(requests, concurrency=3), strict=True):
        assert result.tokens == there.generate(**request).tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_dtype_decodes(dtype: torch.dtype) -> None:
    engine = draftwood.load(decoder(1, 4, dtype).to(DEVICE), decoder(2, 1, dtype).to(DEVICE))
    assert len(engine.generate([1, 2, 3], "mcsd", max_new_tokens=20).tokens) == 20
