"""`draftwood tune skip`: which sublayers the target skips when it drafts for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags, tune_flags
from draftwood.cli.prompts import token_prompts
from draftwood.cli.tune_flags import SEARCH, WORK
from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from draftwood.tune.skip_sets import Prediction


def skip(
    budget: Annotated[int, typer.Option(metavar="N", help="Sets to judge.", rich_help_panel=SEARCH)] = 200,
    gamma: Annotated[int, typer.Option(metavar="N", help="Most drafts of a round.", rich_help_panel=SEARCH)] = 8,
    search_seed: Annotated[int, typer.Option(metavar="N", help="Of the search.", rich_help_panel=SEARCH)] = 0,
    prompts: tune_flags.Prompts = None,
    documents: tune_flags.Documents = 4,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that the target writes after each.", rich_help_panel=WORK)
    ] = 64,
    target: flags.Target = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    seed: flags.Seed = 0,
    temperature: flags.Temperature = 1.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the set goes.", rich_help_panel=flags.OUTPUT)] = Path(
        "skip.json"
    ),
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Find the sublayers that self-spec skips best.

    The target continues the prompts once. A set is judged by what the target
    without those sublayers, on the whole target's keys and values, says of these
    texts, and by what forwards cost here: which speed-up is to be expected, at
    the best number of drafts. Bayesian optimisation (optuna's TPE) chooses the
    sets. Ctrl-C keeps the best so far.
    """
    from draftwood.explain.terminal import as_json, console

    # what can be refused is refused before a model is loaded
    if budget < 1 or gamma < 1:
        raise ConfigurationError("--budget and --gamma must be at least 1")
    if max_new_tokens < 2 or documents < 1:
        raise RequestError("sets are judged by text: give --max-new-tokens of 2 or more, and --documents of 1 or more")
    if out.suffix != ".json" or out.is_dir():
        raise ConfigurationError(f"--out {out} will not do; name a .json file")
    params = flags.sampling(temperature, top_k, top_p, min_p)
    engine = flags.ModelFlags(target, None, dtype, device, quantize, False).load()

    from draftwood.models.exit import layered
    from draftwood.models.skip import every_other, save_skipped
    from draftwood.tune.skip_sets import Costs, Evidence, predict, search

    model = layered(engine.target)
    usual = every_other(model.n_layers)
    texts = token_prompts(engine, prompts, documents, max_new_tokens)
    with _progress(budget, color) as told:
        evidence = Evidence.written(engine, texts, params, max_new_tokens, seed)
        costs = Costs.measured(model, gamma)
        ranked = search(model, evidence, costs, budget, gamma, search_seed, told)
    best, before = ranked[0], predict(model, usual, evidence, costs, gamma)
    about: dict[str, Any] = {
        "gamma": best.gamma,
        "acceptance": best.acceptance,
        "cost": best.cost,
        "tokens_per_round": best.tau,
        "speed_up": best.speed_up,
        "every_other_layer": {"acceptance": before.acceptance, "cost": before.cost, "speed_up": before.speed_up},
        "judged": len(ranked),
        "search_seed": search_seed,
        "texts": len(evidence.texts),
        "sampling": params.model_dump(mode="json"),
    }
    save_skipped(out, best.skipped, model, about)
    if json:
        print(as_json({**about, **_set(best), "layers": model.n_layers, "out": str(out)}))
        return
    show = console(color).print
    chosen = _set(best)
    for line in (
        f"{out}: of {model.n_layers} layers skip attention {_listed(chosen['attention'])} and MLP "
        f"{_listed(chosen['mlp'])}",
        f"predicted: {best.speed_up:.2f}x plain decoding with gamma {best.gamma} ({best.tau:.2f} tokens per round, "
        f"acceptance {best.acceptance:.3f}, c = {best.cost:.2f}); every other layer: {before.speed_up:.2f}x "
        f"(acceptance {before.acceptance:.3f}, c = {before.cost:.2f})",
        f"{len(ranked)} sets judged on {len(evidence.texts)} texts; use it with --method self-spec --set skip={out}",
    ):
        show(line, markup=False, soft_wrap=True, highlight=False)


def _set(found: Prediction) -> dict[str, list[int]]:
    return {"attention": list(found.skipped.attention), "mlp": list(found.skipped.mlp)}


def _listed(layers: list[int]) -> str:
    return ",".join(map(str, layers)) if layers else "of none"


@contextmanager
def _progress(total: int, color: bool | None) -> Iterator[Callable[[Prediction], None]]:
    """A bar on stderr in sets judged, where stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("the target writes", total=total)

        def told(best: Prediction) -> None:
            bar.update(task, advance=1, description=f"best {best.speed_up:.2f}x, acceptance {best.acceptance:.2f}")

        yield told
