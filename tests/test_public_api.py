"""The public API is what __all__ says, and importing it stays light."""

import subprocess
import sys

import draftwood


def test_exported_members_exist_and_are_sorted() -> None:
    names = draftwood.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names
    assert all(getattr(draftwood, name) is not None for name in names)


def test_generating_imports_no_extra() -> None:
    code = (
        "import draftwood, sys; draftwood.load().generate('The', max_new_tokens=1); "
        "print(*sorted(name.split('.')[0] for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not loaded & {"transformers", "fastapi", "scipy", "pandas", "matplotlib", "optuna", "datasets", "pytest"}
    assert not loaded & {"sentencepiece", "huggingface_hub", "typer", "rich", "hypothesis", "gguf", "llama_cpp"}
    assert not loaded & {"openvino", "openvino_genai", "openvino_tokenizers", "sympy"}
