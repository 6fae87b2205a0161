"""From the samples of peers.py to its rows: medians, ratios, memory, bandwidth and agreement of texts.

Knows no engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pairs import Pair, parameters
from peer_runners import Cell
from record import spread
from rich.table import Table

BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0}
OURS, BASE = "draftwood", "Hugging Face"

# our mode against theirs, in the same type unless the fourth names another
COMPARED = (
    ("plain", BASE, "plain", None),
    ("plain", BASE, "compiled", None),
    ("plain", "llama.cpp", "plain", None),
    ("plain", "OpenVINO GenAI", "plain", None),
    ("speculation", OURS, "plain", None),
    ("speculation", BASE, "assisted", None),
    ("speculation", "llama.cpp", "speculation", None),
    ("speculation", "OpenVINO GenAI", "speculation", None),
    ("tree (mcsd)", OURS, "plain", None),
    ("plain, compiled", OURS, "plain", None),
    ("speculation, compiled", OURS, "plain, compiled", None),
    ("plain", BASE, "plain", "bfloat16"),
    ("speculation", BASE, "assisted", "bfloat16"),
)


def read_weights(directory: Path) -> int:
    """Weights that a forward of one token reads: all but the rows of the embeddings that it does not look up."""
    config = json.loads((directory / "config.json").read_text("utf-8"))
    tied = config.get("tie_word_embeddings", False)  # then the head reads the embeddings
    return parameters(directory) - (0 if tied else config["vocab_size"] * config["hidden_size"])


def seconds(state: Mapping[str, Any], key: str) -> dict[tuple[str, int], float]:
    """Seconds per token by repeat and prompt."""
    return {
        (repeat, place): value
        for repeat, cells in state["samples"].items()
        if key in cells
        for place, value in enumerate(cells[key]["seconds_per_token"])
    }


def ratio(slower: Mapping[Any, float], faster: Mapping[Any, float]) -> dict[str, float] | None:
    """How many times as fast, prompt by prompt of the same repeat; None where they share none."""
    shared = [slower[at] / faster[at] for at in slower if at in faster]
    return spread(shared) if shared else None


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def agreement(state: Mapping[str, Any], key: str, reference: str) -> dict[str, float] | None:
    """Share of tokens before a text first leaves ours, and of texts that never do."""
    shares = []
    for cells in state["samples"].values():
        if key in cells and reference in cells:
            for mine, theirs in zip(cells[reference]["tokens"], cells[key]["tokens"], strict=True):
                shares.append(agreeing(mine, theirs) / len(mine))
    if not shares:
        return None
    return {"prefix": math.fsum(shares) / len(shares), "whole": sum(share == 1 for share in shares) / len(shares)}


def row(models: Pair, cell: Cell, state: Mapping[str, Any], copy: float | None) -> dict[str, Any]:
    """One cell's line of the table."""
    line: dict[str, Any] = {"peer": cell.peer, "mode": cell.mode, "dtype": cell.dtype}
    taken = seconds(state, cell.key)
    if cell.key in state["failures"]:
        line["failure"] = state["failures"][cell.key]
    if not taken:
        return line | ({} if "failure" in line else {"failure": "not measured"})
    base = "bfloat16" if cell.dtype == "int8" else cell.dtype
    samples = [cells[cell.key] for cells in state["samples"].values() if cell.key in cells]
    size = read_weights(models.target) * BYTES[cell.dtype]
    line |= {
        "ms_per_token": spread([value * 1e3 for value in taken.values()]),
        "ratio_to_hugging_face": ratio(seconds(state, f"{BASE} / plain / {base}"), taken),
        "ratio_base_dtype": base,
        "peak_rss": max(sample["peak_rss"] for sample in samples),
        "rss_before_loading": max(sample["rss_before"] for sample in samples),
        "load_seconds": spread([sample["load_seconds"] for sample in samples])["median"],
        "first_call_seconds": spread([sample["first_call_seconds"] for sample in samples])["median"],
        "waiting_for_cores": max(sample.get("pressure", 0.0) for sample in samples),
        "weight_bytes": int(size),
        "agreement": agreement(state, cell.key, f"{OURS} / plain / {cell.dtype}"),
        "agreement_float32": agreement(state, cell.key, f"{OURS} / plain / float32"),
    }
    rate = size / line["ms_per_token"]["median"] * 1e3
    line["weight_bandwidth"] = rate  # of modes that read the weights less than once a token, as if it were once
    line["share_of_copy_bandwidth"] = rate / copy if copy else None
    return line


def summarise(models: Pair, cells: Sequence[Cell], state: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the JSON has beyond its environment."""
    machine = [taken["bandwidth"] for taken in state["samples"].values() if "bandwidth" in taken]
    bandwidth = {name: spread([one[name] for one in machine]) for name in ("copy", "read")} if machine else None
    copy = bandwidth["copy"]["median"] if bandwidth else None
    compared = []
    for dtype in dict.fromkeys(cell.dtype for cell in cells):
        for mode, peer, their_mode, other in COMPARED:
            if other is not None and dtype != "int8":
                continue
            theirs = seconds(state, f"{peer} / {their_mode} / {other or dtype}")
            found = ratio(theirs, seconds(state, f"{OURS} / {mode} / {dtype}"))
            if found:
                against = {"peer": peer, "mode": their_mode, "dtype": other or dtype}
                compared.append({"mode": mode, "dtype": dtype, "against": against, "ratio": found})
    return {
        "settings": state["settings"],
        "notes": "heads of grown models are 32 wide and the vocabulary stays the embedded pair's; int8: rows of our "
        "matrices and OpenVINO's have one scale, llama.cpp's Q8_0 one for 32 weights; waiting_for_cores is the largest "
        "share of a process's time in which some process of the machine waited for a core",
        "timing": "greedy, batch 1; time per new token without the prompt's forward: (time of all tokens less time of "
        "one) / (tokens - 1); llama.cpp's speculation as its program tells it",
        "bandwidth": bandwidth,
        "rows": [row(models, cell, state, copy) for cell in cells],
        "ratios": compared,
        "samples": {
            repeat: {key: value["seconds_per_token"] for key, value in found.items() if key != "bandwidth"}
            for repeat, found in state["samples"].items()
        },
    }


def interval(value: Mapping[str, float] | None, digits: int) -> str:
    if value is None:
        return "-"
    if value["n"] == 1:
        return f"{value['median']:.{digits}f}"
    return f"{value['median']:.{digits}f} ({value['low']:.{digits}f}-{value['high']:.{digits}f})"


def failures(document: Mapping[str, Any]) -> list[str]:
    """Why rows have no figures, a line each."""
    lines = [line for line in document["rows"] if "failure" in line]
    return [f"{line['dtype']}, {line['peer']}, {line['mode']}: {line['failure']}" for line in lines]


def table(document: Mapping[str, Any]) -> Table:
    """What the terminal shows."""
    settings, bandwidth = document["settings"], document["bandwidth"]
    copy = f"{bandwidth['copy']['median'] / 1e9:.1f} GB/s" if bandwidth else "not measured"
    made = Table(
        title=f"{document['pair']['name']}: greedy, {settings['tokens']} tokens, {settings['threads']} threads, "
        f"{settings['gamma']} drafts; copy bandwidth {copy}"
    )
    for name in ("type", "engine", "mode"):
        made.add_column(name)
    for name in ("ms/token", "x HF plain", "peak GB", "of copy", "same text"):
        made.add_column(name, justify="right")
    last = None
    for line in document["rows"]:
        if last not in (None, line["dtype"]):
            made.add_section()
        last = line["dtype"]
        head = (line["dtype"], line["peer"], line["mode"])
        if "ms_per_token" not in line:
            made.add_row(*head, "failed", style="dim")
            continue
        ms = line["ms_per_token"]["median"]
        share, same = line["share_of_copy_bandwidth"], line["agreement"]
        made.add_row(
            *head,
            interval(line["ms_per_token"], 2 if ms < 10 else 1),
            interval(line["ratio_to_hugging_face"], 2),
            f"{line['peak_rss'] / 1e9:.2f}",
            "-" if share is None else f"{share:.0%}",
            "-" if same is None else f"{same['prefix']:.0%}",
        )
    return made
