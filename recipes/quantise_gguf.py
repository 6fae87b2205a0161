"""Writes a GGUF file in other types with llama.cpp's own quantiser: `python recipes/quantise_gguf.py FILE DIRECTORY`.

It needs llama-cpp-python and nothing else, so that the Python of another environment can run it. A matrix whose rows
are no multiple of 256 gets the type that llama.cpp falls back to. What is there already is not written again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

TYPES = (
    *("Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"),
    *("F16", "BF16"),
)


def quantise(source: Path, directory: Path, name: str) -> Path:
    """Write `source` in a type; returns the file, SOURCE.TYPE.gguf. Raises RuntimeError where llama.cpp cannot."""
    import llama_cpp

    path = directory / f"{source.stem}.{name}.gguf"
    if path.exists():
        return path
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    settings.allow_requantize = True
    try:
        if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(partial), settings):
            raise RuntimeError(f"llama.cpp cannot write {source} as {name}; its messages are above")
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def main() -> int:
    """Write the types that are asked for; 2 with one sentence where something is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("source", type=Path, help="a GGUF file of any type, such as MODEL.Q4_1.gguf")
    parser.add_argument("directory", type=Path, help="directory for SOURCE.TYPE.gguf; made where it is not there")
    parser.add_argument("--type", dest="types", action="append", choices=TYPES, help="repeatable; default: all")
    given = parser.parse_args()
    try:
        if not given.source.is_file():
            raise RuntimeError(f"{given.source} is not there; give a GGUF file")
        given.directory.mkdir(parents=True, exist_ok=True)
        for name in given.types or TYPES:
            print(quantise(given.source, given.directory, name), flush=True)
    except ImportError as error:
        print(f"error: {error}; install llama-cpp-python for {sys.executable}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
