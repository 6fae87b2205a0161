"""Text to SQL: Spider, scored by what queries give on the databases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from draftwood.errors import ConfigurationError
from draftwood.eval.sandbox.queries import Database, QueryLimits, QueryResult, run_query
from draftwood.eval.scoring.rows import extract_query, orders, same_rows
from draftwood.eval.tasks.base import Instance, Item, ItemScores
from draftwood.eval.tasks.source import FileTask, SourceRow, read


class Spider(FileTask):
    """Questions to SQLite databases (Yu et al. 2018): execution accuracy (Zhong et al. 2020, one database each)."""

    name = "spider"
    summary = "Spider: SQL for a question; execution accuracy on SQLite"
    metric = "execution"
    instruction = "Answer with one SQLite query and nothing else."
    ends = (";", "\n\n")
    usual_tokens = 96
    hub = ("xlangai/spider", None, "validation")

    tables: str | None = Field(None, description="tables.json; default: beside the file of questions")
    databases: str | None = Field(None, description="directory of DB/DB.sqlite; default: `database` beside the file")
    seconds: float = Field(10.0, gt=0, description="time that a query may take")

    def require(self) -> None:
        for place in (self._beside(self.tables, "tables.json"), self._beside(self.databases, "database")):
            if not place.exists():
                raise ConfigurationError(f"task spider needs {place}, which does not exist; give tables or databases")

    def item(self, row: SourceRow, number: int) -> Item:
        database, gold = str(row["db_id"]), str(row["query"])
        question = f"{self._schema(database)}\nQuestion: {row['question']}\nSQL:"
        reference = {"database": database, "sql": gold}
        return Item(str(row.get("id", number)), (question,), reference, f" {gold.rstrip('; ')};", database)

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        gold_sql = instance.reference["sql"]
        gold = self._gold(instance.reference["database"], gold_sql)
        answer = run_query(self._database(instance.reference["database"]), extract_query(answers[0]), self._limits)
        right = answer.error is None and same_rows(answer.rows, gold.rows, orders(gold_sql))
        return {"execution": float(right), "valid": float(answer.error is None)}

    def _gold(self, database: str, sql: str) -> QueryResult:
        gold = _gold_result(self._database(database), sql, self._limits)
        if gold.error is not None:
            raise ConfigurationError(f"the gold query fails on database {database}: {gold.error}")
        return gold

    @property
    def _limits(self) -> QueryLimits:
        return QueryLimits(seconds=self.seconds)

    def _database(self, name: str) -> Database:
        return Database(self._beside(self.databases, "database") / name / f"{name}.sqlite")

    def _beside(self, named: str | None, default: str) -> Path:
        if named is not None:
            return Path(named).expanduser()
        if self.path is None:
            raise ConfigurationError(
                "task spider needs the databases and tables.json; give 'spider:databases=DIR;tables=FILE'"
            )
        return Path(self.path).expanduser().parent / default

    def _schema(self, database: str) -> str:
        schemas = _schemas(self._beside(self.tables, "tables.json"))
        if database not in schemas:
            raise ConfigurationError(f"tables.json knows no database {database!r}")
        return schemas[database]


@cache
def _gold_result(database: Database, sql: str, limits: QueryLimits) -> QueryResult:
    return run_query(database, sql, limits)


@cache
def _schemas(path: Path) -> dict[str, str]:
    """Each database in a few lines: its tables with their columns, keys marked."""
    return {entry["db_id"]: _described(entry) for entry in read(path)}


def _described(entry: dict[str, Any]) -> str:
    columns = entry["column_names_original"]
    tables = entry["table_names_original"]
    keys = {key for each in entry["primary_keys"] for key in (each if isinstance(each, list) else [each])}
    lines = []
    for number, table in enumerate(tables):
        own = [
            f"{name} {kind}" + (" primary key" if place in keys else "")
            for place, ((home, name), kind) in enumerate(zip(columns, entry["column_types"], strict=True))
            if home == number
        ]
        lines.append(f"Table {table}: {', '.join(own)}")
    for one, other in entry["foreign_keys"]:
        left, right = (f"{tables[columns[place][0]]}.{columns[place][1]}" for place in (one, other))
        lines.append(f"{left} refers to {right}")
    return "\n".join(lines)
