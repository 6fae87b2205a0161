"""Tables with English questions and the SQL that answers them on SQLite."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import COLOURS, JOBS, PEOPLE, PLACES, THINGS, WORDS

# One query in six is written by somebody who reads the question differently:
# "more than" as "at least", or with a column more in the result. The reference
# keeps the majority reading, so sampling loses points that the most probable
# query keeps.
_LOOSE_SHARE = 1 / 6


@dataclass(frozen=True)
class TableSchema:
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


SCHEMAS: tuple[TableSchema, ...] = (
    TableSchema("players", "name", "town", "points", PEOPLE, PLACES, 1, 60),
    TableSchema("workers", "name", "job", "salary", PEOPLE, JOBS, 10, 99),
    TableSchema("guests", "name", "town", "age", PEOPLE, PLACES, 5, 90),
    TableSchema("towns", "town", "owner", "houses", PLACES, PEOPLE, 10, 99),
    TableSchema("goods", "item", "colour", "price", THINGS, COLOURS, 1, 90),
    TableSchema("stores", "town", "item", "stock", PLACES, THINGS, 1, 80),
)

TableRow = tuple[str, str, int]


def _ask(rng: random.Random, schema: TableSchema, rows: Sequence[TableRow]) -> tuple[str, str, str]:
    """Return a question, the SQL as somebody wrote it, and the reference SQL."""
    row = rng.choice(rows)
    numbers = sorted(r[2] for r in rows)
    # Strictly below the largest number, so that no comparison comes out empty.
    bound = rng.choice(numbers[:-1])
    if numbers[-1] == bound:
        bound -= 1
    kind = rng.randrange(len(WORDS["tables"]))
    question = WORDS["tables"][kind]
    fields = {"t": schema.table, "k": schema.key, "g": schema.group, "n": schema.number, "bound": bound}
    fields |= {"key": row[0], "group": row[1], **(rng.choice(question["words"]) if "words" in question else {})}
    forms = question["forms"]
    form = forms[0] if len(forms) == 1 or rng.random() < 0.5 else forms[1]
    ask = rng.choice(form["ask"]) if len(form["ask"]) > 1 else form["ask"][0]
    sql = form["sql"].format(**fields)
    return ask.format(**fields), _read_loosely(schema, kind, sql) if rng.random() < _LOOSE_SHARE else sql, sql


def _read_loosely(schema: TableSchema, kind: int, sql: str) -> str:
    """Return the query of somebody who reads a question of a kind differently; of some kinds nobody does."""
    if kind in (0, 1):
        return re.sub(r"^SELECT \w+ ", "SELECT * ", sql)
    if kind in (4, 5):
        return sql.replace(" > ", " >= ")
    return sql.replace(f"SELECT {schema.key} FROM", f"SELECT {schema.key}, {schema.number} FROM")


def _rows(rng: random.Random, schema: TableSchema, first: tuple[str, str]) -> list[TableRow]:
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
    change: Callable[[random.Random, TableSchema, Sequence[TableRow], Asked], Asked] | None = None,
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
        questions = [_ask(rng, schema, rows) for _ in range(rng.choice((1, 2, 3, 4)))]
        if change is not None:
            questions = [change(rng, schema, rows, each) for each in questions]
        # A question asked before would be answered by copying; keep the last of each.
        turns = list({sql: (ask, written, sql) for ask, written, sql in questions}.values())
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
