"""Random assistants of Gemma 4 by transformers, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import VOCAB
from family_models import randomised, write
from family_variants import FULL, SLIDING
from torch import Tensor
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

OWN: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 16},
    **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "sliding_window": 4},
    **{"layer_types": [SLIDING, SLIDING, FULL], "max_position_embeddings": 64},
}
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 5}


def write_pair(target: Path, draft: Path, name: str, seed: int = 5, **changes: Any) -> tuple[Any, Any]:
    """A target and its assistant, both saved; `changes` are of the assistant's own config."""
    model = write(target, name)
    own = {"num_global_key_value_heads": 1, "attention_k_eq_v": True} if name == "gemma4" else {}
    return model, write_assistant(draft, model.config.hidden_size, seed, text=own, **changes)


def write_assistant(
    place: Path, width: int, seed: int = 5, text: dict[str, Any] | None = None, **changes: Any
) -> Gemma4AssistantForCausalLM:
    """An assistant for a target so wide; `text` changes its text_config."""
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**{**OWN, **(text or {})}), backbone_hidden_size=width, **changes
    )
    made = randomised(Gemma4AssistantForCausalLM(config), seed)
    if made.masked_embedding is not None:
        order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
        made.masked_embedding.token_ordering.copy_(order)
    made.save_pretrained(place)
    return made  # type: ignore[no-any-return]


@torch.no_grad()
def reads(model: Any, tokens: Sequence[int]) -> tuple[Any, Tensor]:
    """Keys and values of a target after all tokens but the last, and its state at the token before that."""
    out = model(torch.tensor([list(tokens[:-1])]), output_hidden_states=True, return_shared_kv_states=True)
    return out.shared_kv_states, out.hidden_states[-1][:, -1:]


@torch.no_grad()
def says(model: Any, assistant: Any, tokens: Sequence[int], drafts: Sequence[int], read: tuple[Any, Tensor]) -> Tensor:
    """Logits [V] after verified tokens, the last of which the target has not read yet, and drafts below them."""
    (shared, state), embed = read, model.get_input_embeddings()
    for token in (tokens[-1], *drafts):
        made = assistant(
            inputs_embeds=torch.cat([embed(torch.tensor([[token]])), state], -1),
            position_ids=torch.tensor([[len(tokens) - 1]]),
            shared_kv_states=shared,
            use_cache=False,
        )
        state = made.last_hidden_state
    logits: Tensor = made.logits[0, -1]
    return logits
