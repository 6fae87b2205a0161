"""OpenVINO GenAI's LLMPipeline, plain and with its draft models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import DTYPES, Batched, Cell, Generate, Output
from benchmarks.engines.openvino_graph import write

MODES = {"plain": DTYPES, "speculation": DTYPES}


def prepare(cell: Cell) -> None:
    import openvino_genai  # noqa: F401  (before the work of converting)

    for role in ("target", "draft") if cell.mode == "speculation" else ("target",):
        write(Path(getattr(cell, role)), cell.converted(role), cell.dtype)


def _prepared(cell: Cell) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """(how it schedules, what is generated, properties of the device, the draft model where there is one)."""
    import openvino as ov
    import openvino_genai as genai

    # Of the arithmetic; int8 are the weights. A processor without bfloat16 refuses it
    halves = cell.dtype != "float32" and "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if halves else "f32"
    properties: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": cell.threads,
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    scheduling = genai.SchedulerConfig()
    scheduling.enable_prefix_caching = False  # else a known prompt is not computed again
    config = genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    draft: dict[str, Any] = {}
    if cell.mode == "speculation":
        config.num_assistant_tokens = cell.gamma
        draft["draft_model"] = genai.draft_model(str(cell.converted("draft")), "CPU", **properties)
    return scheduling, config, properties, draft


def batched(cell: Cell) -> Batched:
    """Its ContinuousBatchingPipeline."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    prepare(cell)
    scheduling, config, properties, draft = _prepared(cell)
    path = str(cell.converted("target"))
    model = genai.ContinuousBatchingPipeline(path, scheduling, "CPU", {**properties, **draft})

    def run(prompts: Sequence[list[int]], count: int) -> None:
        config.max_new_tokens = count
        ids = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = model.generate(ids, [config] * len(ids))
        if any(len(result.m_generation_ids[0]) < count for result in results):
            raise RuntimeError("a text has fewer tokens than were asked for")

    return run


def load(cell: Cell) -> Generate:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduling, config, properties, draft = _prepared(cell)
    options = {"scheduler_config": scheduling, **properties, **draft}
    model = genai.LLMPipeline(str(cell.converted("target")), "CPU", **options)

    def generate(prompt: list[int], count: int) -> Output:
        config.max_new_tokens = count
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        return Output([int(token) for token in model.generate(ids, config).tokens[0]])

    return generate
