"""Compares an output with the answer that a document expects."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.corpus.document import Document

# Steps of the SQLite machine before a predicted query is given up.
_STEPS = 100_000

# Where an answer ends, for domains whose answer is one line: a stop string for generation.
STOPS = {"qa": "\n", "sql": "\n"}

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def _exact(text: str) -> str:
    return " ".join(text.split())


def run_query(reference: Mapping[str, Any], sql: str) -> list[tuple[Any, ...]] | None:
    """Run one query on the table of a reference, read-only and in memory.

    Returns the rows, or None where the query is not one valid SELECT. Nothing
    but reading is authorised, and a long query is stopped.
    """
    columns: Sequence[tuple[str, str]] = reference["columns"]
    connection = sqlite3.connect(":memory:")
    try:
        spec = ", ".join(f"{name} {kind}" for name, kind in columns)
        connection.execute(f"CREATE TABLE {reference['table']} ({spec})")
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {reference['table']} VALUES ({marks})", reference["rows"])
        connection.commit()
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
        steps = iter(range(_STEPS // 1000))
        connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
        return connection.execute(sql).fetchall()
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        connection.close()


def _score_sql(reference: Mapping[str, Any], output: str) -> bool:
    predicted = run_query(reference, output.strip())
    if predicted is None:
        return False
    gold = run_query(reference, reference["sql"])
    assert gold is not None
    if "ORDER BY" in reference["sql"]:
        return predicted == gold
    return Counter(predicted) == Counter(gold)


def _overlap(expected: str, output: str) -> float:
    """Return the F1 of the words of two texts, from 0 to 1."""
    left, right = (Counter(re.findall(r"\w+", text.lower())) for text in (expected, output))
    common = (left & right).total()
    return 2 * common / (left.total() + right.total()) if common else 0.0


def score(document: Document, output: str) -> bool | float | None:
    """Score an output, which is what a model wrote after the prompt.

    Answers of qa and sql end with their line (see STOPS): what a model writes
    after it, such as one more question, does not count.

    - qa: exact match with one of the answers, up to white space;
    - sql: the predicted query, run read-only on SQLite, gives the gold result
      (in order where the gold query orders, else as a multiset);
    - math: the number after the first ``Answer:``;
    - summaries: F1 of the words, 0 to 1;
    - code: the exact body. Generated code is never run: that would be unsafe;
    - stories and library: None, there is nothing to compare.
    """
    reference = document.reference
    answer = output.split("\n", 1)[0]
    match document.domain:
        case "qa":
            return _exact(answer) in reference["answers"]
        case "sql":
            return _score_sql(reference, answer)
        case "math":
            match = re.search(r"Answer: (-?\d+)\s*$", output, re.MULTILINE)
            return match is not None and int(match[1]) == reference["number"]
        case "summaries":
            return _overlap(reference["summary"], output)
        case "code":
            return bool(output.strip() == reference["body"].strip())
    return None
