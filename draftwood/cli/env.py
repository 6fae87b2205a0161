"""`draftwood env`: what a bug report needs about the machine."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from draftwood.cli.config_file import files
from draftwood.cli.groups import OutputOptions
from draftwood.cli.options import flag

if TYPE_CHECKING:
    import torch

PACKAGES = ("safetensors", "tokenizers", "huggingface_hub", "pydantic", "numpy", "typer", "rich", "transformers")


def env(
    *,
    target: str | None = flag(None, "Also show what lies next to a target's weights to draft with.", "MODEL"),
    output: OutputOptions,
) -> None:
    """Show versions, devices and settings files, for bug reports."""
    from rich.table import Table

    facts = collect() | ({} if target is None else {"drafts": drafts_beside(target)})
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        for row in value.items() if isinstance(value, dict) else [(name, value)]:
            table.add_row(*(", ".join(one) if isinstance(one, list) else str(one) for one in row))
    output.give(facts, table)


def collect() -> dict[str, Any]:
    """The facts, as plain data."""
    import torch

    from draftwood.eval.provenance import session
    from draftwood.util import native_library

    facts = session(torch.device("cpu"))
    if reason := native_library.unavailable():
        backend = f"pytorch: {reason}"
    else:
        backend = (
            f"native: kernels {facts['kernels']} (this processor can run {', '.join(native_library.kernels()[1])})"
        )
    names = ("draftwood", "git_commit", "python", "torch", "system", "processor", "cores", "threads")
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    devices += [torch.device("mps")] if torch.backends.mps.is_available() else []
    return {
        **{name: facts[name] for name in names if facts[name] is not None},
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "backend": backend,
        "devices": {f"device {device}": _device(device) for device in devices},
        "packages": {package: _version(package) for package in PACKAGES},
        "settings": [str(path) for path in files()],
    }


def drafts_beside(target: str) -> dict[str, str]:
    """For each kind of draft where it lies next to a target's weights, or the command that makes one."""
    from draftwood.methods.default import COMPANIONS
    from draftwood.models.checkpoints.artifact import KINDS, companion, is_beside
    from draftwood.models.checkpoints.checkpoint import described, draft_beside, locate

    place = locate(target)
    home = place if place.is_dir() else place.parent
    model = draft_beside(place)
    kinds = [kind for kind, each in COMPANIONS.items() if each.in_checkpoint is None]
    paths = {"draft": model} | {kind: companion(home, kind) if is_beside(home, kind) else None for kind in kinds}
    single = described(place)[2].altup is None  # else only heads on the last states can be made
    places = {
        KINDS[kind][0]: str(path or (f"none; `{KINDS[kind][1]}` makes one" if single or kind == "heads" else "none"))
        for kind, path in paths.items()
    }
    for each in COMPANIONS.values():
        if each.in_checkpoint is not None:
            there = each.in_checkpoint(place)
            places[each.layer] = f"in the checkpoint (method {each.method['name']})" if there else "none"
    return places | {"what pays": f"`draftwood plan --target {target}` measures it"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device(device: torch.device) -> str:
    """A device's name, and what dtype=auto computes in another type than a checkpoint's there."""
    import torch

    from draftwood.models.backend.matrix import computed
    from draftwood.models.checkpoints.checkpoint import DTYPES

    name = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    used = {stored: str(computed(dtype, device)).removeprefix("torch.") for stored, dtype in DTYPES.items()}
    changes = [f"auto computes {stored} in {type_}" for stored, type_ in used.items() if stored != type_]
    return "; ".join([*name, *changes]) or "every type as stored"
