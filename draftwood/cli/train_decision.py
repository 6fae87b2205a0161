"""`draftwood train decision`: a model that predicts acceptance and ends drafting early (MCSD §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftwood.cli.groups import OUTPUT, MethodOptions, OutputOptions, PairOptions
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import advancing
from draftwood.cli.train_options import RECORDING, TRAINING, RecordingOptions, check_name
from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from draftwood.train.judgement import Judgement

KINDS = {"hidden": "the draft's last hidden state", "output": "its most probable tokens and its entropy"}
FEWEST = 100  # examples
THRESHOLD = 0.4  # the controller's default, MCSD's beta


def decision(
    *,
    kind: Literal["hidden", "output"] = flag(
        "output",
        "hidden: reads the draft's last hidden state; output: its most probable tokens and its entropy.",
        "KIND",
        panel=TRAINING,
    ),
    recording: RecordingOptions = RecordingOptions(max_new_tokens=64, epochs=30),
    temperature: list[float] = flag(
        [], "0: greedy. Repeat it to decode every prompt at several.", panel=RECORDING, usual="1"
    ),
    method: str = flag(
        "mcsd-fork",
        "Who drafts: mcsd-fork, mcsd, specinfer, speculative. The model serves all of them.",
        "NAME",
        panel=RECORDING,
    ),
    settings: list[str] = flag(
        [], "An option of the method, such as gamma=6. Repeatable.", "KEY=VALUE", ("--set",), RECORDING
    ),
    top: int = flag(8, "Kind output: how many probabilities it reads.", panel=TRAINING, ge=1),
    width: int = flag(64, "Hidden units of a layer.", panel=TRAINING, ge=1),
    models: PairOptions,
    out: Path = flag(
        ...,
        "The .safetensors file to write; the figure goes beside it. Use it as depth=decision:PATH.",
        "PATH",
        panel=OUTPUT,
    ),
    output: OutputOptions,
) -> None:
    """Train a model that ends drafting where acceptance is unlikely (MCSD §3.3).

    Prompts are decoded with drafts, and a small network learns which were accepted;
    it is judged on prompts that it did not see, and belongs to the draft model.
    """
    from draftwood.explain.terminal import as_json, console

    check_name(out, "decision")
    chosen = MethodOptions(method=method, settings=settings).chosen(models.drafts)
    from dataclasses import asdict

    from draftwood.depth.decision import save_decision
    from draftwood.train.decisions import record, recordable, train_decision

    texts = recording.texts()
    check_writable(out)
    engine = models.load()
    chosen = recordable(engine, chosen)
    temperatures = temperature or [1.0]
    limit, seed = recording.max_new_tokens, recording.seed
    with advancing("recording", len(texts) * len(temperatures), output.color) as advance:
        examples = record(engine, texts, kind, chosen, temperatures, limit, top, seed, advance)
    if len(examples) < FEWEST:
        raise RequestError(
            f"only {len(examples)} drafts were judged, but {FEWEST} are needed; give more prompts or --max-new-tokens"
        )
    model, judgement = train_decision(kind, *examples.tensors(), width=width, epochs=recording.epochs, seed=seed)
    recorded = {
        "models": engine.names,
        "method": chosen.as_dict(),
        "temperatures": temperatures,
        "prompts": len(texts),
        "max_new_tokens": limit,
        "examples": len(examples),
        "seed": seed,
    }
    save_decision(out, model, examples.draft, asdict(judgement), recorded)
    figure, why_not = _figure(judgement, out, kind)
    if output.json_:
        print(as_json({"out": str(out), "figure": figure, "kind": kind, **recorded, **_figures(judgement)}))
        return
    show = console(output.color).print
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
