"""`draftwood train corpus`: text that the target writes, mixed with given text."""

from __future__ import annotations

from pathlib import Path

from draftwood.cli.groups import OUTPUT, OutputOptions, QuantizedOptions
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import advancing

WRITING = "Writing"


def corpus(
    *,
    prompts: str = flag(
        "corpus", "Prompts, one per line; or those of the embedded pair's corpus.", "FILE|corpus", panel=WRITING
    ),
    given: str | None = flag(
        None, "Given texts that are mixed in: .jsonl with text, or text.", "FILE|corpus", panel=WRITING
    ),
    share: float | None = flag(None, "Share of given texts.", panel=WRITING, usual="0.5 with --given, else 0"),
    count: int = flag(1000, "Texts, given ones included.", panel=WRITING, ge=1),
    max_new_tokens: int = flag(256, "Most tokens that the target writes at once.", panel=WRITING, ge=1),
    temperature: float = flag(1.0, "Of all but the first few tokens.", panel=WRITING, ge=0, allow_inf_nan=False),
    greedy: tuple[int, int] = flag((3, 5), "A to B first tokens are the most probable ones.", "A B", panel=WRITING),
    concurrency: int = flag(16, "Texts that are written at once.", panel=WRITING, ge=1),
    seed: int = flag(0, "The same seed gives the same texts.", panel=WRITING),
    model: QuantizedOptions,
    out: Path = flag(..., "Where the texts go, one per line.", "FILE.jsonl", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Have the target write text to train its exit layer on.

    The first 3 to 5 tokens after each prompt are the most probable ones, the rest
    is sampled. Broken off, the same command goes on where the file ends.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.train.writing import Writing, write_texts

    share = (0.5 if given else 0.0) if share is None else share
    writing = Writing(prompts, given, share, count, greedy, max_new_tokens, temperature, seed)
    writing.check()
    check_writable(out)
    engine = model.load()
    counted, before = 0, None
    with advancing("writing", count, output.color) as advance:
        for written in write_texts(engine, writing, out, concurrency):
            before = written if before is None else before
            advance(written - counted)
            counted = written
    lines = out.read_text("utf-8").splitlines()
    by_target = sum('"source": "target"' in line for line in lines)
    document = {"out": str(out), "texts": len(lines), "by_target": by_target, "new": len(lines) - (before or 0)}
    if output.json_:
        print(as_json(document))
    else:
        text = f"{out}: {len(lines)} texts, {by_target} by the target, {document['new']} of them new"
        console(output.color).print(text, markup=False, soft_wrap=True)
