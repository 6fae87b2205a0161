"""draftwood's methods from Hugging Face code: `model.generate(..., custom_generate=custom_generate, draft=...)`.

Knows what transformers' generate() prepares and what it wants back; refuses, with a sentence, whatever the methods
here would not do as transformers does. Needs the extra hf.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation import stopping_criteria as criteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftwood.engine.loading import ModelSource, load
from draftwood.engine.request import MethodSpec
from draftwood.errors import RequestError

# what generate() prepares from settings that SamplingParams has too
PROCESSORS = (
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.MinPLogitsWarper,
)
CRITERIA = (criteria.MaxLengthCriteria, criteria.EosTokenCriteria)


def custom_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    draft: ModelSource | list[ModelSource] | None = None,
    method: MethodSpec | None = None,
    seed: int | None = None,
    concurrency: int = 8,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode as generate() does, by a method of draftwood: sequences [B, prompt + new], padded on the right.

    `draft` is a transformers model, a checkpoint directory or a list of them; `method` as in `Engine.generate`. Length,
    EOS, do_sample, temperature, top_k, top_p, min_p and repetition_penalty come from the generation config. Row i
    decodes with `seed` + i; without a seed, torch's generator draws one. generate() feeds no streamer to a callable.
    """
    _check(logits_processor, stopping_criteria, generation_config)
    device = model.device
    engine = load(model, draft, dtype=model.dtype, device=device)
    start = seed if seed is not None else int(torch.randint(2**31, (1,)))
    mask = model_kwargs.get("attention_mask")  # None where nothing is padded
    prompts = [row if mask is None else row[mask[i].bool()] for i, row in enumerate(input_ids)]
    engine.requests.end_tokens = frozenset(_ids(generation_config, "eos"))
    results = engine.batch(
        [{"prompt": prompt.tolist(), "seed": start + i} for i, prompt in enumerate(prompts)],
        concurrency,
        method=method,
        sampling=_sampling(generation_config),
        max_new_tokens=int(generation_config.max_length) - input_ids.shape[1],
    )
    width = max(len(result.tokens) for result in results)
    pad = (_ids(generation_config, "pad") or _ids(generation_config, "eos") or [0])[0]
    new = [result.tokens + [pad] * (width - len(result.tokens)) for result in results]
    sequences: Any = torch.cat((input_ids, torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)), 1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _check(processors: LogitsProcessorList, stops: StoppingCriteriaList, settings: GenerationConfig) -> None:
    """Settings that would change the output and are not served."""
    for part in [*processors, *stops]:
        if not isinstance(part, PROCESSORS + CRITERIA):
            raise RequestError(
                f"custom_generate does not serve {type(part).__name__}; leave out the setting that asks for it"
            )
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(settings, name, None):
            raise RequestError(f"custom_generate returns sequences only; leave out {name}")
    if (settings.num_beams or 1) > 1:
        raise RequestError("custom_generate does not read num_beams; name a beam method by method=... instead")


def _sampling(settings: GenerationConfig) -> dict[str, Any]:
    """SamplingParams of a generation config; the repetition penalty holds for greedy decoding too."""
    sampling = {"repetition_penalty": settings.repetition_penalty}
    if settings.do_sample:
        sampling |= {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    else:
        sampling["temperature"] = 0.0
    return {name: value for name, value in sampling.items() if value is not None}


def _ids(settings: GenerationConfig, name: str) -> list[int]:
    """Token ids as generate() prepared them."""
    tensor = getattr(settings, f"_{name}_token_tensor", None)
    return [] if tensor is None else [int(token) for token in tensor.flatten()]
