"""SQL that means harm: nothing is written, attached or loaded, and it ends in time."""

import sqlite3
import time
from pathlib import Path

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.sandbox.queries import Database, QueryLimits, run_query

SHORT = QueryLimits(seconds=3.0, rows=1000)
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    file = tmp_path_factory.mktemp("data base") / "towns?.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(
            "CREATE TABLE towns (name TEXT, houses INT);"
            "INSERT INTO towns VALUES ('Ash', 3), ('Elm', 5), ('Elm', 5), (CAST(x'c0426f' AS TEXT), NULL);"
        )
    connection.close()
    return Database(file)


def test_reading(database: Database) -> None:
    assert run_query(database, "SELECT * FROM towns").rows == [("Ash", 3), ("Elm", 5), ("Elm", 5), ("Bo", None)]
    assert run_query(database, "SELECT x'00ff', 1.5").rows == [(b"\x00\xff", 1.5)]
    recursive = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 4) SELECT sum(n) FROM r"
    assert run_query(database, recursive).rows == [(10,)]
    assert run_query(Database(script="CREATE TABLE t (a); INSERT INTO t VALUES (7)"), "SELECT a FROM t").rows == [(7,)]


def test_sorting_much_needs_no_file() -> None:
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 300000) "
    found = run_query(Database(script=""), many + "SELECT n FROM (SELECT n FROM r ORDER BY n % 1000, -n) LIMIT 1")
    assert (found.error, found.rows) == (None, [(300000,)])


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '{place}/evil.db' AS evil",
        "VACUUM INTO '{place}/evil.db'",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = WAL",
        "SELECT * FROM pragma_database_list",
        "INSERT INTO towns VALUES ('Oak', 1)",
        "UPDATE towns SET houses = 0 RETURNING name",
        "DELETE FROM towns",
        "DROP TABLE towns",
        "CREATE TABLE evil (a)",
        "CREATE TEMP TABLE evil AS SELECT 1",
        "SELECT load_extension('{place}/evil.so')",
        "SELECT writefile('{place}/evil', 'evil')",
        "SELECT readfile('/etc/passwd')",
        "BEGIN",
        "SELECT 1; DROP TABLE towns",
        "",
    ],
)
def test_anything_but_one_select_is_refused_and_leaves_no_trace(database: Database, sql: str) -> None:
    assert database.file is not None
    place = database.file.parent
    before = {file: file.read_bytes() for file in place.iterdir()}
    found = run_query(database, sql.format(place=place), SHORT)
    assert found.error is not None and not found.rows
    assert {file: file.read_bytes() for file in place.iterdir()} == before


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        "SELECT count(*) FROM " + ", ".join(f"towns t{i}" for i in range(20)),
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",  # too many rows
        "SELECT hex(randomblob(1500000000))",  # too much memory
        "WITH RECURSIVE r(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM r LIMIT 60) SELECT max(length(s)) FROM r",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 900) SELECT zeroblob(90000) FROM r",
    ],
    ids=["endless", "product", "rows", "blob", "doubling", "result"],
)
def test_what_needs_too_much_is_ended_in_time(database: Database, sql: str) -> None:
    began = time.monotonic()
    found = run_query(database, sql, QueryLimits(seconds=0.8, rows=1000))
    assert found.error is not None and not found.rows
    assert time.monotonic() - began < 15


def test_a_missing_database_is_no_fault_of_the_query(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no\.sqlite does not exist"):
        run_query(Database(tmp_path / "no.sqlite"), "SELECT 1")
