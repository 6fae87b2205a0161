"""Requests of wrong types and values are refused with one sentence, and nothing is taken or lost."""

import asyncio
import inspect
import math
import pydoc
from typing import Any

import numpy as np
import pytest
import torch
from ledger import lent

import draftwood
from draftwood import AsyncEngine, ConfigurationError, Engine, ModelError, RequestError, SamplingParams, TabularModel
from draftwood.engine.batching import BatchInterrupted
from draftwood.engine.request import DEFAULTS, MoreOptions, Options
from draftwood.methods import Speculative


@pytest.fixture
def engine() -> Engine:
    return draftwood.load(TabularModel.random(5, seed=1), TabularModel.random(5, seed=2))


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        (None, {}, "a prompt is text, a list of token ids or a list of messages, not NoneType"),
        (7, {}, "not int"),
        (b"text", {}, "not bytes"),
        ({"role": "user", "content": "hi"}, {}, "not dict"),
        ([1, 2.7], {}, "token ids are whole numbers, but the prompt has 2.7"),
        ([1, "2"], {}, "token ids are whole numbers, but the prompt has '2'"),
        ([1], {"stop": 5}, "stop is 5, but must be a string or a list of strings"),
        ([1], {"stop": [5]}, "must be a string or a list of strings"),
        ([1], {"max_new_tokens": "5"}, "max_new_tokens is '5', but must be a whole number"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens is 2.5, but must be a whole number"),
        ([1], {"max_new_tokens": True}, "max_new_tokens is True"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens is 0, but must be at least 1"),
        ([1], {"seed": 1.5}, "seed is 1.5, but must be a whole number"),
        ([1], {"seed": None}, "seed is None, but must be a whole number"),
        ([1], {"top_logprobs": -1}, "top_logprobs is -1, but must be at least 0"),
        ([1], {"cancelled": True}, "cancelled is True, but must be a function"),
        (
            [1],
            {"temperature": 0.5, "sampling": {"temperature": 1}},
            "temperature is 0.5, but sampling says 1.0; give one",
        ),
        ([1], {"top_k": 5, "sampling": SamplingParams(top_k=4)}, "top_k is 5, but sampling says 4; give one of them"),
        ([1], {"max_tokens": 3}, "there is no option 'max_tokens'"),
    ],
)
def test_wrong_types_are_refused(engine: Engine, prompt: Any, options: dict[str, Any], sentence: str) -> None:
    for call in (engine.generate, engine.stream, engine.explain):
        with pytest.raises(RequestError) as error:
            call(prompt, **options)  # type: ignore[operator]
        assert sentence in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(RequestError):
        engine.batch([{"prompt": prompt, **options}])


@pytest.mark.parametrize(
    ("bias", "sentence"),
    [
        ({1: math.nan}, "a logit bias must be a number or -inf"),
        ({1: math.inf}, "a logit bias must be a number or -inf"),
        (dict.fromkeys(range(5), -math.inf), "logit_bias forbids every token"),
        ({9: 1.0}, "logit_bias names token 9, but ids go from 0 to 4"),
    ],
)
def test_a_bias_that_leaves_no_distribution_is_refused(engine: Engine, bias: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        engine.generate([1], sampling={"logit_bias": bias})


def test_a_bias_forbids_a_token(engine: Engine) -> None:
    result = engine.generate([1], "speculative", {"logit_bias": {2: -math.inf}}, 200)
    assert 2 not in result.tokens


def test_ids_may_be_numbers_of_numpy_and_torch(engine: Engine) -> None:
    plain = engine.generate([1, 2, 3], max_new_tokens=5).tokens
    assert engine.generate(np.array([1, 2, 3]), max_new_tokens=np.int64(5)).tokens == plain  # type: ignore[arg-type]
    assert engine.generate(torch.tensor([1, 2, 3]), max_new_tokens=5).tokens == plain  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1e-300, 1e-320, 1e-38, 1e-30, 1e-20])
def test_a_tiny_temperature_is_greedy(engine: Engine, temperature: float) -> None:
    greedy = engine.generate([1, 2], sampling={"temperature": 0}, max_new_tokens=20).tokens
    for method in ("autoregressive", "speculative", "mcsd", {"name": "dsbd", "width": 1, "draft_width": 2}):
        for more in ({}, {"top_k": 3}):
            found = engine.generate([1, 2], method, {"temperature": temperature, **more}, 20)
            assert found.tokens == greedy


def test_a_request_that_cannot_be_built_takes_no_memory(engine: Engine) -> None:
    for _ in range(40):
        with pytest.raises(ModelError, match="nowhere"):
            engine.generate([1], {"name": "speculative", "depth": "decision:nowhere"})
        with pytest.raises(RequestError):
            engine.generate([1], seed=None)  # type: ignore[arg-type]
    assert not any(lent(engine)) and engine.builder.budget.used == 0


def test_a_batch_and_a_stream_are_refused_before_any_work(engine: Engine) -> None:
    """Also what only shows when the method's parts are built."""
    forwards = []
    forward = engine.target.forward

    def noted(*options: Any) -> Any:
        forwards.append(1)
        return forward(*options)

    engine.target.forward = noted  # type: ignore[method-assign]
    wrong = {"name": "speculative", "depth": "decision:nowhere"}
    with pytest.raises(ModelError, match="nowhere"):
        engine.batch([[1], [2], {"prompt": [3], "method": wrong}], concurrency=1)
    with pytest.raises(ModelError, match="nowhere"):
        engine.stream([1], method=wrong)
    assert not forwards


@pytest.mark.parametrize("prompts", ["some text", b"some", {"prompt": [1]}])
def test_a_batch_is_a_list(engine: Engine, prompts: Any) -> None:
    with pytest.raises(RequestError, match=r"batch takes a list of prompts; wrap a single one in a list"):
        engine.batch(prompts)


def test_an_entry_without_a_prompt(engine: Engine) -> None:
    with pytest.raises(RequestError, match="an entry of the batch has no prompt"):
        engine.batch([{"seed": 3}])


def test_results_come_as_they_finish(engine: Engine) -> None:
    entries = [{"prompt": [1], "max_new_tokens": count} for count in (30, 2, 10)]
    told: list[tuple[int, int]] = []
    found = list(engine.as_completed(entries, concurrency=3))
    assert [index for index, _ in found] == [1, 2, 0]
    results = engine.batch(entries, progress=lambda finished, count: told.append((finished, count)))
    assert [len(result.tokens) for result in results] == [30, 2, 10] and told == [(1, 3), (2, 3), (3, 3)]


def test_an_interrupt_keeps_what_was_finished(engine: Engine) -> None:
    def interrupt(finished: int, count: int) -> None:
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted) as stopped:
        engine.batch([[1], [2], [3], [4]], concurrency=1, progress=interrupt, max_new_tokens=4)
    assert sorted(stopped.value.results) == [0, 1] and all(len(r.tokens) == 4 for r in stopped.value.results.values())
    assert not any(lent(engine))


def test_a_draft_that_was_replaced_is_forgotten(engine: Engine) -> None:
    """Caches belong to models, not to the numbers that name them in memory."""
    for seed in range(12):
        engine.set_draft_models("speculative", [TabularModel.random(5, seed=seed)])
        assert len(engine.generate([1, 2], "speculative", max_new_tokens=6, seed=seed).tokens) == 6
    assert len(engine.builder.caches) <= 3


def test_short_representations(engine: Engine) -> None:
    result = engine.generate([1, 2], Speculative(gamma=2), max_new_tokens=60)
    shown = repr(result)
    assert len(shown) < 200 and "60 tokens" in shown and "speculative" in shown
    assert str(result) == result.text and "60 tokens" in result._repr_html_()
    for one in (result.metrics, result.rounds[0], engine):
        assert len(repr(one)) < 200


def test_the_public_names_are_all_there_is() -> None:
    assert set(dir(draftwood)) == {*draftwood.__all__, "__version__"}


def test_sampling_options_are_keywords_too(engine: Engine) -> None:
    """In every call the same as `sampling`, and beside it; those of a batch entry go before common ones."""
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 3, "repetition_penalty": 1.2, "logit_bias": {1: 0.5}}
    more: dict[str, Any] = {"max_new_tokens": 12, "seed": 5}
    expected = engine.generate([1], sampling=options, **more)

    async def awaited() -> list[list[int]]:
        async with AsyncEngine(engine) as served:
            streamed = [token async for event in served.stream([1], **options, **more) for token in event.tokens]
            return [(await served.generate([1], **options, **more)).tokens, streamed]

    found = [
        engine.generate([1], **options, **more).tokens,
        engine.generate([1], sampling={"top_k": 3}, **options, **more).tokens,
        engine.generate([1], sampling=SamplingParams(temperature=0.7), **options, **more).tokens,
        [token for event in engine.stream([1], **options, **more) for token in event.tokens],
        engine.explain([1], **options, **more).result.tokens,
        engine.batch([[1]], **options, **more)[0].tokens,
        engine.batch([{"prompt": [1], **options}], sampling={"temperature": 9.0, "top_k": 1}, **more)[0].tokens,
        engine.batch([{"prompt": [1], **options}], sampling=SamplingParams(top_k=1), top_k=2, **more)[0].tokens,
        engine.batch([{"prompt": [1], "sampling": options}], temperature=9.0, top_p=0.5, **more)[0].tokens,
        *asyncio.run(awaited()),
    ]
    assert found == [expected.tokens] * len(found)
    assert engine.generate([1], temperature=0, max_new_tokens=1).sampling["temperature"] == 0
    with pytest.raises(ConfigurationError, match=r"sampling: option 'temperature' is -1, but"):
        engine.generate([1], temperature=-1)


def test_help_shows_every_keyword_and_no_inner_part() -> None:
    names = [*SamplingParams.model_fields, "stop", "min_new_tokens", "structured", "cancelled", "seed", "method"]
    for kind, calls in {
        Engine: ("generate", "stream", "explain", "batch", "as_completed"),
        AsyncEngine: ("generate",),
    }.items():
        for call in calls:
            parameters = inspect.signature(getattr(kind, call)).parameters
            assert set(names) <= parameters.keys() and "options" not in parameters
    text = pydoc.plain(pydoc.render_doc(Engine))
    assert "temperature: 'float | None' = None" in text and "cancelled: 'Callable[[], bool] | None' = None" in text
    public = {name for name in dir(Engine) if not name.startswith("_")}
    assert public == {
        *("generate", "stream", "batch", "as_completed", "explain", "score", "method", "tokens", "default_method"),
        *("set_draft_models", "reset_prefix_cache", "forget_answers", "memory", "prefix_hit_rate", "compile_seconds"),
        *("broken", "tokenizer", "end_tokens", "weight_bytes", "context"),
    }


def test_options_are_listed_once_with_their_types() -> None:
    assert {*MoreOptions.__annotations__, *Options.__annotations__} == DEFAULTS.keys()
    assert SamplingParams.model_fields.keys() <= MoreOptions.__annotations__.keys()
