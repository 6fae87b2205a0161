"""Texts that `train corpus` writes from the embedded pair's corpus."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from draftwood import RequestError, load
from draftwood.cli.groups import WorkloadOptions
from draftwood.corpus import Document
from draftwood.engine.loading import EMBEDDED
from draftwood.models.text import chat
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.packing import SHARES, in_shares
from draftwood.train.prompts import CORPUS, prompts_of, read_prompts
from draftwood.train.self_distillation import write_texts
from draftwood.train.settings import WritingSettings
from draftwood.train.texts import documents_of, read_texts
from draftwood.util.safe_parsing import parse_json


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(EMBEDDED / "target")


def documents(tokenizer: Tokenizer, seed: int, count: int) -> list[tuple[Document, list[int]]]:
    return list(islice(in_shares(lambda texts: [tokenizer.encode(text) for text in texts], "train", seed), count))


def test_domains_have_their_shares_of_the_tokens(tokenizer: Tokenizer) -> None:
    tokens: Counter[str] = Counter()
    for document, ids in documents(tokenizer, 3, 1500):
        assert tokenizer.decode(ids) == document.text
        tokens[document.domain] += len(ids) + 1
    assert {name: count / tokens.total() for name, count in tokens.items()} == pytest.approx(SHARES, abs=0.004)


def test_texts_of_the_target_and_given_ones_have_the_domains_of_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Of both kinds, so that exits that learned from one or the other differ by who wrote the texts alone."""
    out = tmp_path / "texts.jsonl"
    for _ in write_texts(
        load(EMBEDDED / "target"), WritingSettings(given=CORPUS, count=80, max_new_tokens=2, seed=7), out
    ):
        pass
    lines = [parse_json(line) for line in out.read_text("utf-8").splitlines()]
    given = [line["tokens"] for line in lines if line["source"] == "given"]
    assert given == [ids for _, ids in documents(tokenizer, 8, 40)]
    prompts = [line["tokens"][: line["prompt_tokens"]] for line in lines if line["source"] == "target"]
    longest = load(EMBEDDED / "target").target.context // 2
    assert prompts == [tokenizer.encode(document.prompt)[:longest] for document, _ in documents(tokenizer, 7, 40)]


def test_a_text_is_kept_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    """So whoever interrupts loses none of those, and what is gone on with is the same file."""
    engine, plan = load(EMBEDDED / "target"), WritingSettings(count=7, max_new_tokens=9)
    list(write_texts(engine, plan, whole := tmp_path / "whole.jsonl", concurrency=2))
    texts = write_texts(engine, plan, broken := tmp_path / "broken.jsonl", concurrency=2)
    assert next(texts) == 0
    for count in (1, 2, 3):
        assert next(texts) == count == len(broken.read_bytes().splitlines())
    texts.close()
    assert whole.read_bytes().startswith(broken.read_bytes())
    assert list(write_texts(engine, plan, broken, concurrency=3)) == [3, 4, 5, 6, 7]
    assert whole.read_bytes() == broken.read_bytes()


def test_texts_keep_the_token_that_ended_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A chat model has several; only the one that it ends its turn with is what a drafter should learn."""
    engine, out = load(EMBEDDED / "target"), tmp_path / "texts.jsonl"
    period = tokenizer.encode(".")[-1]
    engine.requests.end_tokens = frozenset({0, period})
    list(write_texts(engine, WritingSettings(count=4, max_new_tokens=40), out))
    ended = [line["tokens"] for line in map(parse_json, out.read_text("utf-8").splitlines())]
    assert any(tokens[-1] == period for tokens in ended)
    ends = frozenset({0, period})
    read = list(documents_of(out, tokenizer, 0, None, ends))
    assert read == [tokens if tokens[-1] in ends else [*tokens, 0] for tokens in ended]
    assert next(documents_of(out, tokenizer, ended[0][-1], None, frozenset())) == ended[0]
    assert read_texts(str(out), tokenizer, 0, 128, 9, 9, ends=ends).ends == ends


def test_prompts_may_be_conversations(tmp_path: Path) -> None:
    """Of a .jsonl file, or all of them with `chat`."""
    file = tmp_path / "prompts.jsonl"
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    file.write_text(f'"Once"\n{json.dumps({"messages": talk})}\n{json.dumps({"prompt": "Upon"})}\n', "utf-8")
    assert read_prompts(file) == ["Once", talk, "Upon"]
    assert read_prompts(file, chat=True)[0] == [{"role": "user", "content": "Once"}]
    file.write_text('{"messages": []}\n', "utf-8")
    with pytest.raises(RequestError, match="line 1, holds neither a string nor an object with a prompt or messages"):
        read_prompts(file)


def test_the_target_answers_conversations(tokenizer: Tokenizer, tmp_path: Path) -> None:
    engine = load()
    assert engine.tokenizer is not None
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    engine.tokenizer.templates = chat.declared({"chat_template": template}, "embedded")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tell a story\n", "utf-8")
    ((document, _),) = documents(tokenizer, 0, 1)
    for source, text in ((str(prompts), "Tell a story"), (CORPUS, document.prompt)):
        out = tmp_path / f"{Path(source).name}.jsonl"
        list(write_texts(engine, WritingSettings(prompts=source, chat=True, count=1, max_new_tokens=4), out))
        (written,) = map(parse_json, out.read_text("utf-8").splitlines())
        start = tokenizer.encode(f"user: {text}\n", add_special=False)
        assert written["tokens"][: written["prompt_tokens"]] == start


def test_prompts_of_the_corpus_may_be_messages() -> None:
    for texts, talks in (
        (WorkloadOptions().texts(), WorkloadOptions(chat=True).texts()),
        (prompts_of(CORPUS, 5), prompts_of(CORPUS, 5, chat=True)),
    ):
        assert talks == [[{"role": "user", "content": text}] for text in texts]
