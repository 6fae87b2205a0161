"""The flags that the `train` commands share: of recording drafts, and of training against a target."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

RECORDING, TRAINING = "Recording", "Training"

Prompts: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="FILE|corpus",
        help="Prompts, one per line; corpus: those that the embedded pair was trained on, of every domain.",
        rich_help_panel=RECORDING,
    ),
]
Limit: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Most prompts.", rich_help_panel=RECORDING)]
MaxNewTokens: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Tokens to decode for each prompt.", rich_help_panel=RECORDING)
]
Epochs: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Most of them; the best counts.", rich_help_panel=TRAINING)
]
RecordingSeed: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Of prompts, texts and training.", rich_help_panel=TRAINING)
]

Data: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="FILE|corpus",
        help="What `draftwood train corpus` wrote, or any text: .jsonl with text or tokens; or the embedded "
        "pair's corpus.",
    ),
]
Steps: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Steps.", rich_help_panel=TRAINING)]
Batch: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Rows of a step.", rich_help_panel=TRAINING)]
Context: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Tokens of a row.", rich_help_panel=TRAINING)]
Accumulate: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Parts that a step is computed in.", rich_help_panel=TRAINING)
]
Rate: TypeAlias = Annotated[float, typer.Option(metavar="X", help="Peak learning rate.", rich_help_panel=TRAINING)]
Warmup: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Steps of warm-up.", rich_help_panel=TRAINING)]
Distill: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="W",
        help="Weight of distillation on the target's own distributions; the rest is cross-entropy on the text.",
        rich_help_panel=TRAINING,
    ),
]
Precision: TypeAlias = Annotated[
    str, typer.Option(metavar="TYPE", help="Of products: bfloat16 or float32.", rich_help_panel=TRAINING)
]
Store: TypeAlias = Annotated[str, typer.Option(metavar="TYPE", help="Of the file: bfloat16 or float32.")]
Rows: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Rows to train on at most; then they are read again.")]
HeldOut: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Rows that are measured and not trained on.")]
SaveEvery: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Steps between two saves.")]
MeasureEvery: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Steps between two measurements.")]
RunSeed: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Of the order of rows, and of the corpus.")]
