"""A GGUF file read by draftwood beside llama.cpp: the same tokens and threads, each engine in processes of its own.

The engines take turns, repeat by repeat. llama.cpp is measured where the run names a Python with llama-cpp-python;
its quantiser writes the types of a file that are asked for. Memory is what a process takes above what it takes once
PyTorch, or llama.cpp's binding, is imported. Perplexity is on held-out documents, and over that in float32.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench, rotated
from benchmarks.engines import file_cell
from benchmarks.engines.gguf_file import write
from benchmarks.experiment import HERE, ExperimentRun, Kind, Rows
from benchmarks.intervals import median, perplexity_ratio
from benchmarks.kinds.peers import Failed, run_job
from draftwood.corpus import mixed
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.runtime.cost import share_read

OURS, THEIRS = "draftwood", "llama.cpp"
EXACT = "draftwood, float32"  # of which perplexity alone is measured
MODULES = {OURS: "file_ours", EXACT: "file_ours", THEIRS: "file_llama"}
CONTEXT_REPEATS = 3  # in which a long context is read
PROMPT_START = 8  # tokens of the prompt of a whole command
Samples = Mapping[str, list[dict[str, Any]]]  # engine -> measurements, repeat by repeat


class Files(Kind):
    """A prompt of `prompt` tokens, `tokens` tokens and forwards of `rows` rows behind `context` of them, and texts."""

    type: str | None = None  # that llama.cpp's quantiser writes the file in; None: the file as it is
    repeats: int = 5
    tokens: int = 64
    prompt: int = 512
    context: int = 64
    rows: tuple[int, ...] = (1, 2, 4, 8)
    trees: tuple[int, ...] = ()  # nodes of binary trees that ours computes, too
    forwards: int = 9  # of each number of rows, in one process
    documents: int = 12
    contexts: tuple[int, ...] = ()  # tokens behind which one more is timed, in the first repeats
    limit: float = 1200  # seconds of one process
    repack: bool = True  # whether llama.cpp may reorder weights as it loads: its version 0.3.36 crashes on mixtures

    def measure(self, bench: Bench) -> dict[str, Rows]:
        file = gguf(bench, self.type)
        processes = Processes(file, bench.run, bench.llama_python, self.limit, self.repack)
        words, words_of_file = Tokenizer.load(bench.pair.target), Tokenizer.load(file)
        documents = islice(mixed("held-out"), self.documents)
        texts = [words.encode(document.text)[: self.prompt] for document in documents]
        tokens = chain.from_iterable(words.encode(document.text) for document in mixed("held-out", seed=1))
        work = {**self.model_dump(include={"tokens", "context", "rows", "trees", "forwards"})}
        long = [*islice(tokens, max(self.prompt, *self.contexts, 0) + 1)]
        work["prompt"] = prompt = long[: self.prompt]
        far = {"contexts": self.contexts, "forwards": self.forwards, "prompt": long}
        failures = {} if bench.llama_python else {THEIRS: "give --llama-python PATH, a Python with llama-cpp-python"}
        nats: dict[str, list[float]] = {}
        for engine in bench.track(remaining(failures, exact=True), "perplexity"):
            try:
                read = partial(processes.job, engine, "nats", texts=texts)
                nats[engine] = bench.once(["nats", engine], read)["nats"]
            except Failed as error:
                failures[engine] = str(error)
        samples: dict[str, list[dict[str, Any]]] = {engine: [] for engine in remaining(failures)}
        for repeat in bench.track(range(self.repeats), "repeats"):
            for engine in rotated(remaining(failures), repeat):
                try:
                    measured = bench.once([repeat, engine], partial(processes.job, engine, "speed", **work))
                    start = partial(processes.first_token, engine, prompt[:PROMPT_START], words_of_file)
                    measured["first"] = bench.once([repeat, engine, "first"], start)
                    if self.contexts and repeat < CONTEXT_REPEATS:
                        read = partial(processes.job, engine, "contexts", **far)
                        measured["contexts"] = bench.once([repeat, engine, "contexts"], read)["seconds"]
                    samples[engine].append(measured)
                except Failed as error:
                    failures[engine] = str(error)
        types = ", ".join(GgufWeights(file).types())
        about = {"file": file.name, "types": types, "megabytes": file.stat().st_size / 1e6}
        counts = [len(text) - 1 for text in texts]
        return {
            "files": [{**about, **row(each, samples.get(each, [])), **quality(nats, each, counts)} for each in nats],
            "rows": [
                {**line, **bytes_to_one(GgufWeights(file), line["rows"])}
                for engine, measured in samples.items()
                for line in rows(engine, measured)
            ],
            "contexts": [line for engine, measured in samples.items() for line in self.behind(engine, measured)],
            "ratios": ratios(samples),
            "failures": [{"engine": engine, "failure": why} for engine, why in failures.items()],
        }

    def behind(self, engine: str, measured: list[dict[str, Any]]) -> Rows:
        """Milliseconds of a token behind each of the contexts."""
        read = [each["contexts"] for each in measured if "contexts" in each]
        return [
            {"engine": engine, "context": context, "ms": median([1000 * each[i] for each in read])}
            for i, context in enumerate(self.contexts if read else ())
        ]


def remaining(failures: Mapping[str, str], exact: bool = False) -> list[str]:
    """The engines that have not failed."""
    return [engine for engine in ((OURS, THEIRS, EXACT) if exact else (OURS, THEIRS)) if engine not in failures]


@dataclass(frozen=True)
class Processes:
    """Runs the engines' processes on a file, each within a time limit; each raises Failed."""

    file: Path
    run: ExperimentRun
    llama_python: Path | None
    limit: float
    repack: bool = True

    def job(self, engine: str, task: str, **more: Any) -> dict[str, Any]:
        """One process of engines/file_cell.py."""
        kind = {"dtype": "float32"} if engine == EXACT else {"dtype": self.run.dtype, "quantize": self.run.quantize}
        job = {"engine": MODULES[engine], "task": task, "file": str(self.file), "threads": self.run.threads}
        job["repack"] = self.repack
        python = str(self.llama_python) if engine == THEIRS else sys.executable
        module = "benchmarks.engines.file_cell"
        result = run_job({**job, **kind, **more}, python, self.run.threads, self.limit, module)
        if "error" in result:
            raise Failed(result["error"])
        return result

    def first_token(self, engine: str, prompt: list[int], words: Tokenizer) -> float:
        """Seconds of a whole process that says one token: of ours the command `draftwood generate`."""
        began = perf_counter()
        if engine == THEIRS:
            self.job(engine, "first", prompt=prompt)
        else:
            self._command(words.decode(prompt))
        return perf_counter() - began

    def _command(self, prompt: str) -> None:
        flags = {"--target": self.file, "--dtype": self.run.dtype, "--threads": self.run.threads}
        flags |= {"--quantize": self.run.quantize} if self.run.quantize else {}
        command = [sys.executable, "-m", "draftwood", "generate", prompt, "--max-new-tokens", "1", "--temperature", "0"]
        command += [str(part) for flag in flags.items() for part in flag]
        env = os.environ | {"OMP_NUM_THREADS": str(self.run.threads)}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, errors="replace", timeout=self.limit
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"a token was not there after {self.limit:.0f} s") from None
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])


def gguf(bench: Bench, kind: str | None) -> Path:
    """The target as a GGUF file, in a type that llama.cpp's quantiser writes once; raises ConfigurationError."""
    source = bench.pair.target
    if source.is_dir():
        source = bench.pair.made / "target-bfloat16.gguf"
        write(bench.pair.target, source, "bfloat16")
    if kind is None:
        return source
    directory = source.parent / "variants"
    path = directory / f"{source.stem}.{kind}.gguf"
    if not path.exists():
        if bench.llama_python is None:
            raise ConfigurationError(f"{path} is not there; give --llama-python PATH: llama.cpp's quantiser writes it")
        script = HERE.parent / "recipes" / "quantise_gguf.py"
        command = [bench.llama_python, script, source, directory, "--type", kind]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise ConfigurationError((done.stderr.strip().splitlines() or ["the quantiser failed"])[-1])
    return path


def row(engine: str, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats of an engine; none where nothing but perplexity was measured."""
    if not measured:
        return {"engine": engine}
    milliseconds = {f"{what}_ms": median([1000 * each[what] for each in measured]) for what in ("token", "prompt")}
    start = {f"{what}_seconds": median([each[what] for each in measured]) for what in ("load", "first")}
    peak = median([each["peak_bytes"] / 1e6 for each in measured])
    return {"engine": engine, "version": measured[0]["version"], **milliseconds, **start, "peak_megabytes": peak}


def quality(nats: Mapping[str, list[float]], engine: str, counts: list[int]) -> dict[str, Any]:
    """Perplexity of an engine on the texts, and over that of the file dequantised to float32."""
    line: dict[str, Any] = {"perplexity": math.exp(math.fsum(nats[engine]) / sum(counts))}
    if EXACT in nats:
        line["to_float32"] = perplexity_ratio(nats[engine], counts, nats[EXACT], counts)
    return line


def rows(engine: str, measured: list[dict[str, Any]]) -> Rows:
    """Forwards by number of rows: milliseconds, and over one row in the same process."""
    numbers = measured[0]["rows"] if measured else ()
    return [
        {
            "engine": engine,
            "rows": int(number.removeprefix(file_cell.TREE)),
            "shape": "tree" if number.startswith(file_cell.TREE) else "chain",
            "ms": median([1000 * each["rows"][number] for each in measured]),
            "to_one": median([each["rows"][number] / each["rows"]["1"] for each in measured]),
        }
        for number in numbers
    ]


def bytes_to_one(file: GgufWeights, rows: int) -> dict[str, float]:
    """Of a mixture: bytes of weights that so many rows are expected to read, over those of one row."""
    experts = file.described()[2].experts
    if experts is None:
        return {}
    sizes = {name: entry.size for name, entry in file.file.tensors.items() if name != "token_embd.weight"}
    routed = sum(size for name, size in sizes.items() if "_exps." in name)
    share = experts.chosen / experts.count
    read = [sum(sizes.values()) - routed * (1 - share_read(share, count)) for count in (rows, 1)]
    return {"bytes_to_one": read[0] / read[1]}


def ratios(samples: Samples) -> Rows:
    """llama.cpp's time and memory over ours, repeat by repeat."""
    pairs = list(zip(samples.get(OURS, ()), samples.get(THEIRS, ()), strict=False))
    what = ("token", "prompt", "load", "first", "peak_bytes")
    return [{"what": each, "ratio": median([b[each] / a[each] for a, b in pairs])} for each in what if pairs]
