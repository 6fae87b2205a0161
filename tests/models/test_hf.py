"""Models through transformers' own forward: parity with it, the same text by every method, and clear refusals."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoint_files import VOCAB, byte_level, write
from torch import Tensor
from transformers import GPTNeoXForCausalLM, PreTrainedModel

import draftwood
from draftwood.core.forest import TRUNK, Forest
from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.integrations.transformers import custom_generate
from draftwood.models.base import Batch, CausalModel, Segment
from draftwood.models.checkpoints import checkpoint
from draftwood.models.hf import HuggingFaceModel, cache_name
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
FUSED = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPTNeoX": SMALL,
    "DiffLlama": GROUPED,
    "Falcon": {**FUSED, "alibi": False},
    "StableLm": GROUPED,
    "Olmo2": GROUPED,
    "Cohere": GROUPED,
    "Granite": GROUPED,
    "Phi": GROUPED,
    "Starcoder2": {**GROUPED, "sliding_window": 5},
    "Cohere2": {
        **GROUPED,
        "num_hidden_layers": 3,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
PROMPT = [5, 17, 33, 8, 60, 21, 9, 40, 12]


def build(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model whose every weight matters and whose logits spread over several units."""
    kind = getattr(transformers, f"{family}ForCausalLM")
    model = kind(getattr(transformers, f"{family}Config")(**{**FAMILIES.get(family, {}), **changes}))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.eval().requires_grad_(False).parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.3 * noise if parameter.dim() > 1 else 1 + 0.2 * noise)
    return model


def truth(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Logits [n, V] by transformers, without a cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def forest(prompt: list[int], nodes: list[tuple[int, int]]) -> Forest:
    """A forest of (token, parent) nodes on a trunk."""
    planted = Forest(list(prompt))
    for token, parent in nodes:
        planted.add(parent, token)
    return planted


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str) -> None:
    """Prompt, tree, commit, reused slots and a batch, through the sessions that decoding uses."""
    model = build(family)
    adapter = HuggingFaceModel(model)
    assert isinstance(adapter, CausalModel)
    assert (adapter.vocab_size, adapter.context, adapter.n_layers) == (VOCAB, 96, model.config.num_hidden_layers)
    cache = adapter.new_cache()  # grows on the way
    one, two = Session(adapter, cache), Session(adapter, cache)
    nodes = [(7, TRUNK), (30, TRUNK), (41, 0), (50, 1), (66, 1), (11, 4)]
    grown, other = forest(PROMPT, nodes), forest(PROMPT[:4], [(3, TRUNK)])
    answers = execute([Run(one, grown, range(6)), Run(two, other, [0])])
    paths = [[7], [30], [7, 41], [30, 50], [30, 66], [30, 66, 11]]
    expected = torch.stack([truth(model, PROMPT + path)[-1] for path in paths])
    torch.testing.assert_close(answers[0].logits, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(answers[1].logits[0], truth(model, [*PROMPT[:4], 3])[-1], atol=1e-4, rtol=0)
    one.commit([1, 4], [5], grown)
    two.commit([0], [], other)
    later = forest([*PROMPT, 30, 66], [(11, TRUNK), (80, 0), (81, TRUNK)])
    wide = forest([*PROMPT[:4], 3], [(token, token - 21) for token in range(20, 40)])
    answers = execute([Run(two, wide, [19]), Run(one, later, [2, 1])])
    torch.testing.assert_close(
        answers[0].logits[0], truth(model, [*PROMPT[:4], 3, *range(20, 40)])[-1], atol=1e-4, rtol=0
    )
    expected = torch.stack([truth(model, [*PROMPT, 30, 66, *path])[-1] for path in ([81], [11, 80])])
    torch.testing.assert_close(answers[1].logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["GPTNeoX", "Falcon", "Olmo2", "Cohere2"])
def test_greedy_text_is_that_of_generate(family: str) -> None:
    target, draft = build(family), build(family)
    for parameter in draft.parameters():  # a draft that is often right
        parameter.mul_(1 + 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    reference = target.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=24, eos_token_id=None)
    engine = draftwood.load(target, draft=draft)
    greedy = {"temperature": 0}
    prompt = PROMPT * 2
    again = target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None)
    accepted = 0
    for method in ("autoregressive", "speculative", {"name": "mcsd", "tree": [3, 2, 1]}, "lookup"):
        results = engine.batch([PROMPT, prompt], method=method, sampling=greedy, max_new_tokens=24, ignore_eos=True)
        assert [result.tokens for result in results] == [reference[0, 9:].tolist(), again[0, 18:].tolist()], method
        accepted += results[0].kinds.count("accepted")
    assert accepted > 0


def test_own_decoder_drafts_for_a_transformers_target(tmp_path: Path) -> None:
    target = build("StableLm")
    write(tmp_path)
    engine = draftwood.load(target, draft=checkpoint.load(tmp_path))
    alone = engine.generate(PROMPT, "autoregressive", {"temperature": 0}, max_new_tokens=12, ignore_eos=True)
    for method in ("speculative", "mcsd"):
        assert engine.generate(PROMPT, method, {"temperature": 0}, max_new_tokens=12, ignore_eos=True).tokens == (
            alone.tokens
        )
    assert engine.end_tokens == {2}


def test_eager_attention_and_bfloat16() -> None:
    model = build("Olmo2")
    model.set_attn_implementation("eager")
    HuggingFaceModel(model)
    adapter = HuggingFaceModel(build("GPTNeoX").to(torch.bfloat16))
    session = Session(adapter, adapter.new_cache())
    logits = execute([Run(session, forest(PROMPT, [(7, TRUNK)]), [0])])[0].logits
    expected = truth(adapter.model, [*PROMPT, 7])[-1].float()
    assert logits.dtype == torch.float32
    assert float((logits[0] - expected).abs().max()) < 0.15 * float(expected.std())


@pytest.mark.parametrize(("family", "together"), [("GPTNeoX", True), ("Cohere2", True), ("Falcon", False)])
def test_requests_share_a_forward_and_nobody_attends_to_others_keys(family: str, together: bool) -> None:
    """Rows go through the linear layers in one line; a group's attention reads its own span only."""
    model = build(family)
    adapter = HuggingFaceModel(model)
    cache, shapes, spans = adapter.new_cache(), [], []
    lengths = [3, 70, 3]
    forward, read = model.forward, cache.read
    model.forward = lambda **options: (shapes.append(tuple(options["input_ids"].shape)), forward(**options))[1]  # type: ignore[assignment]
    cache.read = lambda *args: (spans.append(args[2]) if len(args) == 4 else None, read(*args))[1]  # type: ignore[method-assign]
    forests = [Forest.from_prompt([5 + i] * length) for i, length in enumerate(lengths)]
    execute([Run(Session(adapter, cache), each, [0]) for each in forests])
    assert (shapes == [(1, 76)]) == together and sum(rows * width for rows, width in shapes) == 76
    assert set(spans) == {32, 96}  # in whole grains
    assert model.config._attn_implementation == "sdpa"


def test_the_attention_function_is_restored_after_an_error() -> None:
    model = build("GPTNeoX")
    adapter = HuggingFaceModel(model)
    runs = [Run(Session(adapter, adapter.new_cache()), Forest.from_prompt(PROMPT[:n]), [0]) for n in (3, 6)]
    runs[1].session.cache = runs[0].session.cache
    last = model.get_output_embeddings()
    handle = last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        execute(runs)
    handle.remove()
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(execute(runs)[1].logits[0], truth(model, PROMPT[:6])[-1], atol=1e-4, rtol=0)


KEPT = cache_name(GPTNeoXForCausalLM)


class SlotOrder(GPTNeoXForCausalLM):
    """Takes positions and does not use them, as a model does whose positions follow the order of slots."""

    def forward(self, position_ids: Tensor | None = None, cache: Any = None, **kwargs: Any) -> Any:
        before = cache.get_seq_length() if cache is not None else 0
        position_ids = torch.arange(before, before + kwargs["input_ids"].shape[1])[None]
        return super().forward(position_ids=position_ids, **{KEPT: cache}, **kwargs)


def test_the_cache_has_the_name_that_the_model_gives_it() -> None:
    """Models of one's own may use either, whatever transformers does."""

    class Before(GPTNeoXForCausalLM):
        def forward(self, position_ids: Tensor | None = None, past_key_values: Any = None, **kwargs: Any) -> Any:
            return super().forward(position_ids=position_ids, **{KEPT: past_key_values}, **kwargs)

    model = Before(transformers.GPTNeoXConfig(**SMALL)).eval().requires_grad_(False)
    adapter = HuggingFaceModel(model)
    run = Run(Session(adapter, adapter.new_cache()), Forest.from_prompt(PROMPT), [0])
    torch.testing.assert_close(execute([run])[0].logits[0], truth(model, PROMPT)[-1], atol=1e-4, rtol=0)


def test_models_that_cannot_see_trees_are_refused() -> None:
    silent = SlotOrder(transformers.GPTNeoXConfig(**SMALL)).eval().requires_grad_(False)
    for parameter in silent.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    with pytest.raises(ModelError, match=r"^model type 'gpt_neox' gives other logits .*off by .*rotary or learned"):
        HuggingFaceModel(silent)
    with pytest.raises(ModelError, match=r"^model type 'falcon' cannot be driven"):
        HuggingFaceModel(build("Falcon", alibi=True))
    bloom = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    with pytest.raises(ModelError, match=r"^model type 'bloom' takes no position_ids"):
        draftwood.load(build("Bloom", **bloom))
    with pytest.raises(ModelError, match=r"call model.eval\(\)"):
        HuggingFaceModel(build("GPTNeoX").train())
    flexible = build("GPTNeoX")
    flexible.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="attn_implementation='sdpa'"):
        HuggingFaceModel(flexible)


def test_a_wrong_window_is_caught() -> None:
    model = build("Starcoder2")
    HuggingFaceModel(model)
    model.config.sliding_window = None  # the adapter's masks no longer know what the weights were run with
    adapter = HuggingFaceModel(model)
    assert adapter._error() < 1e-3  # transformers reads the same entry
    model.config.sliding_window = 5
    assert not adapter._error() < 1e-3


def test_layer_ranges_are_refused() -> None:
    adapter = HuggingFaceModel(build("GPTNeoX"))
    cache = adapter.new_cache()
    extent = cache.lend(4)
    for start, stop in ((0, 1), (1, None)):
        batch = Batch.of(adapter, [5], [0], [Segment.causal(extent, 0, 1)], start=start, stop=stop)
        with pytest.raises(ModelError, match="computes all of its layers at once; methods that need layer ranges"):
            adapter.forward(batch, cache)


def test_directories_load_through_transformers(tmp_path: Path) -> None:
    model = build("DiffLlama", vocab_size=270)
    model.save_pretrained(tmp_path)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ModelError, match=r"architecture 'diffllama' is not supported.*transformers may run it: give hf:"
    ):
        draftwood.load(str(tmp_path))
    engine = draftwood.load(f"hf:{tmp_path}", draft=f"hf:{tmp_path}", device="cpu")
    result = engine.generate(
        "one two", {"name": "speculative", "gamma": 4}, {"temperature": 0}, max_new_tokens=12, ignore_eos=True
    )
    plain = model.generate(torch.tensor([result.prompt_tokens]), do_sample=False, max_new_tokens=12, eos_token_id=None)
    assert result.tokens == plain[0, len(result.prompt_tokens) :].tolist()
    assert engine.end_tokens == {2} and result.metrics.tau > 2
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="transformers cannot load it"):
        draftwood.load(f"hf:{tmp_path}")


def test_generate_drives_our_methods() -> None:
    target, draft = build("Granite"), build("Granite", seed=4)
    for entry, other in zip(draft.parameters(), target.parameters(), strict=True):
        entry.mul_(0.02).add_(other)
    inputs = torch.tensor([[0, 0, 0, *PROMPT[:6]], PROMPT])
    padding = (inputs != 0).long()
    settings: dict[str, Any] = {"attention_mask": padding, "do_sample": False, "max_new_tokens": 20}
    for extra in ({}, {"repetition_penalty": 1.3}, {"eos_token_id": [2, 19, 33, 47, 71, 80]}):
        expected = target.generate(inputs, **settings, **extra)
        for method in ("speculative", "mcsd"):
            got = target.generate(
                inputs, custom_generate=custom_generate, draft=draft, method=method, **settings, **extra
            )
            assert got.tolist() == expected.tolist(), (method, extra)
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "max_new_tokens": 16, "min_p": 0.01}
    runs = [
        target.generate(
            inputs[1:], custom_generate=custom_generate, seed=seed, return_dict_in_generate=True, **sampled
        ).sequences.tolist()
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    for end in range(9, len(runs[0][0])):  # every token is one of the five most probable
        assert runs[0][0][end] in truth(target, runs[0][0][:end])[-1].topk(5).indices


def test_generate_refuses_what_is_not_served() -> None:
    model = build("GPTNeoX")
    for setting, sentence in (
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGram"),
        ({"num_beams": 2}, "num_beams"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"max_time": 3.0}, "MaxTimeCriteria"),
    ):
        with pytest.raises(RequestError, match=sentence):
            model.generate(torch.tensor([PROMPT]), custom_generate=custom_generate, max_new_tokens=4, **setting)


def test_tokenizer_objects_and_others() -> None:
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    engine = draftwood.load(build("DiffLlama", vocab_size=270), tokenizer=fast)
    assert engine.tokens("one two") == fast.encode("one two")
    with pytest.raises(ModelError, match="not a fast tokenizer"):
        draftwood.load(build("GPTNeoX"), tokenizer=object())
    with pytest.raises(ModelError, match="is not a model"):
        draftwood.load(object())


def test_without_transformers_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "draftwood.models.hf")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigurationError, match=r"needs the extra draftwood\[hf\]"):
        draftwood.load("hf:" + str(Path(__file__).parent))


def test_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "hugging_face.py"))
    printed = capsys.readouterr().out
    texts = dict(re.findall(r"^(\w+) +tau [\d.]+ (\[.+\])$", printed, re.MULTILINE))
    assert list(texts) == ["autoregressive", "speculative", "mcsd"]
    assert len(set(texts.values())) == 1
    assert printed.endswith("the same sequences: True\n")
