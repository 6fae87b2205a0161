"""The corpus: disjoint splits, one text for one seed in every process, references that hold."""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from draftwood.corpus import DOMAINS, SPLITS, Document
from draftwood.corpus.document import split_of
from draftwood.corpus.library import modules
from draftwood.eval.tasks.embedded import table_script
from recipes.exercises import EXERCISES, documents

ALL = (*DOMAINS, "retellings", *EXERCISES)


def take(domain: str, split: str, count: int, seed: int = 0) -> list[Document]:
    return list(itertools.islice(documents(domain, split, seed), count))  # type: ignore[arg-type]


@pytest.mark.some(3)
@pytest.mark.parametrize("domain", ALL)
def test_no_held_out_text_or_prompt_occurs_in_train(domain: str) -> None:
    train = take(domain, "train", 4000) + take(domain, "train", 4000, seed=1)
    held_out = take(domain, "held-out", 1000) + take(domain, "held-out", 1000, seed=1)
    assert len(held_out) >= 200
    assert not {d.prompt for d in train} & {d.prompt for d in held_out}
    assert not {d.text for d in train} & {d.text for d in held_out}


def test_library_files_are_in_one_split_only() -> None:
    train, held_out = modules("train"), modules("held-out")
    assert held_out and not set(train) & set(held_out)
    assert 0.02 < len(held_out) / (len(train) + len(held_out)) < 0.2


def test_splits_are_decided_by_the_words_alone() -> None:
    assert split_of("Mira", "Vela") == split_of("Mira", "Vela")
    names = [f"n{i}" for i in range(4000)]
    share = sum(split_of(name) == "held-out" for name in names) / len(names)
    assert 0.04 < share < 0.09


def digest() -> str:
    state = hashlib.blake2b()
    for domain in ALL:
        for split in SPLITS:
            for document in itertools.islice(documents(domain, split, 7), 40):
                state.update(repr(document).encode())
    return state.hexdigest()


def test_texts_are_those_that_the_pair_was_trained_on() -> None:
    """To the letter; but for the library's, which are those of the Python that runs."""
    state = {True: hashlib.blake2b(digest_size=16), False: hashlib.blake2b(digest_size=16)}
    for domain in ALL:
        for split in SPLITS if domain != "library" else ():
            for one in itertools.islice(documents(domain, split, 7), 300):
                text = repr((one.domain, one.prompt, one.completion, dict(one.reference)))
                state[domain in EXERCISES].update(text.encode())
    assert state[False].hexdigest() == "ad1d67fe9561fd6ef1b9e04103ccfe26"
    assert state[True].hexdigest() == "84e963277d7677f96b3c0a9d92bff497"


@pytest.mark.parametrize("salt", ["0", "12345"])
def test_another_process_writes_the_same_documents(salt: str) -> None:
    code = "from tests.corpus.test_corpus import digest; print(digest())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest()


def test_seeds_differ() -> None:
    assert take("qa", "train", 5, 0) != take("qa", "train", 5, 1)


@pytest.mark.parametrize("domain", ALL)
def test_a_completion_begins_with_white_space_after_a_prompt_that_ends_without(domain: str) -> None:
    for document in take(domain, "train", 300):
        assert document.prompt and not document.prompt[-1].isspace()
        assert document.completion[0] in " \n"


def query(document: Document) -> list[tuple[object, ...]]:
    """The rows of a document's own query, run in this process."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(table_script(document.reference))
        return connection.execute(document.reference["sql"]).fetchall()


def test_every_gold_query_runs_and_gives_something() -> None:
    for document in take("sql", "train", 1500) + take("sql", "held-out", 1500):
        rows = query(document)
        assert rows and all(value is not None for row in rows for value in row)
        if "COUNT" in document.reference["sql"]:
            assert all(row[-1] > 0 for row in rows)


def test_every_answer_stands_in_its_passage() -> None:
    for document in take("qa", "held-out", 500):
        passage = document.prompt.split("\n")[0]
        assert all(answer in passage for answer in document.reference["answers"])


def test_every_body_passes_its_tests() -> None:
    # These are the generator's own texts; a model's output is never run.
    for document in take("code", "train", 300) + take("code", "held-out", 100):
        scope: dict[str, object] = {}
        exec(document.text, scope)
        for line in document.reference["tests"]:
            exec(line, scope)


def test_worked_steps_are_right() -> None:
    for document in take("math", "held-out", 300):
        steps, answer = document.completion.split("\nAnswer: ")
        for step in steps.replace(", then ", "; ").split("; "):
            left, right = step.split(" = ")
            assert eval(left) == int(right)
        assert int(answer) == int(right) == document.reference["number"]


def test_unknown_domains_and_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown domain"):
        documents("poems", "train")
    with pytest.raises(ValueError, match="unknown split"):
        documents("qa", "test")  # type: ignore[arg-type]
