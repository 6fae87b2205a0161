"""The embedded corpus's own tasks, which the embedded pair can answer: every kind of work, offline.

Prompts, stop strings and references are the corpus' (draftwood.corpus); scores are named as those of the data sets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import new_class
from typing import Any, ClassVar

from pydantic import Field

from draftwood.corpus import documents
from draftwood.eval.sandbox.programs import ProgramLimits, run_program
from draftwood.eval.sandbox.queries import Database, run_query
from draftwood.eval.scoring.answers import exact_match, word_f1
from draftwood.eval.scoring.rows import extract_query, orders, same_rows
from draftwood.eval.tasks.base import Instance, Item, ItemScores, Task


class Continued(Task):
    """Held-out documents of one domain. They hold their examples themselves and are continued, never chatted about."""

    domain: ClassVar[str]
    usual_tokens: ClassVar[int] = 64

    seed: int = Field(0, ge=0, description="of the stream of documents")

    def items(self) -> Iterator[Item]:
        for number, document in enumerate(documents(self.domain, "held-out", self.seed)):
            reference = {"completion": document.completion, **document.reference}
            yield Item(f"{self.seed}-{number}", (document.prompt,), reference, document.completion)

    def instances(self, limit: int | None, chat: bool = False) -> list[Instance]:
        self.require()
        items = islice(self.items(), 100 if limit is None else limit)  # the stream has no end
        return [self.instance(item, (), False) for item in items]

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        scorer = SCORERS.get(self.domain)
        return {} if scorer is None else {self.metric: float(scorer(instance.reference, answers[0]))}


def same_final_number(reference: Mapping[str, Any], answer: str) -> bool:
    """True where the number behind the first ``Answer:`` is the right one."""
    number = re.search(r"Answer: (-?\d+)\s*$", answer, re.MULTILINE)
    return number is not None and int(number[1]) == reference["number"]


def shared_words(reference: Mapping[str, Any], answer: str) -> float:
    """F1 of the words of an answer and of the right summary."""
    right, written = (Counter(re.findall(r"\w+", text.lower())) for text in (reference["summary"], answer))
    common = (right & written).total()
    return 2 * common / (right.total() + written.total()) if common else 0.0


def same_body(reference: Mapping[str, Any], answer: str) -> bool:
    """True where an answer is the body of the function, to the letter."""
    return bool(answer.strip() == reference["body"].strip())


SCORERS: dict[str, Callable[[Mapping[str, Any], str], float]] = {
    "math": same_final_number,
    "summaries": shared_words,
    "code": same_body,
}


class Questions(Continued):
    """Passages with questions, as SQuAD's."""

    name = "qa"
    summary = "embedded corpus: questions on a passage; EM and F1"
    metric = "em"
    domain = "qa"
    ends = ("\n",)
    usual_tokens = 32

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        golds, answer = instance.reference["answers"], answers[0].split("\n", 1)[0]
        return {"em": exact_match(answer, golds), "f1": word_f1(answer, golds)}


class Queries(Continued):
    """Tables with questions, as Spider's."""

    name = "sql"
    summary = "embedded corpus: SQL for a question; execution accuracy"
    metric = "execution"
    domain = "sql"
    ends = ("\n",)
    usual_tokens = 48

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        reference = instance.reference
        database = Database(script=table_script(reference))
        gold = run_query(database, reference["sql"])
        answer = run_query(database, extract_query(answers[0]))
        right = answer.error is None and same_rows(answer.rows, gold.rows, orders(reference["sql"]))
        return {"execution": float(right), "valid": float(answer.error is None)}


class Functions(Continued):
    """Functions, as HumanEval's."""

    name = "code"
    summary = "embedded corpus: functions whose tests are run; pass@k"
    metric = "passed"
    domain = "code"
    ends = ("\ndef", "\nclass")
    usual_tokens = 96
    runs_code = True

    def require(self) -> None:
        run_program("")

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        tests = "\n".join(instance.reference["tests"])
        program, name = instance.turns[0] + answers[0], instance.reference["name"]
        verdict = run_program(program, tests, [name], ProgramLimits(seconds=5.0))
        return {"passed": float(verdict.passed), "same_body": float(same_body(instance.reference, answers[0]))}


def continued(
    name: str, summary: str, metric: str, domain: str = "", ends: tuple[str, ...] = (), tokens: int = 64
) -> type[Continued]:
    """A task that has nothing of its own but these."""
    facts = {"name": name, "metric": metric, "domain": domain or name, "ends": ends, "usual_tokens": tokens}
    body = {"__module__": __name__, "__doc__": summary, "summary": summary, **facts}
    return new_class(name.title(), (Continued,), exec_body=lambda space: space.update(body))


EMBEDDED: tuple[type[Continued], ...] = (
    Questions,
    Queries,
    continued("math", "embedded corpus: word problems; the final number", "correct"),
    continued("summaries", "embedded corpus: a report in one sentence; F1 of words", "f1", ends=("\n",)),
    Functions,
    continued(
        "bodies",
        "embedded corpus: functions compared with the right body; nothing is run",
        "same_body",
        "code",
        Functions.ends,
        96,
    ),
    continued("stories", "embedded corpus: stories, open-ended; perplexity under the target", "perplexity", tokens=128),
    continued(
        "library", "Python's standard library, open-ended; perplexity under the target", "perplexity", tokens=128
    ),
)


def table_script(reference: Mapping[str, Any]) -> str:
    """The SQL that makes a document's table."""
    columns = ", ".join(f"{name} {kind}" for name, kind in reference["columns"])
    rows = ", ".join(f"({', '.join(literal(value) for value in row)})" for row in reference["rows"])
    return f"CREATE TABLE {reference['table']} ({columns}); INSERT INTO {reference['table']} VALUES {rows};"


def literal(value: Any) -> str:
    """A text or number as SQL writes it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
