"""`draftwood tune` and `draftwood tune skip`: options and skipped sublayers that are fastest here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.groups import OUTPUT, ModelOptions, OutputOptions, QuantizedOptions, WorkloadOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress, write_text
from draftwood.errors import ConfigurationError
from draftwood.explain.terminal import as_json, colourful, flow, method_label, option_text, simple_table, terminal_width
from draftwood.sampling.params import SamplingParams
from draftwood.tune.settings import TuneSettings

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.methods import Method
    from draftwood.tune.heatmap import HeatMap
    from draftwood.tune.skip_sets import SkipPrediction
    from draftwood.tune.tuning import Tuning


TABLE_ROWS = 12  # rows of the table
PROMPTS_SEED = 11  # documents that no benchmark uses


def tune(
    *,
    search: TuneSettings,
    work: WorkloadOptions = WorkloadOptions(documents=3),
    models: ModelOptions,
    seed: int = seed(),
    sampling: SamplingParams,
    out: Path | None = flag(None, "Method file, with figures beside.", "FILE", panel=OUTPUT, usual="tuned-METHOD.json"),
    output: OutputOptions,
) -> None:
    """Find the fastest options of a method on this machine.

    Every measured run decodes all prompts, interleaved with plain decoding, so that
    a slow moment of the machine affects both. The result is a speed-up.

    For mcsd, forward passes of 1, 2, 4, ... rows are measured first, then a pilot
    tree: acceptance by layer and sibling, with the costs, predicts the speed of
    every tree, and those predicted best are measured.

    Ctrl-C ends the search, shows what was measured and saves the best.
    """
    from draftwood.tune.heatmap import picture
    from draftwood.tune.measuring import Workload
    from draftwood.tune.tuning import Tuning

    tuning = Tuning(search)
    tuning.plain.check(sampling)
    texts = work.texts(PROMPTS_SEED)
    place = out or Path(f"tuned-{search.method}.json")
    if place.suffix != ".json":
        raise ConfigurationError(f"--out is {place}, but methods are read from .json files; name one")
    check_writable(place)
    if max(search.initial) > 1:
        print(
            f"note: rounds that begin with {max(search.initial)} tokens of the target are lossy: "
            "the text no longer follows its distribution",
            file=sys.stderr,
        )
    engine = models.load(tuning.usual)
    workload = Workload(work.fitted(engine, texts), sampling, work.max_new_tokens, seed)
    with progress(output.color, "costs of forwards", search.budget, live=False) as update:

        def report(run: int, method: Method) -> None:
            update(completed=run, description=method_label(method.as_dict()))

        tuning.run(engine, workload, report)
    maps = tuning.heat_maps()
    figures, drawn = place.with_suffix(".runs.json"), place.with_suffix(".png")
    if output.json_:
        print(as_json({**tuning.as_dict(), "files": [str(place), str(figures)]}), flush=True)
    else:
        _show(tuning, maps, figures, output)
    write_text(place, as_json(tuning.best.method.as_dict()) + "\n")
    write_text(figures, as_json(tuning.as_dict()) + "\n")
    saved = [place, figures, *([drawn] if picture(maps, drawn) else [])]
    if not output.json_:
        print("saved: " + ", ".join(map(str, saved)))
        print(f"draftwood generate PROMPT --method file:{place}")
    if tuning.interrupted:
        sys.exit(130)


def _table(tuning: Tuning) -> Table:
    """The best methods, within 80 columns."""
    from rich.text import Text

    beams = tuning.settings.method in ("dsbd", "speculative-beam-search")
    options = [_heading(option) if tuning.trees else f">{_heading(option)}" for option in tuning.options]
    numbers = [">runs", ">tokens\n/s", ">speed\n-up"] + [">pre-\ndicted"] * tuning.trees
    numbers += [">tokens\n/round" if beams else ">tau"] + [">nats/token\nvs plain"] * tuning.lossy
    made = simple_table(*options, *numbers)
    plain = tuning.trials.plain_rate
    for i, one in enumerate(tuning.ranked[:TABLE_ROWS]):
        values = one.method.as_dict()
        predicted = one.trials[0].predicted
        made.add_row(
            *(option_text(values[option]) for option in tuning.options),
            str(len(one.trials)),
            f"{one.speed_up * plain:.1f}",
            Text(f"{one.speed_up:.2f}×", "bold green" if i == 0 else ""),
            *(["-" if predicted is None else f"{predicted:.2f}×"] if tuning.trees else []),
            f"{one.tau:.2f}",
            *([f"{one.gain:+.2f}±{one.gain_error:.2f}"] if tuning.lossy else []),
        )
    return made


def _heading(option: str) -> str:
    """A narrow heading."""
    parts = option.split("_")
    return "\n".join(part if len(part) <= 7 else f"{part[:5]}-\n{part[5:]}" for part in parts)


def _show(tuning: Tuning, maps: list[HeatMap], figures: Path, output: OutputOptions) -> None:
    """Table, heat maps and what it comes to."""
    from draftwood.tune.heatmap import lines

    slower = len(tuning.ranked) - TABLE_ROWS
    output.say(_table(tuning), *([f"and {slower} slower ones in {figures}"] if slower > 0 else []), "")
    for one in maps:
        for line in lines(one, min(terminal_width(), 80), colourful(sys.stdout, output.color)):
            print(line)
        print()
    best, work = tuning.best, tuning.trials.workload
    reference = method_label(tuning.plain.as_dict())
    if any(not cell.measured for one in maps for cell in one.cells.values()):
        output.say("[..]: the best; ~: predicted, not measured")
    notes = [
        f"{len(tuning.trials.trials)} runs",
        f"{len(work.prompts)} prompts of at most {work.max_new_tokens} tokens",
        f"temperature {work.sampling.temperature:g}",
        f"{reference} {tuning.trials.plain_rate:.1f} tokens/s",
    ]
    print(flow(notes, sys.stdout))
    warnings = []
    if -best.gain > tuning.tolerance:
        warnings.append(
            f"No setting loses at most {tuning.tolerance:g} nats per token against {reference}; this one loses least. "
            "Widen the beams (--set min_width=...), allow more (--tolerance), or measure longer (--documents)."
        )
    if best.speed_up < 1:
        warnings.append(f"Nothing measured is faster than {reference}; use that.")
    if not best.method.lossless:
        warnings.append("The best is lossy: its text does not follow the target's distribution exactly.")
    output.say(*warnings, f"best: {method_label(best.method.as_dict())}", wrap=True)


SEARCH = "Search"


def skip(
    *,
    budget: int = flag(200, "Sets to try.", panel=SEARCH, ge=1),
    gamma: int = flag(8, "Most drafts per round.", panel=SEARCH, ge=1),
    search_seed: int = flag(0, "Seed of the search.", panel=SEARCH),
    work: WorkloadOptions = WorkloadOptions(documents=4),
    model: QuantizedOptions,
    seed: int = seed(),
    sampling: SamplingParams,
    out: Path = flag(Path("skip.safetensors"), "File of the set.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Find the best sublayers for self-spec to skip.

    The target continues the prompts once. For each set, the acceptance of the
    target without those sublayers on these texts (with the full target's keys and
    values) and the cost of forward passes predict the speed-up at the best number
    of drafts. Bayesian optimisation (optuna's TPE) chooses the sets. Ctrl-C keeps
    the best so far.
    """
    texts = work.texts()
    if out.suffix != ".safetensors":
        raise ConfigurationError(f"--out is {out}, but self-spec reads a .safetensors file; name one")
    check_writable(out)
    engine = model.load()

    from draftwood.tune.skip_sets import search_skip_sets

    prompts = work.fitted(engine, texts)
    with progress(output.color, "the target writes", budget) as update:

        def show(best: SkipPrediction) -> None:
            update(advance=1, description=f"best {best.speed_up:.2f}x, acceptance {best.acceptance:.2f}")

        sets = search_skip_sets(engine, prompts, sampling, work.max_new_tokens, budget, gamma, seed, search_seed, show)
    best, usual, layers = sets.best, sets.usual, sets.target.n_layers
    chosen = {"attention": list(best.skipped.attention), "mlp": list(best.skipped.mlp)}
    attention, mlp = (",".join(map(str, each)) or "of none" for each in chosen.values())
    output.give(
        {**sets.as_dict(), **chosen, "layers": layers, "out": str(out)},
        f"{out}: of {layers} layers skip attention {attention} and MLP {mlp}",
        f"predicted: {best.speed_up:.2f}x plain decoding with gamma {best.gamma} ({best.tau:.2f} tokens per round, "
        f"acceptance {best.acceptance:.3f}, c = {best.cost:.2f}); every other layer: {usual.speed_up:.2f}x "
        f"(acceptance {usual.acceptance:.3f}, c = {usual.cost:.2f})",
        f"{len(sets.ranked)} sets judged on {sets.about['texts']} texts; use it with --method self-spec "
        f"--set skip={out}",
    )
    sets.save(out)
