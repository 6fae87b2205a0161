"""The runner of experiments: a result file for each run, headed by where its numbers come from."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import Bench, OnProgress
from benchmarks.experiment import HERE, Experiment, ExperimentRun
from benchmarks.pairs import Pair, describe
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.eval import provenance
from draftwood.eval.store import check_writable
from draftwood.util.files import replacing, writing
from draftwood.util.safe_parsing import parse_json, read_text

SCHEMA = 2
PACKAGES = ("transformers", "llama-cpp-python")


def results_of(file: Path) -> Path:
    """The directory of an experiment's results: benchmarks/results/NAME."""
    return HERE / "results" / file.stem


def chosen(experiment: Experiment, only: Sequence[str]) -> dict[str, ExperimentRun]:
    """The runs that are asked for, by name; raises ConfigurationError for a name that the experiment does not have."""
    for name in only:
        if name not in experiment.runs:
            raise ConfigurationError(f"{experiment.title!r} has no run {name!r}" + did_you_mean(name, experiment.runs))
    return {name: run for name, run in experiment.runs.items() if not only or name in only}


def execute(
    experiment: Experiment,
    file: Path,
    name: str,
    run: ExperimentRun,
    out: Path,
    smoke: bool = False,
    models: Pair | None = None,
    llama_python: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure one run and write OUT/NAME.json, which is returned; the same call goes on where it was stopped.

    Ctrl-C leaves what was measured in OUT/NAME.work. Raises ConfigurationError before anything is measured where
    `out` cannot be written.
    """
    kind = experiment.measure(run, smoke)
    work = out / f"{name}.work"
    settings = {"kind": experiment.kind, "run": run.model_dump(), "settings": kind.model_dump(mode="json")}
    claim(work, settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    bench = Bench(run, work, on_progress, models, llama_python)
    try:
        tables = kind.measure(bench)
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()  # what the bench has settled
    document = {
        "schema": SCHEMA,
        "experiment": file.stem,
        "run": name,
        "complete": not bench.stopped,
        "made_by": f"python -m benchmarks run {file.stem} --only {name}",
        "environment": environment(run),
        "models": describe(bench.pair),
        "settings": settings["settings"],
        "tables": tables,
    }
    write(out / f"{name}.json", document)
    if bench.stopped:
        raise KeyboardInterrupt
    shutil.rmtree(work)
    return document


def claim(work: Path, settings: Mapping[str, Any]) -> None:
    """Make `work` the place of a run; raises ConfigurationError where it cannot be written or is another's."""
    path = work / "settings.json"
    text = json.dumps(settings, indent=1)
    check_writable(work.parent)
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text("utf-8") != text:
            raise ConfigurationError(
                f"{work} holds an unfinished run with other settings; remove it, or choose another --out"
            )
        path.write_text(text, "utf-8")


def environment(run: ExperimentRun) -> dict[str, Any]:
    """Program, machine, moment, and the versions of what is compared."""
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packages = {name: version(name) for name in PACKAGES if find_spec(name.replace("-python", "").replace("-", "_"))}
    about = {"threads": run.threads, "dtype": run.quantize or run.dtype, "packages": packages}
    return {**provenance.session(place), **about}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """A result file: readable, a line for each row."""
    head = {key: value for key, value in document.items() if key != "tables"}
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "tables": {'
    for number, (name, rows) in enumerate(document["tables"].items()):
        lines = ",\n".join(f"   {json.dumps(rounded(row), ensure_ascii=False)}" for row in rows)
        text += f"{',' * bool(number)}\n  {json.dumps(name)}: [\n{lines}\n  ]"
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(text + "\n }\n}\n", "utf-8")


def rounded(value: Any, digits: int = 5) -> Any:
    """Numbers with so many digits that count, which is more than they are worth."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def read(path: Path) -> dict[str, Any]:
    """A result file; raises ConfigurationError where it is none."""
    try:
        found = parse_json(read_text(path))
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} is no result file ({error}); measure again, or remove it") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is no result file; measure again, or remove it")
    return found
