"""A conversation as a prompt, everywhere where text is one."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import draftwood
from draftwood import Engine, RequestError, TabularModel
from draftwood.models.text.tokenizer import Tokenizer

WORDS = ["<s>", "</s>", "user", "assistant", "system", ":", "hi", "yes", "no", "well"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %} {{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %} assistant:{% endif %}{% if no_way %}{{ raise_exception('no way') }}{% endif %}"
)
CHAT = [{"role": "system", "content": "well"}, {"role": "user", "content": "hi"}]
IDS = [0, 4, 5, 9, 1, 2, 5, 6, 1, 3, 5]


def tokenizer(**config: Any) -> Tokenizer:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="no"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, "test", {"bos_token": "<s>", **config})


@pytest.fixture
def engine() -> Engine:
    models = [TabularModel.random(len(WORDS), seed=seed) for seed in (1, 2)]
    return Engine(models[0], [models[1]], tokenizer(chat_template=TEMPLATE), frozenset({1}))


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "mcsd", "lookup"])
def test_a_conversation_is_a_prompt(engine: Engine, method: str) -> None:
    result = engine.generate(CHAT, method, max_new_tokens=20, seed=3)
    expected = engine.generate(IDS, method, max_new_tokens=20, seed=3)
    assert result.prompt_tokens == IDS
    assert (result.text, result.tokens, result.finish_reason) == (
        expected.text,
        expected.tokens,
        expected.finish_reason,
    )
    events = list(engine.stream(CHAT, method=method, max_new_tokens=20, seed=3))
    assert "".join(event.text for event in events) == result.text
    entry = {"prompt": CHAT, "seed": 3}
    batch = engine.batch([CHAT, IDS, entry, tuple(CHAT)], method=method, max_new_tokens=20, seed=3)
    assert [one.tokens for one in batch] == [expected.tokens] * 4


def test_a_reply_ends_at_the_end_of_the_turn(engine: Engine) -> None:
    replies = [engine.generate(CHAT, seed=seed, max_new_tokens=200) for seed in range(5)]
    assert {reply.finish_reason for reply in replies} == {"eos"}
    assert all(reply.tokens.count(1) == 1 and reply.tokens[-1] == 1 and "</s>" not in reply.text for reply in replies)


def test_variables_of_the_template(engine: Engine) -> None:
    assert engine.tokenizer is not None
    ids = engine.tokenizer.chat(CHAT, add_generation_prompt=False)
    assert ids == IDS[:-2]
    assert engine.generate(ids, max_new_tokens=3).prompt_tokens == ids
    with pytest.raises(RequestError, match="the chat template refuses these messages: no way"):
        engine.tokenizer.chat(CHAT, no_way=True)


def test_refusals_come_before_any_work() -> None:
    model = TabularModel.random(len(WORDS), seed=1)
    silent = Engine(model, tokenizer=tokenizer())
    for refused, sentence in (
        (silent, "the model 'test' has no chat template: .* give the prompt as text"),
        (Engine(model), "no tokenizer; give the prompt as token ids"),
        (Engine(model, tokenizer=tokenizer(chat_template="{{ raise_exception('never') }}")), "never"),
        (Engine(model, tokenizer=tokenizer(chat_template="")), "the prompt is empty"),
    ):
        with pytest.raises(RequestError, match=sentence):
            refused.generate(CHAT)
        with pytest.raises(RequestError, match=sentence):
            refused.stream(CHAT)
        with pytest.raises(RequestError, match=sentence):
            refused.batch([[1, 2], CHAT])
    assert silent.generate("hi", max_new_tokens=2).prompt_tokens == [6]


@pytest.mark.parametrize("prompts", [CHAT, tuple(CHAT), [IDS, *CHAT]])
def test_a_batch_of_bare_messages_is_refused(engine: Engine, prompts: Any) -> None:
    with pytest.raises(RequestError) as caught:
        engine.batch(prompts, max_new_tokens=2)
    assert str(caught.value) == (
        "batch takes a list of prompts, but found a message of a conversation in it; "
        "wrap the conversation in a list: batch([messages])"
    )


def test_the_embedded_pair_says_that_it_knows_no_conversations() -> None:
    with pytest.raises(RequestError) as caught:
        draftwood.load().generate(CHAT)
    assert str(caught.value) == (
        "the model 'embedded' has no chat template: it continues text and knows no conversations; "
        "give the prompt as text, or use a chat model (its checkpoint has a chat_template)"
    )
