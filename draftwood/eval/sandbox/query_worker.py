"""The process in which one SQL query runs. Started as a script, alone: imports nothing of draftwood.

Reads a request from standard input, writes the result to standard output, both one JSON document. The process limits
its own time, memory and files before it opens the database; SQLite itself is told to read only.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from typing import Any
from urllib.parse import quote

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}  # 33: SQLITE_RECURSIVE
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}


def limit(seconds: float, memory: int) -> None:
    """Let the kernel end this process where SQLite does not look."""
    bounds = {resource.RLIMIT_CPU: int(seconds) + 1, resource.RLIMIT_AS: memory}
    none = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)
    for what, bound in {**bounds, **dict.fromkeys(none, 0)}.items():
        hard = resource.getrlimit(what)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        try:
            resource.setrlimit(what, (bound, bound))
        except (ValueError, OSError):
            if sys.platform == "linux":  # elsewhere not every limit can be set: the authoriser and the clock remain
                raise


def authorise(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Reading and harmless functions only: no ATTACH, PRAGMA, writing, transaction or extension."""
    if action not in ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def connect(request: dict[str, Any]) -> sqlite3.Connection:
    """The database of a request: a file opened for reading, or one in memory that a script makes."""
    if request["database"] is not None:
        connection = sqlite3.connect(f"file:{quote(request['database'])}?mode=ro&immutable=1", uri=True)
    else:
        connection = sqlite3.connect(":memory:")
        connection.executescript(request["script"])
    connection.execute("PRAGMA temp_store = MEMORY")  # there is no writing of files, not even for sorting
    connection.text_factory = lambda text: text.decode("utf-8", "ignore")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, request["memory"] // 8)
    connection.set_authorizer(authorise)
    return connection


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Rows, or the error that the query met."""
    try:
        cursor = connect(request).execute(request["sql"])
        if cursor.description is None:
            return {"error": "the query gives no rows"}
        rows = cursor.fetchmany(request["rows"] + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        return {"error": str(error)}
    if len(rows) > request["rows"]:
        return {"error": f"the query gives more than {request['rows']} rows"}
    return {"rows": [[{"bytes": v.hex()} if isinstance(v, bytes) else v for v in row] for row in rows]}


def main() -> None:
    request = json.load(sys.stdin)
    max_bytes = request["memory"] // 16
    limit(request["seconds"], request["memory"])
    try:
        text = json.dumps(answer(request))
        if len(text) > max_bytes:
            text = json.dumps({"error": f"the result is larger than {max_bytes} bytes"})
    except MemoryError:
        text = json.dumps({"error": "the query needs more memory than it may have"})
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
