"""Tables with English questions and the SQL that answers them on SQLite."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import COLOURS, JOBS, PEOPLE, PLACES, THINGS

# One query in six is written by somebody who reads the question differently:
# "more than" as "at least", or with a column more in the result. The reference
# keeps the majority reading, so sampling loses points that the most probable
# query keeps.
_LOOSE_SHARE = 1 / 6


@dataclass(frozen=True)
class Schema:
    """A table: a key column, a group column and a number column."""

    table: str
    key: str
    group: str
    number: str
    keys: Sequence[str]
    groups: Sequence[str]
    low: int
    high: int

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Column names with their SQLite types, in order."""
        return (self.key, "TEXT"), (self.group, "TEXT"), (self.number, "INTEGER")


SCHEMAS: tuple[Schema, ...] = (
    Schema("players", "name", "town", "points", PEOPLE, PLACES, 1, 60),
    Schema("workers", "name", "job", "salary", PEOPLE, JOBS, 10, 99),
    Schema("guests", "name", "town", "age", PEOPLE, PLACES, 5, 90),
    Schema("towns", "town", "owner", "houses", PLACES, PEOPLE, 10, 99),
    Schema("goods", "item", "colour", "price", THINGS, COLOURS, 1, 90),
    Schema("stores", "town", "item", "stock", PLACES, THINGS, 1, 80),
)

Row = tuple[str, str, int]


def _ask(rng: random.Random, schema: Schema, rows: Sequence[Row]) -> tuple[str, str, str]:
    """Return a question, the SQL as somebody wrote it, and the reference SQL."""
    t, k, g, n = schema.table, schema.key, schema.group, schema.number
    row = rng.choice(rows)
    numbers = sorted(r[2] for r in rows)
    # Strictly below the largest number, so that no comparison comes out empty.
    bound = rng.choice(numbers[:-1])
    if numbers[-1] == bound:
        bound -= 1
    kind = rng.randrange(10)
    if kind == 0:
        ask = rng.choice((f"What is the {g} of '{row[0]}'?", f"Give the {g} of '{row[0]}'."))
        sql = f"SELECT {g} FROM {t} WHERE {k} = '{row[0]}'"
    elif kind == 1:
        ask = rng.choice((f"What is the {n} of '{row[0]}'?", f"Give the {n} of '{row[0]}'."))
        sql = f"SELECT {n} FROM {t} WHERE {k} = '{row[0]}'"
    elif kind == 2:
        ask = rng.choice((f"Which {t} have the {g} '{row[1]}'?", f"List the {t} with the {g} '{row[1]}'."))
        sql = f"SELECT {k} FROM {t} WHERE {g} = '{row[1]}'"
    elif kind == 3:
        ask = f"How many {t} have the {g} '{row[1]}'?"
        sql = f"SELECT COUNT(*) FROM {t} WHERE {g} = '{row[1]}'"
    elif kind == 4:
        ask = rng.choice((f"Which {t} have {n} over {bound}?", f"List the {t} with {n} more than {bound}."))
        sql = f"SELECT {k} FROM {t} WHERE {n} > {bound}"
    elif kind == 5:
        ask = f"How many {t} have {n} over {bound}?"
        sql = f"SELECT COUNT(*) FROM {t} WHERE {n} > {bound}"
    elif kind == 6:
        word, order, extreme = rng.choice((("highest", "DESC", "MAX"), ("lowest", "ASC", "MIN")))
        if rng.random() < 0.5:
            ask = f"What is the {word} {n}?"
            sql = f"SELECT {extreme}({n}) FROM {t}"
        else:
            ask = f"Which {k} has the {word} {n}?"
            sql = f"SELECT {k} FROM {t} ORDER BY {n} {order} LIMIT 1"
    elif kind == 7:
        word, call = rng.choice((("total", "SUM"), ("average", "AVG")))
        if rng.random() < 0.5:
            ask = f"What is the {word} {n} of all {t}?"
            sql = f"SELECT {call}({n}) FROM {t}"
        else:
            ask = f"What is the {word} {n} of {t} with the {g} '{row[1]}'?"
            sql = f"SELECT {call}({n}) FROM {t} WHERE {g} = '{row[1]}'"
    elif kind == 8:
        ask = rng.choice((f"How many {t} are there per {g}?", f"Count the {t} of each {g}."))
        sql = f"SELECT {g}, COUNT(*) FROM {t} GROUP BY {g}"
    else:
        word, order = rng.choice((("highest", "DESC"), ("lowest", "ASC")))
        ask = rng.choice((f"Sort the {t} by {n}, {word} first.", f"List each {k} by {n}, {word} first."))
        sql = f"SELECT {k} FROM {t} ORDER BY {n} {order}"
    return ask, _read_loosely(schema, kind, sql) if rng.random() < _LOOSE_SHARE else sql, sql


def _read_loosely(schema: Schema, kind: int, sql: str) -> str:
    """Return the query of somebody who reads a question of a kind differently; of some kinds nobody does."""
    if kind in (0, 1):
        return re.sub(r"^SELECT \w+ ", "SELECT * ", sql)
    if kind in (4, 5):
        return sql.replace(" > ", " >= ")
    return sql.replace(f"SELECT {schema.key} FROM", f"SELECT {schema.key}, {schema.number} FROM")


def _rows(rng: random.Random, schema: Schema, first: tuple[str, str]) -> list[Row]:
    count = rng.choice((3, 4, 4, 5, 6))
    # Few different groups, so that grouping and counting have something to count.
    groups = [first[1], *others(rng, schema.groups, rng.choice((1, 2)), first[1])]
    keys = others(rng, schema.keys, count - 1, first[0])
    # Different numbers, so that the highest and every order are unique.
    numbers = rng.sample(range(schema.low, schema.high + 1), count)
    return [
        (first[0], first[1], numbers[0]),
        *((key, rng.choice(groups), num) for key, num in zip(keys, numbers[1:], strict=True)),
    ]


Asked = tuple[str, str, str]  # a question, the SQL as somebody wrote it, the reference SQL


def tables(
    split: Split,
    seed: int,
    name: str = "sql",
    change: Callable[[random.Random, Schema, Sequence[Row], Asked], Asked] | None = None,
) -> Iterator[Document]:
    """Yield tables with questions without end.

    The prompt shows the columns, the rows and perhaps earlier questions with
    their SQL; the completion is the SQL of the last question. ``change`` may
    replace what was asked and written.
    """
    rng = stream(name, split, seed)
    while True:
        schema = rng.choice(SCHEMAS)
        rows = _rows(rng, schema, lead(rng, split, schema.keys, schema.groups))
        asked = [_ask(rng, schema, rows) for _ in range(rng.choice((1, 2, 3, 4)))]
        if change is not None:
            asked = [change(rng, schema, rows, each) for each in asked]
        # A question asked before would be answered by copying; keep the last of each.
        turns = list({sql: (ask, written, sql) for ask, written, sql in asked}.values())
        head = f"Table {schema.table}: {schema.key}, {schema.group}, {schema.number}"
        body = "".join(f"\n{a},{b},{c}" for a, b, c in rows)
        # Only the last question is called so: what follows its query is the end.
        earlier = "".join(f"\nQ: {q}\nA: {sql};" for q, sql, _ in turns[:-1])
        question, written, reference = turns[-1]
        yield Document(
            name,
            f"{head}{body}{earlier}\nQuestion: {question}\nSQL:",
            f" {written};",
            {"table": schema.table, "columns": schema.columns, "rows": tuple(rows), "sql": reference},
        )
