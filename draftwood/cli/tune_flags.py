"""The flags that the `tune` commands share: which prompts are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from draftwood.cli.flags import prompts_file

SEARCH, WORK = "Search", "Prompts and limits"

Prompts: TypeAlias = Annotated[
    Path | None,
    prompts_file(
        "One prompt per line; of a .jsonl file, a string or its 'prompt'. Default: the embedded corpus's.", WORK
    ),
]
Documents: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Without --prompts: prompts of each domain.", rich_help_panel=WORK)
]
