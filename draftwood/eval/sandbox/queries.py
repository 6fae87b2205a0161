"""Runs SQL that a model wrote: read-only, in a process of its own (query_worker.py), for a limited time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError

WORKER = Path(__file__).parent / "query_worker.py"


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one query. Seconds are wall time, the process's start included."""

    seconds: float = 10.0
    memory: int = 1 << 30  # bytes
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Database:
    """A SQLite file, or the script that makes one in memory."""

    file: Path | None = None
    script: str = ""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: rows, or the error that it met."""

    rows: list[tuple[Any, ...]]
    error: str | None = None


LIMITS = QueryLimits()


def run_query(database: Database, sql: str, limits: QueryLimits = LIMITS) -> QueryResult:
    """Run one SELECT. Whatever the query is, nothing is written, attached or loaded, and it ends in time.

    Raises ConfigurationError where the database cannot be read: that is no fault of the query.
    """
    if sys.platform == "win32":
        raise ConfigurationError("SQL that a model wrote runs under process limits that Windows does not have")
    if database.file is not None and not database.file.is_file():
        raise ConfigurationError(f"the database {database.file} does not exist; give the directory that holds it")
    file = None if database.file is None else str(database.file.resolve())
    request = {"database": file, "script": database.script, "sql": sql.replace("\x00", ""), **asdict(limits)}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(WORKER)],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limits.seconds,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return QueryResult([], f"the query runs longer than {limits.seconds:g} s")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return QueryResult([], f"the query was ended by its limits (exit status {done.returncode})")
    if "error" in answer:
        return QueryResult([], str(answer["error"]))
    return QueryResult(
        [tuple(bytes.fromhex(v["bytes"]) if isinstance(v, dict) else v for v in row) for row in answer["rows"]]
    )
