"""Converts pickled weights to safetensors, for `draftwood convert`: nothing else reads pickled files.

PyTorch's restricted reader takes tensors and plain containers alone; a file that asks for code is refused.
"""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.checkpoints.files import write_tensors

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth")
WEIGHTS_FILE = "model.safetensors"


def convert(source: str, out: Path) -> int:
    """Write the pickled weights of a directory or hub id, and its JSON files, into a new directory; how many tensors.

    ConfigurationError for an `out` that is there, ModelError for files that hold anything but tensors.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is there already and not an empty directory; give a new one")
    directory = _fetched(source)
    files = sorted(path for pattern in PICKLE_PATTERNS for path in directory.glob(pattern))
    if not files:
        raise ModelError(
            f"{directory} has no pickled weights ({', '.join(PICKLE_PATTERNS)}); there is nothing to convert"
        )
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
            raise ModelError(f"{path} holds more than tensors, or is damaged; it is not read further") from error
        if not isinstance(state, dict) or not all(isinstance(part, Tensor) for part in state.values()):
            raise ModelError(f"{path} is no table of tensors; give a file of weights")
        tensors.update({str(name): part.clone() for name, part in state.items()})  # safetensors shares no memory
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_tensors(out / WEIGHTS_FILE, tensors, {"format": "pt"})
        for path in (*directory.glob("*.json"), *directory.glob("*.jinja")):
            if not path.name.endswith(".index.json"):
                shutil.copyfile(path, out / path.name)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{out} cannot be written ({error}); make room or name another") from error
    return len(tensors)


def _fetched(source: str) -> Path:
    """A directory, or a hub id fetched into the hub's cache with its pickled files."""
    if (path := Path(source).expanduser()).is_dir():
        return path
    if path.exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source, re.ASCII):
        raise ModelError(f"{source[:500]} is no directory; give the one that holds config.json and the weights")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(source, allow_patterns=["*.json", "*.jinja", *PICKLE_PATTERNS], ignore_patterns=["*/*"])
        )
    except Exception as error:  # the hub client raises many kinds; the sentence is the same
        raise ModelError(
            f"{source} is neither a directory here nor a model that the hub gives ({type(error).__name__}); "
            "check the path, or the hub id and the network"
        ) from error
