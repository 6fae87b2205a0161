"""The engine's surface: what a request may ask, what a result holds, and what is refused with one sentence."""

import math
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from ledger import lent

import draftwood
from draftwood import ConfigurationError, Engine, ModelError, RequestError, TabularModel
from draftwood.engine.loading import EMBEDDED
from draftwood.models.base import CausalModel
from draftwood.train.prompts import fitted


@pytest.fixture
def engine() -> Engine:
    return draftwood.load(TabularModel.random(5, seed=1), TabularModel.random(5, seed=2))


def test_a_result_holds_what_was_generated(engine: Engine) -> None:
    result = engine.generate([1, 2], "speculative", max_new_tokens=9, seed=4)
    assert len(result.tokens) == 9
    assert result.finish_reason == "length"
    assert [token for round_ in result.rounds for token in round_.tokens] == result.tokens
    assert result.metrics.emitted == 9
    assert result.metrics.rounds == len(result.rounds)
    assert result.metrics.tau == pytest.approx(9 / len(result.rounds))
    assert {"name": "speculative", "depth": "auto", "verify": "traversal"}.items() <= result.method.items()
    assert result.lossless
    assert result.metrics.target_rows == 1 + sum(1 + round_.drafted for round_ in result.rounds)


def test_log_probabilities_are_the_targets_before_and_after_warping() -> None:
    law = [0.5, 0.3, 0.2]
    engine = draftwood.load(TabularModel(lambda prefix: law, 3), TabularModel.random(3, seed=2))
    for method in ("autoregressive", "speculative", "mcsd", {"name": "speculative", "verify": "coupled"}):
        result = engine.generate([0], method, {"top_k": 2}, max_new_tokens=12, top_logprobs=2, seed=3)
        assert set(result.tokens) == {0, 1}
        for token, raw, warped, top in zip(
            result.tokens, result.logprobs, result.warped_logprobs, result.top_logprobs, strict=True
        ):
            assert raw == pytest.approx(math.log(law[token]))
            assert warped == pytest.approx(math.log(law[token] / 0.8))
            assert [token for token, _ in top] == [0, 1]
            assert [value for _, value in top] == pytest.approx([math.log(0.5), math.log(0.3)])
        for top in result.warped_top_logprobs:
            assert [token for token, _ in top] == [0, 1]
            assert [value for _, value in top] == pytest.approx([math.log(0.625), math.log(0.375)])


def test_the_same_seed_gives_the_same_text_and_another_seed_another(engine: Engine) -> None:
    texts = [engine.generate([1], "mcsd", max_new_tokens=20, seed=seed).tokens for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_output_ends_at_the_context(engine: Engine) -> None:
    engine = draftwood.load(TabularModel.random(5, seed=1, context=12), TabularModel.random(5, seed=2, context=8))
    for method in ("autoregressive", "speculative", "mcsd", "lookup"):
        result = engine.generate([1, 2, 3], method, max_new_tokens=100, seed=1)
        assert len(result.tokens) == 9
        assert result.finish_reason == "length"
    with pytest.raises(RequestError, match="the prompt has 12 tokens"):
        engine.generate([1] * 12)


def test_a_draft_of_smaller_context_does_not_change_the_text() -> None:
    target = TabularModel.random(5, seed=1)
    short, long = (TabularModel.random(5, seed=2, context=context) for context in (10, 4096))
    options = {"method": {"name": "speculative", "verify": "coupled"}, "max_new_tokens": 30, "seed": 8}
    assert (
        draftwood.load(target, short).generate([1, 2], **options).tokens
        == draftwood.load(target, long).generate([1, 2], **options).tokens
    )


def test_generation_ends_at_eos_inside_an_accepted_run() -> None:
    def law(prefix: tuple[int, ...]) -> list[float]:
        return [0.0, 1.0, 0.0] if len(prefix) != 4 else [0.0, 0.0, 1.0]

    model = TabularModel(law, 3)
    engine = Engine(model, [model], end_tokens=frozenset({2}))
    result = engine.generate([0, 0], {"name": "speculative", "gamma": 8})
    assert result.tokens == [1, 1, 2]
    assert result.finish_reason == "eos"
    assert result.metrics.accepted == 3
    assert engine.generate([0, 0], "speculative", max_new_tokens=6, ignore_eos=True).tokens == [1, 1, 2, 1, 1, 1]


def test_cancelling_keeps_what_was_generated(engine: Engine) -> None:
    asked = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) == 3

    result = engine.generate([1], "autoregressive", max_new_tokens=50, cancelled=cancelled)
    assert result.finish_reason == "cancelled"
    assert len(result.tokens) == 3


def test_closing_a_stream_gives_the_cache_back(engine: Engine) -> None:
    stream = engine.stream([1], method="speculative", max_new_tokens=50)
    next(stream)
    busy = lent(engine)
    stream.close()
    assert all(busy) and lent(engine) == [0, 0]


def test_batch_keeps_order_and_takes_options_per_request(engine: Engine) -> None:
    results = engine.batch(
        [
            [1, 2],
            {"prompt": [3], "method": "lookup", "max_new_tokens": 3},
            {"prompt": [4, 4], "seed": 9, "sampling": {"temperature": 0}},
        ],
        concurrency=2,
        max_new_tokens=7,
    )
    assert [len(result.tokens) for result in results] == [7, 3, 7]
    assert results[0].tokens == engine.generate([1, 2], max_new_tokens=7).tokens
    assert results[2].tokens == engine.generate([4, 4], sampling={"temperature": 0}, max_new_tokens=7).tokens
    assert engine.batch([]) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [7]}, "token id 7, but the target's ids go from 0 to 4"),
        ({"prompt": "text"}, "no tokenizer"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"top_logprobs": -1}, "top_logprobs is -1"),
        ({"stop": "x"}, "stop strings need a tokenizer"),
        ({"method": "speclative"}, r"no method 'speclative' \(did you mean 'speculative'\?\)"),
        ({"method": {"gamma": 4}}, "needs a name"),
        ({"method": {"name": "speculative", "gama": 4}}, r"no option 'gama' \(did you mean 'gamma'\?\)"),
        ({"method": {"name": "speculative", "gamma": -1}}, "must be at least 0"),
        ({"method": {"name": "mcsd", "tree": [4, 0]}}, "must be at least 1"),
        ({"method": {"name": "mcsd", "tree": "4,x"}}, "whole numbers"),
        ({"method": {"name": "mcsd", "tree": []}}, "at least 1 item"),
        ({"method": {"name": "lookup", "shared": True, "verify": "rejection"}}, "goes with verify=coupled"),
        ({"method": {"name": "lookup", "depth": "entropy"}}, "reads a draft model's distribution"),
        ({"method": {"name": "lookup", "depth": "decision:x"}}, "needs a draft model; this method drafts without one"),
        ({"sampling": {"temperature": -1}}, "must be at least 0"),
        ({"sampling": {"temprature": 1}}, r"did you mean 'temperature'\?"),
        ({"sampling": {"logit_bias": {9: 1.0}}}, "logit_bias names token 9"),
        ({"method": "file:nowhere.json"}, "does not exist"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_before_any_work(
    engine: Engine, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(draftwood.DraftwoodError, match=sentence):
        engine.generate(**{"prompt": [1], **options})
    with pytest.raises(draftwood.DraftwoodError, match=sentence):
        engine.stream(**{"prompt": [1], **options})
    with pytest.raises(draftwood.DraftwoodError, match=sentence):
        engine.batch([[1], {"prompt": [1], **options}])


def test_methods_refuse_engines_without_the_draft_models_they_need() -> None:
    model = TabularModel.random(5, seed=1)
    with pytest.raises(ConfigurationError, match="needs a draft model"):
        draftwood.load(model).generate([1], "speculative")
    with pytest.raises(ConfigurationError, match="works with 1 draft model, but 2 were loaded"):
        draftwood.load(model, [model, model]).generate([1], "mcsd")


def test_an_engine_takes_the_best_of_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With drafts these and lookup; else the exit, heads or skip set beside the weights; else lookup. It says which."""
    model = TabularModel.random(5, seed=1)
    alone, pair = draftwood.load(model), draftwood.load(model, model)
    assert alone.generate([1], max_new_tokens=2).method["name"] == alone.default_method.name == "lookup"
    assert (
        pair.default_method.as_dict()["lookup"]
        and pair.default_method.name == "speculative"
        and "speculative" in repr(pair)
    )
    assert pair.generate([1], max_new_tokens=2).method == pair.default_method.as_dict()
    assert draftwood.load(model, [model, model]).default_method.name == "specinfer"
    embedded = Path(str(files("draftwood") / "models" / "embedded" / "target"))
    target = tmp_path / "target"
    target.mkdir()
    for file in filter(Path.is_file, embedded.iterdir()):
        shutil.copy(file, target)
    found = {}
    beside = {"skip": "self-spec", "heads": "medusa", "eagle": "eagle", "exit": "eesd"}  # each before those that follow
    for kind, name in beside.items():
        shutil.copytree(embedded / kind, target / kind)
        engine = draftwood.load(target)
        found[name] = engine.generate("Story: In Corfe", max_new_tokens=8, sampling={"temperature": 0})
        assert engine.default_method.name == found[name].method["name"] == name and f"method={name!r}" in repr(engine)
    assert len({tuple(result.tokens) for result in found.values()}) == 1
    shutil.copy(embedded / "heads" / "heads.safetensors", target / "exit" / "exit.safetensors")
    assert draftwood.load(target).default_method.name == "eagle" and "exit is left alone" in caplog.text


def test_heads_that_read_no_tokens_limit_none() -> None:
    """Medusa heads have two places of their own; training, tuning and benchmarks asked for prompts of no token."""
    heads = EMBEDDED / "target" / "heads"
    for drafts in ([heads], [EMBEDDED / "draft", heads]):
        engine = draftwood.load(EMBEDDED / "target", drafts)
        assert engine.context == engine.target.context > 100 > engine.drafts[-1].context
        assert fitted(engine, ["Story: In Corfe"], 8) == [engine.tokens("Story: In Corfe")]
    law = [0.5, 0.5]
    short = draftwood.load(TabularModel(lambda prefix: law, 2), TabularModel(lambda prefix: law, 2, context=40))
    assert short.context == 40 < short.target.context


def test_only_models_are_loaded() -> None:
    with pytest.raises(ModelError, match="int is not a model"):
        draftwood.load(3)  # type: ignore[arg-type]
    assert isinstance(TabularModel.random(3, seed=1), CausalModel)


def test_nan_in_logits_is_an_error_of_its_own() -> None:
    model = TabularModel(lambda prefix: [math.nan, 1.0, 1.0] if len(prefix) > 2 else [1.0, 1.0, 1.0], 3)
    for method in ("autoregressive", "lookup", {"name": "autoregressive", "verify": "coupled"}):
        for temperature in (0, 1):
            with pytest.raises(draftwood.NonFiniteError, match="NaN"):
                draftwood.load(model).generate([1, 2], method, {"temperature": temperature}, max_new_tokens=5)


def test_method_files_and_strings_mean_the_same(tmp_path, engine: Engine) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "best.yaml"
    path.write_text("name: mcsd\ntree: [3, 2]\nreplacement: true\n")
    wanted = engine.method(f"file:{path}").as_dict()
    assert {"name": "mcsd", "tree": [3, 2], "replacement": True, "verify": "traversal"}.items() <= wanted.items()
    assert engine.method({"name": "mcsd", "tree": "3,2", "replacement": True}).as_dict() == wanted
    assert engine.method(draftwood.Method.parse(wanted)).as_dict() == wanted


def test_results_are_plain_data(engine: Engine) -> None:
    import json

    result = engine.generate([1, 2], "mcsd", max_new_tokens=5, top_logprobs=1)
    again = json.loads(json.dumps(result.as_dict()))
    assert again["tokens"] == result.tokens
    assert again["metrics"]["tau"] == result.metrics.tau
    assert torch.is_inference_mode_enabled() is False
