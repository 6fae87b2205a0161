"""`draftwood train decision`: a model that predicts acceptance and ends drafting early (MCSD §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags, train_flags
from draftwood.cli.learned_file import check_name
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import advancing
from draftwood.cli.train_flags import RECORDING, TRAINING
from draftwood.errors import ConfigurationError, RequestError, did_you_mean

if TYPE_CHECKING:
    from draftwood.depth.judgement import Judgement

KINDS = {"hidden": "the draft's last hidden state", "output": "its most probable tokens and its entropy"}
FEWEST = 100  # examples
THRESHOLD = 0.4  # the controller's default, MCSD's beta


def decision(
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="The .safetensors file to write; JSON and the figure go beside it. Use it as depth=decision:PATH.",
            rich_help_panel=flags.OUTPUT,
            show_default=False,
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="hidden: reads the draft's last hidden state; output: its most probable tokens and its entropy.",
            rich_help_panel=TRAINING,
        ),
    ] = "output",
    prompts: train_flags.Prompts = "corpus",
    limit: train_flags.Limit = 280,
    max_new_tokens: train_flags.MaxNewTokens = 64,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T",
            help="0: greedy. Repeat it to decode every prompt at several.",
            rich_help_panel=RECORDING,
            show_default="1",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who drafts: mcsd-fork, mcsd, specinfer, speculative. The model serves all of them.",
            rich_help_panel=RECORDING,
        ),
    ] = "mcsd-fork",
    settings: Annotated[
        list[str] | None, flags.setting("An option of the method, such as gamma=6. Repeatable.", RECORDING)
    ] = None,
    top: Annotated[
        int,
        typer.Option(metavar="K", help="Kind output: how many probabilities it reads.", rich_help_panel=TRAINING),
    ] = 8,
    width: Annotated[int, typer.Option(metavar="D", help="Hidden units of a layer.", rich_help_panel=TRAINING)] = 64,
    epochs: train_flags.Epochs = 30,
    seed: train_flags.RecordingSeed = 0,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Train a model that ends drafting where acceptance is unlikely (MCSD §3.3).

    Prompts are decoded with drafts, and a small network learns which were accepted;
    it is judged on prompts that it did not see, and belongs to the draft model.
    """
    from draftwood.explain.terminal import as_json, console

    _check(kind, out, {"--top": top, "--width": width, "--epochs": epochs})
    models = flags.ModelFlags(target, draft, dtype, device)
    chosen = flags.method(method, settings, models.drafts)
    from draftwood.depth.decision import save_decision, train_decision
    from draftwood.train.decisions import record, recordable
    from draftwood.train.recording import prompts_of

    texts = prompts_of(prompts, limit, seed)
    check_writable(out)  # now, not after the work
    engine = models.load()
    chosen = recordable(engine, chosen)
    temperatures = temperature or [1.0]
    learned: Any = kind
    with advancing("recording", len(texts) * len(temperatures), color) as advance:
        examples = record(engine, texts, learned, chosen, temperatures, max_new_tokens, top, seed, advance)
    if len(examples) < FEWEST:
        raise RequestError(
            f"only {len(examples)} drafts were judged, but {FEWEST} are needed; give more prompts or --max-new-tokens"
        )
    model, judgement = train_decision(learned, *examples.tensors(), width=width, epochs=epochs, seed=seed)
    recorded = {
        "models": engine.names,
        "method": chosen.as_dict(),
        "temperatures": temperatures,
        "prompts": len(texts),
        "max_new_tokens": max_new_tokens,
        "examples": len(examples),
        "seed": seed,
    }
    save_decision(out, model, examples.draft, judgement, recorded)
    figure, why_not = _figure(judgement, out, kind)
    if json:
        print(as_json({"out": str(out), "figure": figure, "kind": kind, **recorded, **_figures(judgement)}))
        return
    show = console(color).print
    show(f"{kind}: {KINDS[kind]}, {len(examples):,} drafts of {len(texts)} prompts", markup=False, soft_wrap=True)
    show(_table(judgement))
    show()
    show(_thresholds(judgement))
    show()
    show(
        f"{out}{f' and {figure}' if figure else ''} · use it with --set depth=decision:{out}",
        markup=False,
        soft_wrap=True,
    )
    if why_not:
        show(why_not, markup=False, soft_wrap=True)


def _check(kind: str, out: Path, counts: dict[str, int]) -> None:
    if kind not in KINDS:
        raise ConfigurationError(f"there is no decision model of kind {kind!r}" + did_you_mean(kind, KINDS))
    check_name(out, "decision")
    for flag, count in counts.items():
        if count < 1:
            raise ConfigurationError(f"{flag} is {count}, but must be at least 1")


def _figure(judgement: Judgement, out: Path, kind: str) -> tuple[str | None, str | None]:
    """(the figure's path, or why there is none)."""
    from draftwood.train.decision_figure import draw_judgement

    path = out.with_suffix(".png")
    try:
        draw_judgement(judgement, path, f"Decision model of kind {kind} on held-out prompts", THRESHOLD)
    except ConfigurationError as error:
        return None, f"no figure: {error}"
    return str(path), None


def _figures(judgement: Judgement) -> dict[str, Any]:
    return {
        "held_out": judgement.examples,
        "accepted": judgement.accepted,
        "log_loss": judgement.log_loss,
        "base_loss": judgement.base_loss,
        "auc": judgement.auc,
        "calibration_error": judgement.error,
        "overlap": judgement.overlap,
        "thresholds": judgement.thresholds,
    }


def _table(judgement: Judgement) -> Any:
    from draftwood.explain.terminal import percent, simple_table

    made = simple_table()
    made.add_column("held-out prompts")
    made.add_column("", justify="right", no_wrap=True)
    rows: Sequence[tuple[str, str]] = (
        ("examples", f"{judgement.examples:,}"),
        ("share accepted", percent(judgement.accepted)),
        ("log loss", f"{judgement.log_loss:.3f}"),
        ("log loss of always predicting that share", f"{judgement.base_loss:.3f}"),
        ("area under the ROC curve", f"{judgement.auc:.3f}"),
        ("calibration error", f"{judgement.error:.3f}"),
        ("overlap of accepted and rejected", f"{judgement.overlap:.2f}"),
    )
    for row in rows:
        made.add_row(*row)
    return made


def _thresholds(judgement: Judgement) -> Any:
    from draftwood.explain.terminal import percent, simple_table

    made = simple_table()
    for name in ("threshold", "accepted drafts after which\ndrafting goes on", "rejected drafts after which\nit stops"):
        made.add_column(name, justify="right", no_wrap=True)
    for beta, kept, stopped in judgement.thresholds:
        made.add_row(f"{beta:g}", percent(kept), percent(stopped))
    return made
