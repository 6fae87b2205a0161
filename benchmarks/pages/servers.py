"""Tables of docs/serving.md: servers side by side, and many clients of all kinds at once."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.execute import read
from benchmarks.pages.tables import RESULTS, machine, markdown, text, value


def _documents(kind: str) -> dict[str, dict[str, Any]]:
    return {file.stem: read(file) for file in sorted((RESULTS / kind).glob("*.json"))}


def _measured(documents: dict[str, dict[str, Any]]) -> str:
    """Machine, day and commit of each result file; threads are the client's, so they are not said."""
    places = {
        run: f"{machine(each['environment']).partition(' of ')[2]}, {each['environment']['began'][:10]}, commit "
        f"{each['environment']['git_commit'][:9]}"
        for run, each in documents.items()
    }
    return "; ".join(f"`{run}`: {place}" for run, place in places.items())


def side_by_side() -> str:
    """Tokens per second, first token and longest pauses of every server under every load."""
    documents = _documents("servers")
    lines = []
    for run, document in documents.items():
        rows = document["tables"]["peers"]
        best: dict[Any, Any] = {}
        for row in rows:
            if not row["server"].startswith("draftwood"):
                clients, rate = row["clients"], value(row["tokens_per_second"])
                best[clients] = max(best.get(clients, 0.0), rate)
        for row in rows:
            rate = value(row["tokens_per_second"])
            lines.append(
                {
                    "file": run,
                    "clients": row["clients"],
                    "server": ", ".join(row["server"].rsplit("-", 1)),
                    "tokens/s": text(row["tokens_per_second"], ".0f", ends=True),
                    "over the best of the others": f"{rate / best[row['clients']]:.2f}x",
                    "first token, ms": text(row["first_ms"], ".0f"),
                    "p99": text(row["first_p99_ms"], ".0f"),
                    "p99 between chunks": text(row["pause_p99_ms"], ".0f"),
                }
            )
    table = markdown(pd.DataFrame(lines))
    return f"{table}\n\n`python -m benchmarks.http_peers OUT NAME=URL ...`. {_measured(documents)}."


def crowds() -> str:
    """The fates of the requests of many clients, and first tokens beside heavy ones."""
    documents = _documents("clients")
    lines, waits = [], []
    for run, document in documents.items():
        tables = document["tables"]
        (crowd,) = tables["crowd"]
        ends = pd.DataFrame(tables["kinds"])
        ends["end"] = ends["kind"].str.split(": ").str[1]
        count = ends.groupby("end")["requests"].sum()
        lines.append(
            {
                "model": run,
                "clients": crowd["clients"],
                "seconds": f"{crowd['seconds']:.0f}",
                **{end: int(count.get(end, 0)) for end in ("answered", "refused", "hung up", "lost")},
                "asked to come again": crowd["busy"],
                "memory before, MB": f"{crowd['memory_before_mb']:.0f}",
                "after": f"{crowd['memory_after_mb']:.0f} ({crowd['memory_ratio']:.2f}x)",
            }
        )
        line = {"model": run, "n": document["settings"]["light"]}
        for row in tables["first_token"]:
            beside = "" if row["beside"] == "alone" else f" ({row['p95_to_alone']:.1f}x)"
            line[row["beside"]] = f"{row['first_p95_ms']:.0f}{beside}"
        waits.append(line)
    return (
        f"{markdown(pd.DataFrame(lines))}\n\nThe 95th percentile of a light request's first token in ms, alone and "
        f"beside one client that asks for heavy ones without a pause:\n\n{markdown(pd.DataFrame(waits))}\n\n"
        f"`python -m benchmarks.clients OUT URL --pid PID`. {_measured(documents)}."
    )
