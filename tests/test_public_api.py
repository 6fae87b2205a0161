"""The public API is what __all__ says, and importing it stays light."""

import subprocess
import sys

import draftwood


def test_exported_members_exist_and_are_sorted() -> None:
    names = draftwood.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names
    assert all(getattr(draftwood, name) is not None for name in names)


def test_importing_draftwood_imports_no_extra() -> None:
    code = "import draftwood, sys; draftwood.load; print(*sorted(name.split('.')[0] for name in sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "torch" in loaded
    assert not loaded & {"transformers", "fastapi", "scipy", "pandas", "matplotlib", "optuna", "datasets", "pytest"}
    assert not loaded & {"sentencepiece", "huggingface_hub", "typer", "rich", "hypothesis", "gguf", "llama_cpp"}
    assert not loaded & {"openvino", "openvino_genai", "openvino_tokenizers"}


def test_importing_draftwood_takes_little_time_beyond_torch() -> None:
    """Processor time, which other processes hardly change."""
    code = (
        "import time, torch; began = time.process_time(); import draftwood; draftwood.load; "
        "print(time.process_time() - began)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
