"""`python tests/certify/server_controls.py FILE` writes when each wrong rule is seen, for docs/certificate.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]

from test_server_controls import CONTROLS, control

from draftwood import load


def main(out: Path) -> None:
    """Write the file and print the table's rows."""
    engine, rows = load(), []
    for one in CONTROLS:
        check, requests = control(engine, one)
        tokens = check.figures.get("seen_after_tokens")
        rows.append(
            {"rule": one.rule, "check": check.name, "verdict": check.verdict, "requests": requests, "tokens": tokens}
        )
        print(f"| {one.rule} | {check.name} | {check.verdict} | {requests} | {tokens or ''} |", flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
