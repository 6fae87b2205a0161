"""A decoder so small that a test can compute everything twice."""

import torch

from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig

VOCAB, LAYERS = 19, 4


def decoder(seed: int = 0, dtype: torch.dtype = torch.float32, context: int = 1024, vocab_size: int = VOCAB) -> Decoder:
    """A small decoder with grouped heads and weights large enough that everything matters."""
    torch.manual_seed(seed)
    model = Decoder(
        DecoderConfig(
            vocab_size=vocab_size,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            max_position_embeddings=context,
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.to(dtype).eval()
