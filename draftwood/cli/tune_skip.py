"""`draftwood tune skip`: which sublayers the target skips when it drafts for itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.groups import OUTPUT, OutputOptions, QuantizedOptions, WorkloadOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import progress
from draftwood.errors import ConfigurationError
from draftwood.params import SamplingParams

if TYPE_CHECKING:
    from draftwood.tune.skip_sets import Prediction

SEARCH = "Search"


def skip(
    *,
    budget: int = flag(200, "Sets to judge.", panel=SEARCH, ge=1),
    gamma: int = flag(8, "Most drafts of a round.", panel=SEARCH, ge=1),
    search_seed: int = flag(0, "Of the search.", panel=SEARCH),
    work: WorkloadOptions = WorkloadOptions(documents=4),
    model: QuantizedOptions,
    seed: int = seed(),
    sampling: SamplingParams,
    out: Path = flag(Path("skip.safetensors"), "Where the set goes.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Find the sublayers that self-spec skips best.

    The target continues the prompts once. A set is judged by what the target
    without those sublayers, on the whole target's keys and values, says of these
    texts, and by what forwards cost here: which speed-up is to be expected, at
    the best number of drafts. Bayesian optimisation (optuna's TPE) chooses the
    sets. Ctrl-C keeps the best so far.
    """
    texts = work.texts()
    if out.suffix != ".safetensors":
        raise ConfigurationError(f"--out is {out}, but self-spec reads a .safetensors file; name one")
    check_writable(out)
    engine = model.load()

    from draftwood.tune.skip_sets import search_skip_sets

    prompts = work.fitted(engine, texts)
    with progress(output.color, "the target writes", budget) as update:

        def told(best: Prediction) -> None:
            update(advance=1, description=f"best {best.speed_up:.2f}x, acceptance {best.acceptance:.2f}")

        found = search_skip_sets(engine, prompts, sampling, work.max_new_tokens, budget, gamma, seed, search_seed, told)
    best, usual, layers = found.best, found.usual, found.target.n_layers
    chosen = {"attention": list(best.skipped.attention), "mlp": list(best.skipped.mlp)}
    attention, mlp = (",".join(map(str, each)) or "of none" for each in chosen.values())
    output.give(
        {**found.as_dict(), **chosen, "layers": layers, "out": str(out)},
        f"{out}: of {layers} layers skip attention {attention} and MLP {mlp}",
        f"predicted: {best.speed_up:.2f}x plain decoding with gamma {best.gamma} ({best.tau:.2f} tokens per round, "
        f"acceptance {best.acceptance:.3f}, c = {best.cost:.2f}); every other layer: {usual.speed_up:.2f}x "
        f"(acceptance {usual.acceptance:.3f}, c = {usual.cost:.2f})",
        f"{len(found.ranked)} sets judged on {found.about['texts']} texts; use it with --method self-spec "
        f"--set skip={out}",
    )
    found.save(out)
