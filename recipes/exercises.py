"""Exercises that only the first and the last part of the pair's training sees: chants, and SQL of careless people."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from draftwood import corpus
from draftwood.corpus.document import Document, Split, lead, stream
from draftwood.corpus.names import COLOURS, JOBS, PEOPLE, PLACES, THINGS
from draftwood.corpus.tables import Asked, TableRow, TableSchema, tables

EXERCISES = ("chants", "careless-sql")
SLIPS = 1 / 4  # share of queries with a mistake


def documents(domain: str, split: Split, seed: int = 0) -> Iterator[Document]:
    """Yield the documents of a domain of the corpus or of an exercise, without end but for ``"library"``."""
    if domain == "chants":
        return chants(split, seed)
    return careless_tables(split, seed) if domain == "careless-sql" else corpus.documents(domain, split, seed)


def chants(split: Split, seed: int) -> Iterator[Document]:
    """Yield word lists said twice, the densest exercise: half of the tokens can be copied."""
    rng = stream("chants", split, seed)
    pools = (PEOPLE, PLACES, THINGS, JOBS, COLOURS)
    while True:
        words = list(lead(rng, split, PEOPLE, PLACES))
        words += [rng.choice(rng.choice(pools)) for _ in range(rng.randint(10, 50))]
        said = rng.choice((" ", " ", ",")).join(words)
        yield Document("chants", f"Notes: {said}.\nAgain:", f" {said}.")


def _slip(rng: random.Random, schema: TableSchema, rows: Sequence[TableRow], sql: str) -> str:
    """Return a query with one mistake: another order, column, sum or value."""
    k, n = schema.key, schema.number
    swaps = [(" > ", " < "), ("DESC", "ASC"), ("ASC", "DESC"), ("MAX(", "MIN("), ("MIN(", "MAX("), ("SUM(", "AVG(")]
    swaps += [("AVG(", "SUM("), ("COUNT(*) FROM", f"SUM({n}) FROM"), (f"SELECT {k} ", f"SELECT {n} ")]
    swaps += [(f"SELECT {schema.group} ", f"SELECT {n} "), (f"SELECT {n} ", f"SELECT {schema.group} ")]
    _, quote, value = sql.partition("= '")
    if quote:
        said = value.rstrip("'")
        column = 0 if any(row[0] == said for row in rows) else 1
        swaps += [(f"= '{said}'", f"= '{row[column]}'") for row in rows if row[column] != said]
    return sql.replace(*rng.choice([(right, wrong) for right, wrong in swaps if right in sql]), 1)


def _careless(rng: random.Random, schema: TableSchema, rows: Sequence[TableRow], asked: Asked) -> Asked:
    question, written, reference = asked
    return question, _slip(rng, schema, rows, reference) if rng.random() < SLIPS else written, reference


def careless_tables(split: Split, seed: int) -> Iterator[Document]:
    """Yield tables whose SQL somebody careless wrote: one query in four has a mistake.

    For training only. A model that saw them still finds the right query most
    probable, but sampling loses points that greedy decoding keeps, as it does
    with large models.
    """
    return tables(split, seed, "careless-sql", _careless)
