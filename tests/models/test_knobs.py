"""Knobs that few families turn: the native kernels agree with PyTorch in float64, rows have the bits of chains.

tests/models/checkpoints/test_families.py compares the families that use them with transformers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from draftwood.models.alibi import Alibi, geometric_slopes, interleaved_slopes
from draftwood.models.altup_config import AltUpConfig
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.checkpoints.parameters import pack_embeddings
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig, QueryGrowth, per_layer
from draftwood.models.latent_config import LatentConfig
from draftwood.models.rotary import Proportional
from tests.helpers.native_library import chain, check_wanted_rows, needs_native
from tests.helpers.small_decoder import decoder

TOKENS = [3, 7, 1, 18, 2, 2, 9, 11, 4, 0, 16, 5]
KNOBS: dict[str, dict[str, Any]] = {
    "sinks": {"sinks": True},
    "sinks and windows": {"sinks": True, "layers": per_layer(window=(0, 4, 0, 4))},
    "gate": {"output_gate": True, "qk_norm": "one"},
    "norms of each head": {"qk_norm": "each", "norm": "layer_plain"},
    "norms of all heads": {"qk_norm": "whole", "pre_norm": False, "post_norm": True},
    "late norms": {"qk_norm": "one", "late_qk_norm": True},
    "values": {"value_norm": True, "qkv_clip": 0.5},
    "joined": {"joined": True, "norm": "layer", "rotary_dim": 4},
    "multipliers": {"residual_multiplier": 0.3, "logit_scale": 0.5, "attention_scale": 0.2},
    "offsets": {"norm": "layer_offset", "gated": False, "hidden_act": "relu2"},
    "scalar": {"scalar": True, "post_norm": True},
    "proportional": {"rope_scaling": Proportional(factor=2.0, angles=2)},
    "no rotation": {"layers": per_layer(rotary_dim=(None, 0, 4, 0))},
    "shapes": {
        "layers": per_layer(
            head_dim=(6, 12, 6, 12), num_key_value_heads=(2, 1, 4, 2), intermediate_size=(40, 24, 8, 56)
        )
    },
    "per-layer embeddings": {"hidden_size_per_layer_input": 32, "scalar": True},
    "several vectors": {"altup": AltUpConfig(3, 1, 16), "hidden_size_per_layer_input": 32, "post_norm": True},
    "gates above": {
        **{"altup": AltUpConfig(2, 0, 16), "hidden_size_per_layer_input": 32, "post_norm": True},
        **{"gate_cutoff": 0.5, "intermediate_size": 64},
    },
    "biases": {"alibi": Alibi(geometric_slopes(4)), "rotary_dim": 0},
    "rounded biases, windows": {
        "alibi": Alibi(interleaved_slopes(4, 8), 0.5, True),
        "layers": per_layer(window=(0, 4, 0, 4)),
    },
    "embeddings": {"embedding_norm": True, "norm": "layer", "embedding_scale": 3.0},
    "growth": {"query_growth": QueryGrowth(0.7, 3, 1)},
    "inner norms": {"inner_norm": True, "hidden_act": "relu2"},
    "xielu": {"hidden_act": "xielu", "gated": False},
    "latent": {"latent": LatentConfig(12, 16), "rotary_dim": 4, "head_dim": 24, "num_key_value_heads": 4},
    "latents": {
        "latent": LatentConfig(12, 16, 20, 1e-3),
        **{"rotary_dim": 4, "head_dim": 8, "num_key_value_heads": 4, "query_growth": QueryGrowth(0.7, 3)},
    },
    "borrowed": {"qk_norm": "one", "layers": per_layer(kv_layer=(None, None, 0, 1), window=(0, 5, 0, 5))},
}


def turned(knobs: dict[str, Any]) -> Decoder:
    """The small decoder with some knobs, in float64; nothing that a knob adds is left at what changes nothing."""
    torch.manual_seed(1)
    made = Decoder(replace(decoder().config, **knobs)).double()
    for name, parameter in made.named_parameters():
        plain = parameter.dim() > 1
        nn.init.normal_(parameter, mean=0.0 if plain or "bias" in name else 1.0, std=0.25)
    return made.eval()


def packed(model: Decoder, backend: str) -> Decoder:
    made = copy.deepcopy(model).float()
    pack(made, holder(torch.float32, torch.device("cpu"), None, backend))
    pack_embeddings(made, False)
    return made


def test_each_knob_changes_the_logits() -> None:
    usual = turned({})
    plain = chain(usual, TOKENS)[0]
    for name, knobs in KNOBS.items():
        model = turned(knobs)
        known = {key: part for key, part in usual.state_dict().items() if key in model.state_dict()}
        fitting = {key: part for key, part in known.items() if part.shape == model.state_dict()[key].shape}
        model.load_state_dict(fitting, strict=False)
        assert (chain(model, TOKENS)[0] - plain).abs().max() > 1e-3, name


@needs_native
@pytest.mark.parametrize("name", KNOBS)
def test_native_kernels_agree(name: str) -> None:
    model = turned(KNOBS[name])
    exact, native = chain(model, TOKENS)[0], packed(model, "native")
    assert native.native
    found = chain(native, TOKENS)[0]
    assert (found - exact).abs().max() < 2e-5 * exact.abs().max()


@pytest.mark.parametrize("name", KNOBS)
def test_training_sees_what_a_cache_sees(name: str) -> None:
    model = turned(KNOBS[name])
    torch.testing.assert_close(
        model.train_forward(torch.tensor([TOKENS]))[0], chain(model, TOKENS)[0].double(), atol=1e-9, rtol=1e-9
    )


@pytest.mark.some(27)
@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "pytorch"])
@pytest.mark.parametrize("name", KNOBS)
def test_rows_have_the_same_bits_alone(name: str, backend: str) -> None:
    model = packed(turned(KNOBS[name]), backend)
    whole, cache = chain(model, TOKENS)[0], model.new_cache()
    cache.lend(len(TOKENS))
    single = [chain(model, [token], place, cache)[0][0] for place, token in enumerate(TOKENS)]
    assert torch.equal(torch.stack(single), whole)


@needs_native
@pytest.mark.parametrize("name", KNOBS)
def test_rows_that_nobody_wants_are_left_out(name: str) -> None:
    check_wanted_rows(packed(turned(KNOBS[name]), "native"), TOKENS)


def test_layers_have_their_own_knobs() -> None:
    config = DecoderConfig(9, 8, 8, 2, 2, 2, 4, layers=per_layer(window=(0, 3), head_dim=(4, 8)))
    assert [(config.layer(i).window, config.layer(i).head_dim) for i in (0, 1)] == [(0, 4), (3, 8)]
