"""`draftwood train eesd`: an exit layer for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwood.cli.groups import OutputOptions, TargetOptions
from draftwood.cli.options import flag
from draftwood.cli.train_options import NO_PLOT, TRAINING, TrainingOptions

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import Settings


def eesd(
    *,
    training: TrainingOptions,
    layers: int | None = flag(
        None,
        "First layers of the target that the exit is behind.",
        panel=TRAINING,
        usual="a tenth of its depth",
    ),
    exit_layers: int = flag(1, "Layers of the exit itself.", panel=TRAINING),
    model: TargetOptions,
    output: OutputOptions,
) -> None:
    """Train an exit layer, with which a target drafts for itself (method eesd).

    The target's first layers are frozen; a layer, norm and head above them learn
    to say what comes next. Killed at any time, the same command goes on from the
    last save. torchrun runs it on several devices.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.models.exit import check_depth, share
    from draftwood.train.exit_layer import ExitRun, Settings

    def settle(model: Decoder) -> Settings:
        made = Settings(
            layers=share(model.n_layers) if layers is None else layers, depth=exit_layers, **training.settings()
        )
        check_depth(model, made.layers, made.depth)
        return made

    run, document = training.trained(ExitRun, model, settle, output.color)
    if document is None:
        return
    if output.json_:
        print(as_json(document))
        return
    show = console(output.color).print
    for line in (
        f"{training.out}: an exit behind layer {run.settings.layers} of {run.target.n_layers}, "
        f"{document['parameters']:,} parameters, {document['steps']} steps, {document['tokens']:,} tokens, "
        f"{document['seconds']:.0f} s",
        f"held out: acceptance {document['acceptance']:.3f}, same best token {document['agreement']:.3f}, "
        f"loss {document['loss']:.3f}" + ("" if document["plot"] else NO_PLOT),
    ):
        show(line, markup=False, soft_wrap=True)
