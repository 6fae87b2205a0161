"""`draftwood train corpus`: text that the target writes, mixed with given text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftwood.cli import flags
from draftwood.cli.progress import advancing


def corpus(
    out: Annotated[
        Path, typer.Option(metavar="FILE.jsonl", help="Where the texts go, one per line.", show_default=False)
    ],
    prompts: Annotated[
        str, typer.Option(metavar="FILE|corpus", help="Prompts, one per line; or those of the embedded pair's corpus.")
    ] = "corpus",
    given: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|corpus", help="Given texts that are mixed in: .jsonl with text, or text.", show_default=False
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share of given texts.", show_default="0.5 with --given, else 0"),
    ] = None,
    count: Annotated[int, typer.Option(metavar="N", help="Texts, given ones included.")] = 1000,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens that the target writes at once.")] = 256,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of all but the first few tokens.")] = 1.0,
    greedy: Annotated[
        tuple[int, int], typer.Option(metavar="A B", help="A to B first tokens are the most probable ones.")
    ] = (3, 5),
    concurrency: Annotated[int, typer.Option(metavar="N", help="Texts that are written at once.")] = 16,
    target: flags.Target = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same texts.")] = 0,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Have the target write text to train its exit layer on.

    The first 3 to 5 tokens after each prompt are the most probable ones, the rest
    is sampled. Broken off, the same command goes on where the file ends.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.loading import EMBEDDED, load
    from draftwood.train.writing import Writing, write_texts

    if share is None:
        share = 0.5 if given else 0.0
    plan = Writing(prompts, given, share, count, greedy, max_new_tokens, temperature, seed)
    plan.check()
    engine = load(target or EMBEDDED / "target", dtype=dtype, device=device)
    counted, before = 0, None
    with advancing("writing", count, color) as advance:
        for written in write_texts(engine, plan, out, concurrency):
            before = written if before is None else before
            advance(written - counted)
            counted = written
    lines = out.read_text("utf-8").splitlines()
    by_target = sum('"source": "target"' in line for line in lines)
    document = {"out": str(out), "texts": len(lines), "by_target": by_target, "new": len(lines) - (before or 0)}
    if json:
        print(as_json(document))
    else:
        console(color).print(
            f"{out}: {len(lines)} texts, {by_target} by the target, {document['new']} of them new",
            markup=False,
            soft_wrap=True,
        )
