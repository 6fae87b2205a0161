"""The card of a trained drafter: a README.md beside its weights that says what it drafts for and how well."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftwood.models.checkpoints.artifact import KINDS
from draftwood.models.checkpoints.gguf_file import GGUF_SUFFIX
from draftwood.models.checkpoints.safetensors_weights import hub_id, weight_files
from draftwood.train.settings import TextSource, TrainSettings

CARD = "README.md"
MARK = "library_name: draftwood"  # of cards that may be written anew


@dataclass(frozen=True, slots=True)
class Origin:
    """The request for a run: the target's checkpoint, the settings and the texts."""

    target: Path
    embedded: bool  # whether that is the target that comes with the package, which needs no name
    settings: TrainSettings
    source: TextSource

    @property
    def name(self) -> str:
        """The target's name: of the hub, else of its directory or file."""
        return "embedded" if self.embedded else hub_id(self.target) or self.target.resolve().name

    @property
    def weight_bytes(self) -> int:
        """The size of the target's files of weights."""
        files = [self.target] if self.target.suffix == GGUF_SUFFIX else weight_files(self.target)
        return sum(file.stat().st_size for file in files)

    def command(self, kind: str) -> str:
        """The command that repeats the run, with the options that are not the usual ones; --out is DIR."""
        words = KINDS[kind][1].split()
        words += [] if self.embedded else ["--target", hub_id(self.target) or str(self.target)]
        for options in (self.settings, self.source):
            fields = (TextSource if options is self.source else type(self.settings)).model_fields
            for name, field in fields.items():
                value = getattr(options, name)
                if value == field.get_default(call_default_factory=True):
                    continue
                extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
                flag = str((extra.get("names") or [f"--{name.replace('_', '-')}"])[0])  # type: ignore[index]
                values = value if isinstance(value, list) else [value]
                words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
        return shlex.join([*words, "--out", "DIR"])


def write_card(directory: Path, kind: str, origin: Origin, target: str, trained: Mapping[str, float]) -> None:
    """Write the card of a drafter of a kind of `KINDS` into its directory; one that somebody else wrote is left alone.

    `target` is the target's fingerprint; `trained` has the numbers of steps, tokens and seconds, and held-out figures,
    `measured` after so many steps.
    """
    path = directory / CARD
    if path.is_file() and MARK not in path.read_text("utf-8", "replace"):
        return
    what, _ = KINDS[kind]
    steps = [key for key in trained if key.startswith("acceptance_")] or ["acceptance"]
    rates = ", ".join(f"{trained[key]:.3f}" for key in steps)
    names = "head by head" if len(steps) > 1 else "of drafted tokens"
    used = f"--method eesd --set exit={directory.name}" if kind == "exit" else f"--draft {directory.name}"
    texts = (
        f"{origin.source.held_out} rows of at most {origin.source.context} tokens of {Path(origin.source.data).name}"
    ) + (f", measured after {trained['measured']:,.0f} steps" if trained["measured"] < trained["steps"] else "")
    path.write_text(
        f"""---
{MARK}
base_model: {origin.name}
tags: [speculative-decoding]
---

# {what[0].upper()}{what[1:]} for {origin.name}

Drafts for {origin.name} ({origin.weight_bytes:,} bytes of weights, fingerprint {target}) and for no other model: it is
checked when it is loaded. Texts keep the target's distribution whatever the draft is; what follows is about speed.

| | |
| --- | --- |
| held-out acceptance at temperature 1, {names} | {rates} |
| same most probable token | {trained["agreement"]:.3f} |
| expected gain over plain decoding, without lookup | {trained["gain"]:.2f} times |
| trained for | {trained["steps"]:,.0f} steps, {trained["tokens"]:,.0f} tokens, {trained["seconds"]:,.0f} s |
| held out | {texts} |

It was made by

```sh
{origin.command(kind)}
```

and drafts with `{used}`, or without a flag in the directory `{kind}/` next to the
target's weights.
""",
        "utf-8",
    )
