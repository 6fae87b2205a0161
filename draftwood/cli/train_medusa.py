"""`draftwood train medusa`: heads for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwood.cli.groups import OutputOptions, TargetOptions
from draftwood.cli.options import flag
from draftwood.cli.train_options import NO_PLOT, TRAINING, TrainingOptions

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import Settings


def medusa(
    *,
    training: TrainingOptions,
    heads: int = flag(4, "Heads: tokens that are predicted.", panel=TRAINING, ge=1),
    shared: bool = flag(
        False, "Heads end in the target's own head: far fewer parameters, less acceptance.", panel=TRAINING
    ),
    decay: float = flag(0.8, "Head k's loss weighs X^k.", panel=TRAINING, gt=0, le=1),
    model: TargetOptions,
    output: OutputOptions,
) -> None:
    """Train heads that predict several tokens at once (method medusa).

    The target is frozen; heads on its last hidden state learn what comes after the
    next token. Killed at any time, the same command goes on from the last save.
    torchrun runs it on several devices.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.train.heads import HeadRun, HeadSettings

    def settle(model: Decoder) -> Settings:
        return HeadSettings(model.n_layers, heads=heads, shared=shared, decay=decay, **training.settings())

    _, document = training.trained(HeadRun, model, settle, output.color)
    if document is None:
        return
    document = {key: value for key, value in document.items() if key != "layers"} | {"heads": heads, "shared": shared}
    if output.json_:
        print(as_json(document))
        return
    show = console(output.color).print
    each = ", ".join(f"{document[f'acceptance_{k}']:.3f}" for k in range(1, heads + 1))
    for line in (
        f"{training.out}: {heads} heads, {document['parameters']:,} parameters, {document['steps']} steps, "
        f"{document['tokens']:,} tokens, {document['seconds']:.0f} s",
        f"held out: acceptance head by head {each}" + ("" if document["plot"] else NO_PLOT),
    ):
        show(line, markup=False, soft_wrap=True)
