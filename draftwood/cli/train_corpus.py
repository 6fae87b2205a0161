"""`draftwood train corpus`: text that the target writes, mixed with given text."""

from __future__ import annotations

from pathlib import Path

from draftwood.cli.groups import OUTPUT, OutputOptions, QuantizedOptions
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress
from draftwood.cli.scaling import RayOptions
from draftwood.train.settings import WritingSettings


def corpus(
    *,
    writing: WritingSettings,
    concurrency: int = flag(16, "Texts written at once.", panel="Writing", ge=1),
    model: QuantizedOptions,
    scaling: RayOptions,
    out: Path = flag(..., "File of the texts, one per line.", "FILE.jsonl", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Have the target write text to train its exit layer on.

    The first 3 to 5 tokens after each prompt are greedy, the rest are sampled. The
    same command resumes where the file ends. With --replicas 4 --ray four engines
    write the same file.
    """
    from draftwood.train.self_distillation import write_texts

    check_writable(out)
    engine = model.load()
    counts = []
    with progress(output.color, "writing", writing.count) as update, scaling.engines(model) as engines:
        for written in write_texts(engine, writing, out, concurrency, engines):
            counts.append(written)
            update(completed=written)
    lines = out.read_bytes().splitlines()
    by_target = sum(b'"source": "target"' in line for line in lines)
    document = {"out": str(out), "texts": len(lines), "by_target": by_target, "new": len(lines) - counts[0]}
    output.give(document, f"{out}: {len(lines)} texts, {by_target} by the target, {document['new']} of them new")
