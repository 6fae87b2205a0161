"""`draftwood env`: what a bug report needs about the machine."""

from __future__ import annotations

import math
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from draftwood.cli.config_file import files
from draftwood.cli.groups import OutputOptions

if TYPE_CHECKING:
    import torch
    from rich.table import Table

PACKAGES = (
    "torch",
    "safetensors",
    "tokenizers",
    "huggingface_hub",
    "pydantic",
    "numpy",
    "typer",
    "rich",
    "transformers",
)


def env(*, output: OutputOptions) -> None:
    """Show versions, devices and the embedded pair, for bug reports."""
    facts = collect()
    output.give(facts, _table(facts))


def collect() -> dict[str, Any]:
    """All of it, as plain data."""
    import torch

    from draftwood import __version__
    from draftwood.eval.provenance import processor

    return {
        "draftwood": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES} | {"torch": torch.__version__},  # names its build
        "cpu": processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "backend": _backend(),
        "memory_gib": _memory(),
        "devices": [_device(device) for device in _devices()],
        "embedded": _embedded(),
        "settings": [str(path) for path in files()],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backend() -> str:
    """The name of the CPU backend, and why it was chosen."""
    from draftwood.models.backend import native

    if reason := native.unavailable():
        return f"pytorch: {reason}"
    used, able = native.kernels()
    return f"native: kernels {used} (this processor can run {', '.join(able)})"


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None  # not every system says


def _devices() -> list[torch.device]:
    import torch

    found = [torch.device("cpu")]
    found += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    return found


def _device(device: torch.device) -> dict[str, Any]:
    """A device's name, the dtypes in which it multiplies matrices, and what `auto` computes in another one."""
    import torch

    from draftwood.models.backend.matrix import computed
    from draftwood.models.checkpoints.checkpoint import DTYPES

    def works(dtype: torch.dtype) -> bool:
        try:
            square = torch.ones(2, 2, dtype=dtype, device=device)
            return bool((square @ square).float().sum() == 8)
        except (RuntimeError, TypeError):
            return False

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    used = {stored: str(computed(dtype, device)).removeprefix("torch.") for stored, dtype in DTYPES.items()}
    return {
        "device": str(device),
        "name": name,
        "dtypes": [name for name, dtype in DTYPES.items() if works(dtype)],
        "auto": {stored: name for stored, name in used.items() if stored != name},
    }


def _embedded() -> dict[str, Any]:
    """Parameters and bytes of the shipped models; None where one is not there."""
    from safetensors import safe_open

    from draftwood.engine.loading import EMBEDDED

    sizes: dict[str, Any] = {}
    for role in ("target", "draft"):
        files = sorted((EMBEDDED / role).glob("*.safetensors"))
        parameters = 0
        for file in files:
            with safe_open(str(file), "pt") as tensors:
                names = tensors.keys()  # not a dictionary
                parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
        size = sum(file.stat().st_size for file in files)
        sizes[role] = {"parameters": parameters, "bytes": size} if files else None
    return sizes


def _table(facts: dict[str, Any]) -> Table:
    from rich.table import Table

    cores = f"{facts['cpu']}, {facts['cores']} cores, {facts['torch_threads']} torch threads"
    rows = {"draftwood": facts["draftwood"], "python": f"{facts['python']} ({sys.implementation.name})"}
    rows |= {package: found or "not installed" for package, found in facts["packages"].items()}
    rows |= {"system": facts["system"], "processor": cores}
    rows["backend"] = facts["backend"]
    if facts["memory_gib"] is not None:
        rows["memory"] = f"{facts['memory_gib']:g} GiB"
    for device in facts["devices"]:
        name = f"{device['name']}: " if device["name"] else ""
        instead = [f"auto computes {stored} in {used}" for stored, used in device["auto"].items()]
        rows[f"device {device['device']}"] = name + "; ".join([", ".join(device["dtypes"]), *instead])
    for role, size in facts["embedded"].items():
        text = f"{size['parameters']:,} parameters, {size['bytes'] / 2**20:.1f} MiB" if size else "not there"
        rows[f"embedded {role}"] = text
    rows["settings"] = ", ".join(facts["settings"]) or "no draftwood.toml, neither here nor of the user"
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="cyan", no_wrap=True)
    made.add_column(overflow="fold")
    for row in rows.items():
        made.add_row(*row)
    return made
