"""`draftwood convert`: pickled weights as safetensors."""

from __future__ import annotations

from pathlib import Path

from draftwood.cli.groups import OUTPUT, OutputOptions
from draftwood.cli.options import flag


def convert(
    *,
    source: str = flag(..., "A directory with pickled weights (.bin, .pt, .pth), or a hub id.", "SRC", argument=True),
    out: Path = flag(..., "The new directory.", "DIR", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Turn pickled weights into safetensors.

    draftwood loads no pickled file. This reads one with PyTorch's restricted
    reader, which takes tensors alone, and writes the same weights as safetensors,
    with config.json and what else is JSON.
    """
    from draftwood.models.checkpoints.pickled import convert

    count = convert(source, out)
    output.give({"out": str(out), "tensors": count}, f"{out}: {count} tensors")
