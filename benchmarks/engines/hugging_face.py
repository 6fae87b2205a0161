"""Hugging Face transformers' generate()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engines import FLOATS, Batched, Cell, Generate, Output

MODES = {"plain": FLOATS, "assisted": FLOATS}


def prepare(cell: Cell) -> None:
    """Checkpoints are read as they are."""


def _model(path: str, cell: Cell) -> Any:
    """A checkpoint whose texts do not end early."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, cell.dtype)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def load(cell: Cell) -> Generate:
    import torch

    torch.set_grad_enabled(False)
    model = _model(cell.target, cell)
    options: dict[str, Any] = {"do_sample": False}
    if cell.mode == "assisted":
        assistant = _model(cell.draft, cell)
        assistant.generation_config.num_assistant_tokens = cell.gamma
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = assistant

    def generate(prompt: list[int], count: int) -> Output:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options)
        return Output(out[0, len(prompt) :].tolist())

    return generate


def batched(cell: Cell) -> Batched:
    """generate() over prompts that are padded on the left."""
    import torch

    model = _model(cell.target, cell)

    def run(prompts: Sequence[list[int]], count: int) -> None:
        longest = max(map(len, prompts))
        padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        lengths = {"max_new_tokens": count, "min_new_tokens": count}
        model.generate(padded, attention_mask=mask, do_sample=False, **lengths)

    return run
