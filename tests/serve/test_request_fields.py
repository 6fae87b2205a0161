"""Fields of requests, vLLM's above all, and what is written for them: log-probabilities, cut prompts, stop strings."""

from __future__ import annotations

from typing import Any

import pytest
from servers import Running

from draftwood.sampling.params import SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT, SEED = "Story: a fox", 3
HI = [{"role": "user", "content": "hi"}]


def test_log_probabilities_of_prompts(served: Running) -> None:
    expected = served.engine.score(PROMPT, top_logprobs=2)
    for n in (1, 2):
        choices = served.post(COMPLETIONS, prompt=[PROMPT, "ab"], max_tokens=2, prompt_logprobs=2, n=n)["choices"]
        assert [len(choice["prompt_logprobs"]) for choice in choices] == [len(PROMPT)] * n + [2] * n
        first, *others = choices[0]["prompt_logprobs"]
        assert first is None
        for token, logprob, top, found in zip(
            expected.tokens[1:], expected.logprobs[1:], expected.top_logprobs[1:], others, strict=True
        ):
            assert found.keys() == {str(token), *(str(one) for one, _ in top)}
            assert found[str(token)]["logprob"] == logprob
            assert [found[str(one)]["rank"] for one, _ in top] == [1, 2]
    echoed = served.post(COMPLETIONS, prompt=PROMPT, max_tokens=0, echo=True, prompt_logprobs=2)["choices"][0]
    assert echoed["prompt_logprobs"] == [None, *others] if n == 1 else echoed["prompt_logprobs"][1:] == others
    chat = served.post(CHAT, messages=HI, max_tokens=1, prompt_logprobs=0)
    assert [len(entry or ()) for entry in chat["prompt_logprobs"]] == [0, *[1] * (len("u:hi|a:") - 1)]
    status, error = served.refused(COMPLETIONS, prompt=PROMPT, prompt_logprobs=1, stream=True)
    assert status == 400 and "not streamed" in error["message"]


@pytest.mark.parametrize("kept", [5, 400, -1])
def test_prompts_are_cut(served: Running, kept: int) -> None:
    context, long = served.engine.target.context, PROMPT * 40
    rest = long[-(context - 8) :] if kept == -1 else PROMPT if kept == 400 else PROMPT[-kept:]
    given = PROMPT if kept == 400 else long
    asked: Any = {"max_tokens": 8, "seed": SEED}
    cut = served.post(COMPLETIONS, prompt=given, truncate_prompt_tokens=kept, return_token_ids=True, **asked)
    assert cut["choices"][0]["prompt_token_ids"] == served.engine.tokens(rest)
    assert cut["choices"][0]["text"] == served.post(COMPLETIONS, prompt=rest, **asked)["choices"][0]["text"]
    talk = [{"role": "user", "content": given}]
    chat = served.post(CHAT, messages=talk, truncate_prompt_tokens=kept, **asked)
    whole = f"u:{given}|a:"
    assert chat["usage"]["prompt_tokens"] == min(len(whole), context - 8 if kept == -1 else kept)


def test_stop_strings_may_be_shown(served: Running) -> None:
    plain = served.engine.generate(PROMPT, max_new_tokens=20, seed=SEED)
    stop = plain.text[6]
    end = plain.text.index(stop)
    asked: Any = {"prompt": PROMPT, "max_tokens": 20, "seed": SEED, "stop": [stop]}
    for shown in (False, True):
        choice = served.post(COMPLETIONS, **asked, include_stop_str_in_output=shown)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (plain.text[: end + shown], "stop")
        chunks = served.chunks(COMPLETIONS, **asked, include_stop_str_in_output=shown)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    token = next(one for one in plain.tokens[1:] if served.service.tokenizer.known(one).part is None)
    asked = {"prompt": PROMPT, "max_tokens": 20, "seed": SEED, "stop_token_ids": [token]}
    texts = [
        served.post(COMPLETIONS, **asked, include_stop_str_in_output=shown)["choices"][0]["text"]
        for shown in (True, False)
    ]
    assert texts[0].startswith(texts[1]) and len(texts[0]) > len(texts[1])


def test_forbidden_tokens(served: Running) -> None:
    asked: Any = {"prompt": PROMPT, "max_tokens": 12, "seed": SEED}
    allowed = served.engine.tokens("abc")
    for method in ("off", "speculative", "lookup"):
        choice = served.post(COMPLETIONS, **asked, allowed_token_ids=allowed, bad_words=["a"], speculation=method)[
            "choices"
        ][0]
        assert set(choice["text"]) == {"b", "c"}
    bias = {str(token): -100 for token in range(served.engine.target.vocab_size) if token not in allowed}
    assert len(bias) < 1024
    for method in ("off", "speculative"):
        texts = [
            served.post(COMPLETIONS, **asked, **given, speculation=method)["choices"][0]["text"]
            for given in ({"logit_bias": bias}, {"allowed_token_ids": allowed})
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("field", ["suffix", "prompt_logprobs", "truncate_prompt_tokens"])
def test_rounds_are_not_told_of_changed_prompts(served: Running, field: str) -> None:
    status, error = served.refused("/v1/forest", prompt=PROMPT, **{field: "x" if field == "suffix" else 1})
    assert (status, error["param"]) == (400, field) and "leave it out" in error["message"]


def test_ids_of_a_prompt_come_once(served: Running) -> None:
    asked: Any = {"max_tokens": 6, "seed": SEED, "return_token_ids": True}
    for path, prompt in ((COMPLETIONS, {"prompt": PROMPT}), (CHAT, {"messages": HI})):
        whole = served.post(path, **prompt, **asked)["choices"][0]
        chunks = [chunk["choices"][0] for chunk in served.chunks(path, **prompt, **asked)]
        assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
        assert [chunk.get("prompt_token_ids") for chunk in chunks] == [
            whole["prompt_token_ids"],
            *[None] * (len(chunks) - 1),
        ]


def test_parts_of_characters_have_bytes(served: Running) -> None:
    """Of tokens that are no whole characters, the bytes together are the text's."""
    answer = served.post(CHAT, messages=HI, max_tokens=3, logprobs=True, guided_regex="é[ü]")["choices"][0]
    spelled = [entry["bytes"] for entry in answer["logprobs"]["content"]]
    assert bytes(byte for one in spelled[:-1] for byte in one or ()).startswith("é".encode())
    assert answer["message"]["content"].startswith("é")


def test_waiting_requests_begin_by_priority(target: Any) -> None:
    from draftwood import load
    from draftwood.engine.engine import prepare

    engine = load(target, max_running=1)
    begun: list[int] = []
    tasks = []
    for priority in (0, 5, -1, 2, -1):
        generation = prepare(engine, PROMPT, max_new_tokens=2, priority=priority, sampling=SamplingParams())
        generation.propose = None  # type: ignore[assignment]
        task = engine.builder.task(generation)
        start = task.start

        def started(start: Any = start, priority: int = priority) -> Any:
            begun.append(priority)
            return start()

        task.start = started
        tasks.append(engine.scheduler.submit(task))
    engine.scheduler.wait(tasks[1:2])
    while not all(task.done for task in tasks):
        engine.scheduler.step()
    assert begun == [-1, -1, 0, 2, 5]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_reply_has_a_token(served: Running, field: str) -> None:
    for path in (CHAT, "/v1/forest"):
        status, error = served.refused(path, messages=HI, **{field: 0})
        assert status == 400 and error["message"] == f"{field}: must be -1, or must be at least 1"
    assert served.post(CHAT, messages=HI, **{field: 1})["usage"]["completion_tokens"] == 1
