"""Checkpoints with a layer of multi-token prediction, random, by transformers, and what that layer says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from family_models import randomised, write
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import MtpModel

QWEN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm",
}
GLM = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "post_norm": "shared_head.norm"}


def write_with_mtp(directory: Path, name: str, **changes: Any) -> tuple[Any, MtpModel]:
    """A model whose checkpoint has such a layer; the model, and the layer by transformers' own class."""
    if name.startswith("qwen"):
        changes = {"num_hidden_layers": 4, **changes}  # the last has attention, as transformers wants it
    model = write(directory, name, **changes)
    layers, qwen = model.config.num_hidden_layers, name.startswith("qwen")
    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types, model.config.mtp_mlp_layer_types = ["full_attention"], ["sparse"]
    layer = MtpModel(model, 1).eval()
    randomised(layer.layers, 7)  # not what it shares with the model
    tensors = load_file(directory / "model.safetensors")
    for key, tensor in layer.layers[0].state_dict().items():
        part, _, leaf = key.rpartition(".")
        if part in GLM:
            made = f"{QWEN[part]}.{leaf}" if qwen else f"model.layers.{layers}.{GLM[part]}.{leaf}"
            tensors[made] = tensor
            continue
        place = "mtp.layers.0" if qwen else f"model.layers.{layers}"
        tensors |= experts(f"{place}.{key.removeprefix('mtp_block.')}", tensor)
    save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, directory / "model.safetensors")
    return model, layer


def experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor of all experts as one for each."""
    if ".experts." not in name or tensor.ndim != 3:
        return {name: tensor}
    before, _, leaf = name.rpartition(".")
    made = {}
    for e, one in enumerate(tensor):
        parts = one.chunk(2) if leaf == "gate_up_proj" else (one,)
        for part, own in zip(
            ("gate_proj", "up_proj") if leaf == "gate_up_proj" else ("down_proj",), parts, strict=True
        ):
            made[f"{before}.{e}.{part}.weight"] = own
    return made


@torch.no_grad()
def says(model: Any, layer: MtpModel, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
    """Logits [V] of the layer after tokens and a path of drafts below them, all read anew."""
    states = model(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states[-1][:, :-1]
    text = list(tokens[1:])
    for draft in (*drafts, None):
        places = torch.arange(1, len(text) + 1)[None]
        made = layer.forward_layer(0, states, places, None, input_ids=torch.tensor([text]))
        if draft is not None:
            states, text = torch.cat((states, made[:, -1:]), 1), [*text, draft]
    logits: Tensor = layer._project_to_logits(made[0, -1])
    return logits
