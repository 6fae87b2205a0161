"""Small decoders with drafts that are accepted now and then, and what greedy decoding without any cache gives."""

import copy
import functools

import torch
from small_decoder import VOCAB, decoder

from draftwood.models.decoder import Decoder

NEW, MARGIN = 32, 1e-4
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@functools.cache
def models(dtype: str) -> list[Decoder]:
    """The target and two noisy copies of it, so that drafts are accepted now and then."""
    target = decoder(3, DTYPES[dtype])
    drafts = []
    for seed, noise in ((1, 0.04), (2, 0.08)):
        torch.manual_seed(seed)
        drafts.append(copy.deepcopy(target))
        with torch.no_grad():
            for parameter in drafts[-1].parameters():
                parameter += noise * torch.randn_like(parameter)
    return [target, *drafts]


@functools.cache
def naive(dtype: str, prompt: tuple[int, ...]) -> list[int]:
    """argmax, the whole sequence recomputed for each token; near-ties would make the comparison meaningless."""
    model, tokens = models(dtype)[0], list(prompt)
    with torch.inference_mode():
        for _ in range(NEW):
            logits = model.train_forward(torch.tensor([tokens]))[0, -1]
            best, second = logits.topk(2).values.tolist()
            assert best - second > MARGIN
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def prompt_of(length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(length)
    return tuple(torch.randint(VOCAB, (length,), generator=generator).tolist())
