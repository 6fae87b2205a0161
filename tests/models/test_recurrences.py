"""Recurrent mixers against transformers' own layers, whole texts and token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from draftwood.models.backend.attention import fused
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata
from draftwood.models.layers.recurrent import RECURRENCES, Recurrence
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig

WIDTH = 32


def randomised(layer: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return layer.double().eval().requires_grad_(False)


def ours(config: RecurrentConfig, eps: float, made: dict[str, Any], theirs: nn.Module) -> Recurrence:
    whole = DecoderConfig(1, WIDTH, 1, 1, 1, 1, 2, rms_norm_eps=eps, pre_norm=False, recurrent=config, attends=False)
    layer = RECURRENCES[config.kind](whole).double().requires_grad_(False)
    get = theirs.get_parameter
    values = {name: value if isinstance(value, torch.Tensor) else get(value) for name, value in made.items()}
    layer.load_state_dict(values)
    return layer


def close(layer: Recurrence, theirs: nn.Module) -> None:
    x = torch.randn(2, 21, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected, actual = theirs(x), layer.computed(x, AttentionMetadata(None, None, fused), None)
    assert expected.std() > 0.05
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=0)  # they compute states in float32


STATE = {"decay_log": "A_log", "step_bias": "dt_bias", "conv": "conv1d.weight", "out.weight": "out_proj.weight"}


@pytest.mark.parametrize("value_heads", [2, 4])
def test_gated_delta_rule(value_heads: int) -> None:
    theirs = randomised(
        Qwen3_5GatedDeltaNet(
            AutoConfig.for_model(
                "qwen3_5_text",
                hidden_size=WIDTH,
                num_hidden_layers=1,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_num_value_heads=value_heads,
                linear_value_head_dim=12,
                layer_types=["linear_attention"],
            ),
            0,
        ),
        1,
    )
    names = [f"in_proj_{name}.weight" for name in ("z", "qkv", "b", "a")]
    into = torch.cat([theirs.get_parameter(name) for name in names])
    config = RecurrentConfig(DELTA, 4, key_heads=2, key_dim=8, value_heads=value_heads, value_dim=12)
    close(ours(config, 1e-6, {**STATE, "into.weight": into, "gated_norm": "norm.weight"}, theirs), theirs)


def state_space(theirs: nn.Module, **knobs: Any) -> Recurrence:
    made: dict[str, Any] = {**STATE, "skip": "D", "into.weight": "in_proj.weight"}
    if "in_proj.bias" in dict(theirs.named_parameters()):
        made |= {"into.bias": "in_proj.bias", "out.bias": "out_proj.bias"}
        knobs |= {"bias": True, "out_bias": True}
    if "conv1d.bias" in dict(theirs.named_parameters()):
        made["conv_bias"], knobs["conv_bias"] = "conv1d.bias", True
    if knobs.get("gated_norm", True):
        made["gated_norm"] = "norm.weight"
    return ours(RecurrentConfig(SSM, 4, 2, 8, 4, 8, **knobs), 1e-5, made, theirs)


MAMBA = {
    "hidden_size": WIDTH,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_expand": 1,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize("bias", [False, True])
def test_state_space_of_granite(bias: bool) -> None:
    settings = {**MAMBA, "mamba_proj_bias": bias, "mamba_conv_bias": bias, "layer_types": ["mamba"]}
    config = AutoConfig.for_model("granitemoehybrid", **settings)
    theirs = randomised(GraniteMoeHybridMambaLayer(config, 0), 2)
    close(state_space(theirs, norm_groups=2), theirs)


@pytest.mark.parametrize(("norm", "before"), [(False, False), (True, False), (True, True)])
def test_state_space_of_falcon(norm: bool, before: bool) -> None:
    settings = {**MAMBA, "mamba_d_ssm": 32, "mamba_rms_norm": norm, "mamba_norm_before_gate": before}
    theirs = FalconH1Mixer(AutoConfig.for_model("falcon_h1", **settings, time_step_limit=(0.3, 0.9)), 0)
    theirs.mup_vector = 1.0
    knobs = {"gated_norm": norm, "gate_first": not before, "norm_groups": 2, "step_limit": (0.3, 0.9)}
    close(state_space(randomised(theirs, 3), **knobs), theirs)


def test_state_space_of_nemotron() -> None:
    config = AutoConfig.for_model(
        "nemotron_h",
        hidden_size=WIDTH,
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=2,
        layers_block_type=["mamba"],
        time_step_min=0.01,
    )
    theirs = randomised(NemotronHMamba2Mixer(config, 0), 4)
    close(state_space(theirs, norm_groups=2, step_limit=(0.01, float("inf"))), theirs)


@pytest.mark.parametrize("bias", [False, True])
def test_short_convolution(bias: bool) -> None:
    config = AutoConfig.for_model(
        "lfm2", hidden_size=WIDTH, num_hidden_layers=1, conv_bias=bias, layer_types=["conv"], conv_L_cache=3
    )
    theirs = randomised(Lfm2ShortConv(config, 0), 5)
    made: dict[str, Any] = {
        f"{ours}.weight": f"{name}.weight" for ours, name in (("into", "in_proj"), ("out", "out_proj"))
    }
    if bias:
        made |= {"into.bias": "in_proj.bias", "out.bias": "out_proj.bias", "conv_bias": "conv.bias"}
    knobs = {"conv_bias": bias, "bias": bias, "out_bias": bias}
    close(ours(RecurrentConfig(CONV, 3, **knobs), 1e-5, {**made, "conv": "conv.weight"}, theirs), theirs)
