"""llama.cpp: plain decoding and prompt lookup through llama-cpp-python, draft models through its own program.

The binding has no draft models, so that mode runs `llama-speculative-simple`, which llama.cpp builds with its
examples. It takes prompts as text and tells how long decoding took.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

from benchmarks.engines import WITH_INT4, Cell, Generate, Output, peak_bytes
from benchmarks.engines.gguf_file import as_text, as_tokens, shape_of, write
from draftwood.errors import ConfigurationError

MODES = {"plain": WITH_INT4, "lookup": WITH_INT4, "speculation": WITH_INT4}
LOOKUP_NGRAM = 2  # as the binding's default


def prepare(cell: Cell) -> None:
    if cell.mode == "speculation":
        _program(cell)
        write(Path(cell.draft), cell.converted("draft", suffix=".gguf"), cell.dtype)
    else:
        import llama_cpp  # noqa: F401  (before the work of converting)
    write(Path(cell.target), cell.converted("target", suffix=".gguf"), cell.dtype)


def load(cell: Cell) -> Generate:
    return _own_program(cell) if cell.mode == "speculation" else _binding(cell)


def _binding(cell: Cell) -> Generate:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    options: dict[str, Any] = {}
    if cell.mode == "lookup":
        options["draft_model"] = LlamaPromptLookupDecoding(LOOKUP_NGRAM, cell.gamma)
    model = Llama(
        str(cell.converted("target", suffix=".gguf")),
        n_ctx=cell.context,
        n_threads=cell.threads,
        n_threads_batch=cell.threads,
        verbose=False,
        **options,
    )

    def generate(prompt: list[int], count: int) -> Output:
        model.reset()  # else a known prompt is not computed again
        tokens = model.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
        return Output(list(islice(tokens, count)))

    return generate


def _program(cell: Cell) -> str:
    if not cell.speculative_binary:
        raise ConfigurationError("llama-cpp-python has no draft models; put llama-speculative-simple on the PATH")
    if not Path(cell.speculative_binary).is_file():
        raise ConfigurationError(f"{cell.speculative_binary} is not there")
    return cell.speculative_binary


def _own_program(cell: Cell) -> Generate:
    program = _program(cell)
    vocabulary = shape_of(Path(cell.target)).vocab_size
    options: dict[str, Any] = {
        "-m": cell.converted("target", suffix=".gguf"),
        "-md": cell.converted("draft", suffix=".gguf"),
        "-td": cell.threads,
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": cell.gamma,  # always so many drafts
        "--spec-draft-n-min": 0,
        "--spec-draft-p-min": 0,
        "-c": cell.context,
        "-t": cell.threads,
        "--samplers": "top_k",
        "--top-k": 1,
    }

    def generate(prompt: list[int], count: int) -> Output:
        with tempfile.TemporaryDirectory() as place:
            written, output = Path(place) / "prompt.txt", Path(place) / "output.txt"
            written.write_text(as_text(prompt), "utf-8")
            command = [program, *(str(part) for item in options.items() for part in item)]
            with output.open("wb") as stream:
                process = subprocess.Popen(
                    [*command, "-f", str(written), "-n", str(count)],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
                peak = 0
                while process.poll() is None:
                    peak = max(peak, peak_bytes(process.pid))
                    sleep(0.02)
            text = output.read_text("utf-8", errors="replace")
        found = re.search(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds", text)
        if process.returncode or found is None:
            last = ([""] + [line for line in text.splitlines() if line.strip()])[-1]
            raise RuntimeError(f"{Path(program).name} ended with status {process.returncode}: {last.strip()[:200]}")
        tokens = as_tokens(text, vocabulary)[len(prompt) :]
        if int(found[1]) < count:
            raise RuntimeError(f"{Path(program).name} gave {found[1]} of {count} tokens")
        return Output(tokens, float(found[2]) / int(found[1]), peak)

    return generate
