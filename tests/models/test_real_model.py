"""SmolLM2 as people have it, a GGUF file: tokens, chats, logits and text are transformers'; methods change no bit.

transformers' own reader dequantises the file to float32. What the file is computed in by default is compared with that,
too, but no closer than its type allows.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import eagle_heads
import gguf
import pieces
import pytest
import torch
from checkpoint_files import ours, theirs
from family_models import chain
from native_library import needs_native
from test_native_bits import beams, hypotheses, text, walk_together
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import draftwood
from draftwood import Engine
from draftwood.corpus import documents
from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real
PROMPTS = ["The capital of France is", "def fibonacci(n):\n    ", "Once upon a time there was a fox. The fox"]
MORE = ("<|im_start|>", "<|im_end|>", "don't", "\t\n ")  # special tokens and runs of white space
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Name three rivers of Europe."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 17 + 25?"},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "And\n\ntwice that?"},
    ],
]


class Reference(NamedTuple):
    """transformers' tokenizer and model of a file."""

    tokenizer: Any
    model: Any


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Reference:
    return read_by_transformers(smollm2)


def read_by_transformers(file: Path) -> Reference:
    """transformers' reading of a file; its header and names of tensors are made once, because each takes seconds."""
    with pytest.MonkeyPatch.context() as patched:
        for slow in ("GGUFReader", "get_tensor_name_map"):
            patched.setattr(gguf, slow, cache(getattr(gguf, slow)))
        where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
        tokenizer, config = AutoTokenizer.from_pretrained(**where), AutoConfig.from_pretrained(**where)
        with torch.device("meta"):
            names = AutoModelForCausalLM.from_config(config)
        tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=names)["tensors"]
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        assert model.load_state_dict(tensors, strict=False) == (["lm_head.weight"], [])
        return Reference(tokenizer, model.requires_grad_(False))


@pytest.fixture(scope="module")
def exact(smollm2: Path) -> Engine:
    """The file dequantised to float32."""
    return draftwood.load(smollm2, dtype="float32")


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Engine:
    """The file as it is computed by default, drafting for itself."""
    return draftwood.load(smollm2, draft=smollm2)


@pytest.mark.slow
def test_tokens_are_transformers(smollm2: Path, reference: Reference) -> None:
    """But for numbers behind several spaces, where transformers' reader forgets that this model splits off digits."""
    words = Tokenizer.load(smollm2)
    texts = [each for each in pieces.texts(600, MORE) if not any(map(str.isnumeric, each))]
    assert len(texts) > 100
    for each in [*PROMPTS, "In 2024, 3 of 17 won.", *texts]:
        ids = words.encode(each)
        assert ids == reference.tokenizer.encode(each), each
        assert words.decode(ids) == reference.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("conversation", CHATS)
def test_chats_are_transformers(conversation: list[dict[str, str]], smollm2: Path, reference: Reference) -> None:
    expected = reference.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert Tokenizer.load(smollm2).chat_text(conversation) == expected


def test_logits_and_greedy_text_are_transformers(exact: Engine, reference: Reference) -> None:
    """In float32, to rounding, along the text that is written."""
    for prompt in PROMPTS:
        result = exact.generate(prompt, temperature=0, max_new_tokens=16, ignore_eos=True)
        tokens = [*result.prompt_tokens, *result.tokens]
        expected = theirs(reference.model, tokens)
        torch.testing.assert_close(ours(exact.target, chain(tokens)), expected, atol=1e-3, rtol=0)  # type: ignore[arg-type]
        assert result.tokens == expected[len(result.prompt_tokens) - 1 : -1].argmax(-1).tolist()


@pytest.mark.slow
def test_logits_of_gemma_are_transformers(gemma: Path) -> None:
    """Windows, norms of heads, a vocabulary of 262,144 tokens; Q8_0, Q5_0, Q4_K and Q6_K."""
    reference, model = read_by_transformers(gemma), checkpoint.load(gemma, "float32")
    for prompt in PROMPTS:
        tokens = Tokenizer.load(gemma).encode(prompt)
        assert tokens == reference.tokenizer.encode(prompt)
        torch.testing.assert_close(ours(model, chain(tokens)), theirs(reference.model, tokens), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_the_default_is_as_good_as_float32(exact: Engine, engine: Engine) -> None:
    """The perplexity of some stories is within 0.3%."""
    nats, count = {exact: 0.0, engine: 0.0}, 0
    for document in islice(documents("stories", "held-out", seed=1), 16):
        for each in nats:
            nats[each] -= sum(filter(None, each.score(document.text).logprobs))
        count += len(engine.tokens(document.text)) - 1
    assert count > 1000
    assert abs(math.exp((nats[engine] - nats[exact]) / count) - 1) < 0.003


@needs_native
def test_nodes_of_trees_have_the_bits_of_chains(engine: Engine) -> None:
    shapes = [(9, "single"), (30, "tree"), (45, "chain"), (3, "tree")]
    walk_together(engine.target, shapes, 4)  # type: ignore[arg-type]


METHODS: dict[str, dict[str, Any]] = {
    "chain": {"name": "speculative", "gamma": 4},
    "tree": {"name": "mcsd", "tree": [3, 2, 1]},
    "lookup": {"name": "lookup"},
    "skips": {"name": "self-spec"},
}


@needs_native
def test_methods_change_no_bit(engine: Engine) -> None:
    """Alone, greedy and sampled, and together: tokens and log-probabilities are plain decoding's."""
    requests, plains, accepted = [], [], 0
    for i, (name, method) in enumerate(METHODS.items()):
        how = {"verify": "coupled"} if i % 2 else {}
        options: dict[str, Any] = {"prompt": PROMPTS[i % len(PROMPTS)], "max_new_tokens": 12, "seed": i}
        options |= {"temperature": float(bool(how)), "ignore_eos": True, "top_logprobs": 2}
        plains.append(engine.generate(method={"name": "autoregressive", **how}, **options))
        requests.append({"method": {**method, **(how if name != "skips" else {})}, **options})
        if name == "skips":
            requests[-1]["temperature"] = 0.0
            plains[-1] = engine.generate(**{**requests[-1], "method": "autoregressive"})
        result = engine.generate(**requests[-1])
        assert text(result) == text(plains[-1]), name
        accepted += result.metrics.accepted
    assert accepted > len(plains)
    for result, plain in zip(engine.batch(requests, concurrency=4), plains, strict=True):
        assert text(result) == text(plain)


@needs_native
def test_drafted_beam_search_changes_no_bit(engine: Engine) -> None:
    beams(engine, PROMPTS, 8)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("drafter", ["skip", "lookup", "eagle"])
def test_beams_that_need_no_draft_model_change_no_bit(drafter: str, engine: Engine, tmp_path: Path) -> None:
    """A checkpoint without a smaller sibling: width 4, alone and in a batch; the head's weights are random."""
    options: dict[str, Any] = {"width": 4, "n_best": 4}
    method = {"name": "speculative-beam-search", "drafter": drafter, "draft_width": 8, **options}
    if drafter == "eagle":
        shape = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
        raw = eagle_heads.config(draft_vocab_size=512, eagle_aux_hidden_state_layer_ids=[3, 15, 27])
        raw["transformer_layer_config"] |= {**shape, "vocab_size": engine.target.vocab_size}
        eagle_heads.write(tmp_path, raw)
        method["head"] = str(tmp_path)
    plains = [engine.generate(each, {"name": "beam-search", **options}, max_new_tokens=12) for each in PROMPTS]
    found = [engine.generate(each, method, max_new_tokens=12) for each in PROMPTS]
    together = engine.batch(PROMPTS, 3, method=method, max_new_tokens=12)
    for plain, *drafted in zip(plains, found, together, strict=True):
        assert all(hypotheses(each) == hypotheses(plain) for each in drafted)
    assert all(result.metrics.drafted for result in found)
    assert drafter == "eagle" or sum(round_.depth_accepted for result in found for round_ in result.rounds)
