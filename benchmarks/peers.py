"""draftwood beside what users would otherwise run: the same weights, prompts, lengths, types and threads.

Every cell (engine, mode, type) runs in a process of its own and cells alternate over the repeats, so a slow minute of
the machine hits all of them. Each repeat has other held-out prompts. Figures are of greedy decoding of one request,
without the prompt's forward: ms per new token, and ratios to Hugging Face's plain decoding of the same repeat, prompt
and type (bfloat16 for int8, which it does not have). What an engine cannot do here is a row with the reason.

Run: python benchmarks/peers.py            (needs draftwood[bench])
     python benchmarks/peers.py --quick    (a smoke run: seconds to a few minutes)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pairs import NAMES, Pair, pair
from peer_report import failures, summarise, table
from peer_runners import DTYPES, PEERS, Cell, runner
from record import RESULTS, environment
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import draftwood
from draftwood.corpus import DOMAINS, documents

HERE = Path(__file__).parent
TOKENS = {"embedded": 128, "grown-12x768": 128, "grown-22x2048": 64}
PROMPTS = {"embedded": 4, "grown-12x768": 2, "grown-22x2048": 1}
PACKAGES = ("torch", "transformers", "llama_cpp_python", "gguf", "openvino", "openvino-genai")


def run_job(job: dict[str, Any], python: str, threads: int, limit: float) -> dict[str, Any]:
    """Run one process of peer_runners.cell; whatever becomes of it, a result or {"error": reason}."""
    with tempfile.TemporaryDirectory() as place:
        question, answer = Path(place) / "job.json", Path(place) / "result.json"
        question.write_text(json.dumps(job | {"threads": threads}), "utf-8")
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                [python, "-m", "peer_runners.cell", str(question), str(answer)],
                env=env,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"it was not done after {limit:.0f} s"}
        except OSError as error:
            return {"error": f"{python} does not start: {error.strerror}"}
        if answer.is_file():
            found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
            return found
        said = done.stderr.strip().splitlines()
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return {"error": f"the process ended with {ended}" + (f": {said[-1].strip()}" if said else "")}


def waiting() -> float | None:
    """Seconds since the start that some process waited for a core, where the system tells."""
    try:
        told = Path("/proc/pressure/cpu").read_text("utf-8")
    except OSError:
        return None
    return int(told.partition("total=")[2].split()[0]) / 1e6


def held_out_prompts(target: Path, count: int) -> list[list[int]]:
    """Token ids of `count` held-out prompts, domains in turn."""
    from draftwood.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(target)
    rounds = -(-count // len(DOMAINS))
    by_domain = [list(islice(documents(domain, "held-out"), rounds)) for domain in DOMAINS]
    texts = [items[turn].prompt for turn in range(rounds) for items in by_domain]
    return [tokenizer.encode(text) for text in texts[:count]]


def cells(models: Pair, options: argparse.Namespace, context: int) -> list[Cell]:
    """All that is asked for, type by type."""
    found = []
    for dtype in options.dtypes:
        for peer in options.peers:
            for mode, dtypes in runner(peer).MODES.items():
                if dtype in dtypes and (not options.modes or mode in options.modes):
                    found.append(
                        Cell(
                            peer,
                            mode,
                            dtype,
                            str(models.target),
                            str(models.draft),
                            str(models.made),
                            options.threads,
                            options.gamma,
                            context,
                            options.llama_speculative,
                        )
                    )
    return found


class Run:
    """One pair's measurements, saved after every cell."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.options = options
        self.models = pair(name)
        self.tokens = options.tokens or TOKENS[name]
        self.per_repeat = options.prompts or PROMPTS[name]
        self.path = Path(options.out) / f"peers-{name}.json"
        self.partial = self.path.with_suffix(".partial.json")
        self.prompts = held_out_prompts(self.models.target, self.per_repeat * options.repeats)
        longest = max(map(len, self.prompts)) + self.tokens
        # of caches that have a fixed length: short, since all of it is read; with room for drafts past the end
        self.cells = cells(self.models, options, -(-(longest + options.gamma + 1) // 64) * 64)
        settings = {
            "tokens": self.tokens,
            "prompts_per_repeat": self.per_repeat,
            "threads": options.threads,
            "gamma": options.gamma,
        }
        self.state: dict[str, Any] = {"settings": settings, "prepared": {}, "samples": {}, "failures": {}}
        if options.resume and self.partial.is_file():
            kept = json.loads(self.partial.read_text("utf-8"))
            if kept["settings"] != settings:
                raise SystemExit(f"{self.partial} has other settings: {kept['settings']}; run without --resume")
            self.state = kept | {"failures": {}}  # they are tried again

    @property
    def steps(self) -> int:
        return len(self.cells) + (len(self.cells) + 1) * self.options.repeats

    def job(self, task: str, cell: Cell | None, **more: Any) -> dict[str, Any]:
        """One process."""
        python = self.options.python.get(cell.peer if cell else "draftwood", sys.executable)
        job = {"task": task, **({"cell": cell.as_dict()} if cell else {}), **more}
        waited, began = waiting(), perf_counter()
        result = run_job(job, python, self.options.threads, self.options.limit)
        if waited is not None and "error" not in result:
            result["pressure"] = (waiting() - waited) / (perf_counter() - began)
        return result

    def save(self) -> None:
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self.partial.write_text(json.dumps(self.state), "utf-8")

    def measure(self, bar: Progress) -> None:
        """Convert everything, then repeat all cells in turn."""
        task = bar.add_task(self.models.name, total=self.steps)
        state = self.state
        for cell in self.cells:
            bar.update(task, description=f"{self.models.name}: converting for {cell.key}")
            if not state["prepared"].get(cell.key):
                result = self.job("prepare", cell)
                if "error" in result:
                    state["failures"][cell.key] = result["error"]
                else:
                    state["prepared"][cell.key] = True
                self.save()
            bar.advance(task)
        for repeat in range(self.options.repeats):
            samples = state["samples"].setdefault(str(repeat), {})
            prompts = self.prompts[repeat * self.per_repeat : (repeat + 1) * self.per_repeat]
            turned = repeat % max(1, len(self.cells))  # so that no cell always follows the same one
            for cell in [None, *self.cells[turned:], *self.cells[:turned]]:
                key = cell.key if cell else "bandwidth"
                bar.update(task, description=f"{self.models.name}: repeat {repeat + 1}: {key}")
                if key not in samples and key not in state["failures"]:
                    more = {"prompts": prompts, "tokens": self.tokens, "warm_up": self.options.warm_up} if cell else {}
                    result = self.job("measure" if cell else "bandwidth", cell, **more)
                    if "error" in result:
                        state["failures"][key] = result["error"]
                    else:
                        samples[key] = result
                    self.save()
                bar.advance(task)

    def finish(self, console: Console) -> None:
        """Table and JSON."""
        summary = summarise(self.models, self.cells, self.state)
        described = environment("as in each row") | {"threads": self.options.threads, "packages": packages()}
        document = {"environment": described, "pair": self.models.describe(), **summary}
        self.path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        if not any(key in self.state["failures"] for key in ("bandwidth", *(cell.key for cell in self.cells))):
            self.partial.unlink(missing_ok=True)  # else --resume can try again what failed
        console.print(table(document))
        for line in failures(document):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"written: {self.path}", soft_wrap=True)


def packages() -> dict[str, str]:
    """Versions of what is compared, as this Python has it."""
    found = {"draftwood": draftwood.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed in this environment"
    return found


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--modes", nargs="+", default=None, help="only these modes, such as plain")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=None, help=f"new tokens; default: {TOKENS}")
    parser.add_argument("--prompts", type=int, default=None, help=f"other ones in each repeat; default: {PROMPTS}")
    parser.add_argument("--warm-up", type=int, default=1, help="short generations before a process measures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gamma", type=int, default=4, help="drafted tokens per round, of all engines")
    parser.add_argument("--limit", type=float, default=1200, help="seconds that one process may take")
    parser.add_argument("--python", nargs="+", default=[], metavar="PEER=PATH", help="a peer's own Python")
    parser.add_argument(
        "--llama-speculative",
        default=shutil.which("llama-speculative-simple"),
        metavar="PATH",
        help="llama.cpp's program of that name: the Python binding has no draft models",
    )
    parser.add_argument("--out", default=str(RESULTS), help="directory of the results")
    parser.add_argument("--resume", action="store_true", help="keep the finished cells of a run that was cut short")
    parser.add_argument("--quick", action="store_true", help="one repeat, one prompt, 32 tokens; writes to a new place")
    options = parser.parse_args()
    for entry in options.python:
        if entry.partition("=")[0] not in PEERS or "=" not in entry:
            parser.error(f"--python takes PEER=PATH, where PEER is of {', '.join(PEERS)}; not {entry!r}")
    options.python = dict(entry.split("=", 1) for entry in options.python)
    if options.quick:
        options.repeats, options.prompts, options.tokens = 1, 1, options.tokens or 32
        if options.out == str(RESULTS):
            options.out = tempfile.mkdtemp(prefix="peers-")
    if min(options.repeats, options.warm_up, options.threads, options.gamma, options.prompts or 1) < 1:
        parser.error("repeats, prompts, warm-up, threads and gamma must be at least 1")
    if options.tokens is not None and options.tokens < 2:
        parser.error("at least 2 tokens are needed, since the first one is not counted")
    return options


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    for name in options.pairs:
        run = Run(name, options)
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            run.measure(bar)
        run.finish(console)


if __name__ == "__main__":
    main()
